"""Reads and writes safetensors without the library."""

import json
import struct

import torch

DT = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}


def st_save(path, tensors, meta=None):
    hdr, off, blobs = {}, 0, []
    if meta:
        hdr["__metadata__"] = {k: str(v) for k, v in meta.items()}
    for n in sorted(tensors):
        t = tensors[n].detach().contiguous().cpu()
        b = (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()
        hdr[n] = {"dtype": DT[t.dtype], "shape": list(t.shape), "data_offsets": [off, off + len(b)]}
        off += len(b)
        blobs.append(b)
    h = json.dumps(hdr, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)))
        f.write(h)
        for b in blobs:
            f.write(b)


def st_load(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    hdr = json.loads(raw[8 : 8 + n])
    out = {}
    rev = {v: k for k, v in DT.items()}
    for k, e in hdr.items():
        if k == "__metadata__":
            continue
        a, b = e["data_offsets"]
        dt = rev[e["dtype"]]
        buf = bytearray(raw[8 + n + a : 8 + n + b])
        t = (
            torch.frombuffer(buf, dtype=torch.int16 if dt == torch.bfloat16 else dt)
            if len(buf)
            else torch.empty(0, dtype=dt)
        )
        out[k] = (t.view(torch.bfloat16) if dt == torch.bfloat16 else t).reshape(e["shape"])
    return out
