#!/usr/bin/env python3
"""Encode one kind (code|prose|chat) to uint16 token streams: documents in hash order, [EOS] after each.

Files whose hash falls in the last 1.5 % are held out.  Also writes held-out documents for evaluation prompts.
usage: encode_all.py WORK TOKDIR KIND OUT
"""

import array
import hashlib
import json
import sys
from tokenizer_train import Tok

work, tokdir, kind, out = sys.argv[1:5]
t = Tok(tokdir + "/tiktoken.model")
EOS = t.base + 1
docs = []
for l in open(f"{work}/{kind}.jsonl"):
    d = json.loads(l)
    h = hashlib.sha256((d["p"] + "|" + d["f"]).encode()).hexdigest()
    docs.append((h, d))
docs.sort(key=lambda x: x[0])
tr, ho = array.array("H"), array.array("H")
nb = {"train": 0, "held": 0}
nd = {"train": 0, "held": 0}
held = []
for h, d in docs:
    held_out = int(h[-6:], 16) / 16**6 < 0.015
    ids = t.encode(d["t"]) if kind == "chat" else t.plain(d["t"])
    (ho if held_out else tr).extend(ids + [EOS])
    k = "held" if held_out else "train"
    nb[k] += len(d["t"].encode())
    nd[k] += 1
    if held_out and len(held) < 600:
        held.append({"p": d["p"], "f": d["f"], "t": d["t"][:6000], "n": d.get("n")})
    assert max(ids) < 65536
open(f"{out}/{kind}.train.u16", "wb").write(tr.tobytes())
open(f"{out}/{kind}.held.u16", "wb").write(ho.tobytes())
json.dump(held, open(f"{out}/{kind}.held.json", "w"), ensure_ascii=False)
json.dump(
    {"kind": kind, "bytes": nb, "docs": nd, "tokens": {"train": len(tr), "held": len(ho)}},
    open(f"{out}/{kind}.stat.json", "w"),
)
print(kind, nb, nd, len(tr), len(ho), "bytes/token %.3f" % (nb["train"] / len(tr)))
