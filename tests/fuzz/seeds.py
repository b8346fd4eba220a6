#!/usr/bin/env python3
"""Writes small valid files of every format as a starting corpus: seeds.py FOLDER."""
import json
import pathlib
import struct
import sys


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf():
    keys = [
        string("general.architecture") + struct.pack("<I", 8) + string("llama"),
        string("general.alignment") + struct.pack("<II", 4, 32),
        string("tokenizer.ggml.model") + struct.pack("<I", 8) + string("gpt2"),
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("b"),
        string("rope") + struct.pack("<If", 6, 1.5),
    ]
    tensors = [
        string("a") + struct.pack("<IQQIQ", 2, 32, 2, 2, 0),
        string("b") + struct.pack("<IQIQ", 1, 8, 0, 64),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys + tensors)
    return head + bytes(-len(head) % 32) + bytes(96)


def safetensors():
    header = json.dumps({
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "I32", "shape": [1], "data_offsets": [8, 12]},
    }).encode()
    return struct.pack("<Q", len(header)) + header + bytes(12)


def main():
    folder = pathlib.Path(sys.argv[1])
    document = '{"a": [1, -2.5e3, 18446744073709551615, "\\u00e9\\ud83d\\ude00", null, true]}'
    for number, data in enumerate([document.encode(), safetensors(), gguf()]):
        (folder / f"seed-{number}").write_bytes(bytes([number]) + data)


if __name__ == "__main__":
    main()
