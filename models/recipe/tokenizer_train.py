#!/usr/bin/env python3
"""Train the byte-level BPE with the Kimi pre-tokenisation pattern; write tiktoken.model and tokenizer_config.json.

usage: tokenizer_train.py WORK N_RANKS OUTDIR     (needs the `regex` module and the compiled bpe.cpp as ./bpe)
"""

import base64
import collections
import json
import os
import re
import subprocess
import sys
import hashlib
import regex

PAT = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
RX = regex.compile("(?V1)" + PAT)
# offsets of the named special tokens above the base ranks: the same as in the real tokenizer (163584 -> base)
SPECIAL = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    22: "<think>",
    23: "</think>",
    254: "[UNK]",
    255: "[PAD]",
}


class Tok:
    """Reference encoder: regex pieces, then repeatedly merge the adjacent pair with the lowest rank."""

    def __init__(self, path):
        self.rank = {}
        for l in open(path, "rb"):
            a, b = l.split()
            self.rank[base64.b64decode(a)] = int(b)
        self.base = len(self.rank)
        self.special = {t: self.base + o for o, t in SPECIAL.items()}
        for o in range(256):
            (
                self.special.setdefault(f"<|reserved_token_{self.base+o}|>", self.base + o)
                if o not in SPECIAL
                else None
            )
        self.byid = {v: k for k, v in self.rank.items()}
        self.byid.update({v: k.encode() for k, v in self.special.items()})
        self.cache = {}
        self.srx = re.compile("|".join(re.escape(t) for t in self.special))

    def piece(self, b):
        p = [bytes([x]) for x in b]
        while len(p) > 1:
            best = min(range(len(p) - 1), key=lambda i: self.rank.get(p[i] + p[i + 1], 1 << 30))
            if p[best] + p[best + 1] not in self.rank:
                break
            p[best : best + 2] = [p[best] + p[best + 1]]
        return [self.rank[x] for x in p]

    def plain(self, t):
        out, c = [], self.cache
        for w in RX.findall(t):
            v = c.get(w)
            if v is None:
                b = w.encode("utf-8", "replace")
                r = self.rank.get(b)
                v = c[w] = [r] if r is not None else self.piece(b)
            out += v
        return out

    def encode(self, t):
        out, i = [], 0
        for m in self.srx.finditer(t):
            out += self.plain(t[i : m.start()])
            out.append(self.special[m.group()])
            i = m.end()
        return out + self.plain(t[i:])

    def decode(self, ids):
        return b"".join(self.byid[i] for i in ids).decode("utf-8", "replace")


if __name__ == "__main__":
    work, n, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.makedirs(out, exist_ok=True)
    cnt = collections.Counter()
    srx = re.compile("|".join(re.escape(t) for t in SPECIAL.values()))
    for kind, keep in (("code", 0.22), ("prose", 1.0), ("chat", 0.10)):
        for l in open(f"{work}/{kind}.jsonl"):
            d = json.loads(l)
            if int(hashlib.sha256(d["f"].encode()).hexdigest()[:4], 16) / 65536 > keep:
                continue
            for part in (srx.split(d["t"]) if kind == "chat" else [d["t"]]):
                cnt.update(RX.findall(part))
    # a little of other scripts, so that accents, Han and emoji are not only single bytes
    for ch in "éèàçöäüßñ°–—’“”…€→≤≥你好世界中文的是":
        cnt[ch] += 20000
    print("pieces", len(cnt), sum(cnt.values()))
    inp = "\n".join(
        f"{w.encode('utf-8','replace').hex()} {c}"
        for w, c in cnt.items()
        if c > 1 and len(w.encode("utf-8", "replace")) <= 64
    )
    r = subprocess.run(
        ["./bpe", str(n)], input=inp, capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(r) == n and len(set(r)) == n
    with open(out + "/tiktoken.model", "wb") as f:
        for i, h in enumerate(r):
            f.write(base64.b64encode(bytes.fromhex(h)) + b" %d\n" % i)
    cfg = {
        "added_tokens_decoder": {
            str(n + o): {
                "content": t,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": o not in (11, 12, 13, 14, 15, 22, 23),
            }
            for o, t in SPECIAL.items()
        },
        "additional_special_tokens": [
            "<|im_end|>",
            "<|im_user|>",
            "<|im_assistant|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "[EOT]",
            "<|im_system|>",
            "<|im_middle|>",
            "<|media_begin|>",
            "<|media_content|>",
            "<|media_end|>",
            "<|media_pad|>",
        ],
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "extra_special_tokens": {},
        "tokenizer_class": "TikTokenTokenizer",
    }
    json.dump(cfg, open(out + "/tokenizer_config.json", "w"), indent=2, ensure_ascii=False)
