"""Held-out acceptance of the drafter (fp32 on dequantised weights, temperature 0) and sample completions.

usage: eval_spec.py TARGET DRAFT PROMPTS OUT.json [N_PROMPTS] [NEW_TOKENS]
"""

import json
import sys
import time
import torch
import common as C
import spec

torch.backends.cuda.matmul.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
TGT, DRF, PR, OUT = sys.argv[1:5]
NP = int(sys.argv[5]) if len(sys.argv) > 5 else 64
NT = int(sys.argv[6]) if len(sys.argv) > 6 else 128
dev = "cuda" if torch.cuda.is_available() else "cpu"
t = time.time()
m, _ = C.load_target(TGT, dev)
ps = json.load(open(PR))
sets = {k: ps[k][:NP] for k in ("code", "prose", "chat")}
res = {
    "prompts_per_kind": NP,
    "new_tokens": NT,
    "mode": "fp32 compute on exactly dequantised INT4 weights, temperature 0, stop at [EOS], <|im_end|>, [EOT]",
}
flat = [p for k in sets for p in sets[k]]
g, marg = spec.greedy(m, flat, NT)
res["greedy"] = {
    k: [spec.cut(x) for x in g[i * NP : (i + 1) * NP].tolist()] for i, k in enumerate(sets)
}
smp = ps["samples"]
gs, _ = spec.greedy(m, [x["ids"] for x in smp], 160)
res["samples"] = [
    dict(name=x["name"], prompt=x["ids"], out=spec.cut(y)) for x, y in zip(smp, gs.tolist())
]
print("greedy %.1fs" % (time.time() - t), flush=True)
if DRF != "-":
    d = C.load_draft(DRF, dev)
    out = {}
    for mode in ("chain", 8, 16, 32, 64, 128):
        t = time.time()
        tab, cmp, _ = spec.acceptance(m, d, sets, NT, [mode], ref=(g, marg))
        out[str(mode)] = dict(
            tau={k: round(v[str(mode)], 4) for k, v in tab.items()}, **cmp[str(mode)]
        )
        print(
            mode,
            out[str(mode)]["tau"],
            "equal",
            cmp[str(mode)]["equal"],
            "different",
            cmp[str(mode)]["different"],
            cmp[str(mode)]["margin_at_first_difference"][:8],
            "%.1fs" % (time.time() - t),
            flush=True,
        )
        res["acceptance"] = out
        json.dump(res, open(OUT, "w"))
json.dump(res, open(OUT, "w"))
