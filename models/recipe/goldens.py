"""Golden outputs: fp32 compute on exactly dequantised weights (value * bf16 scale in fp32), TF32 off, one prompt at a time.

usage: goldens.py TARGET DRAFT PROMPTS OUTDIR
"""

import json
import os
import sys
import torch
import common as C
import spec

torch.backends.cuda.matmul.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
TGT, DRF, PR, OUT = sys.argv[1:5]
dev = "cuda" if torch.cuda.is_available() else "cpu"
os.makedirs(OUT, exist_ok=True)
m, _ = C.load_target(TGT, dev)
d = C.load_draft(DRF, dev)
ps = json.load(open(PR))["golden"]
c = m.c
info = []


@torch.no_grad()
def one(n, ids):
    P = len(ids)
    T = {}
    J = {"name": n, "n": P}
    tr = []
    x, _ = m(torch.tensor([ids], device=dev), dtype=torch.float32, trace=tr)
    lg = m.logits(x)
    pos = sorted({0, 1, P // 3, P // 2, P - 2, P - 1} & set(range(P)))
    J["positions"] = pos
    i = torch.tensor(pos, device=dev)
    i32 = lambda t: t.to(torch.int32)
    T["token_ids"] = torch.tensor(ids, dtype=torch.int32)
    T["hidden"] = torch.stack(
        [r["h"][i] for r in tr]
    )  # [layers + 1, positions, H]; row 0 = embeddings, row l+1 = after layer l
    T["mla_latent"] = torch.stack(
        [torch.cat((r["lat"], r["kp"]), -1)[i] for r in tr[1:]]
    )  # [layers, positions, kv_lora + rope]: what the KV cache holds
    ri, rw, mg = [], [], []
    for l, L in enumerate(m.layers):
        if not L.moe:
            continue
        o = tr[l + 1]["idx"][i].sort(-1)
        mg.append(tr[l + 1]["gap"][i])
        ri.append(o[0])
        rw.append(tr[l + 1]["w"][i].gather(1, o[1]))
    T["router_margin"] = torch.stack(mg)  # gap between the 4th and the 5th of score + bias
    T["router_ids"], T["router_weights"] = i32(torch.stack(ri)), torch.stack(
        rw
    )  # [moe layers, positions, 4], experts in ascending id order
    T["logits"] = lg[i]  # [positions, V]
    T["argmax_all"] = i32(lg.argmax(-1))
    T["logsumexp_all"] = lg.logsumexp(-1)
    g, marg = spec.greedy(m, [ids], 128)
    T["greedy"] = i32(g[0])
    T["greedy_margin"] = marg[0]
    e = spec.Engine(m, d)
    e.prefill([ids], 160)
    T["draft_context_features"] = e.feats[0, -16:]  # last 16 prompt positions, [.., m*H]
    T["draft_ctx_k_layer0"], T["draft_ctx_v_layer0"] = (
        e.dc[0][0][0, max(0, P - 16) : P],
        e.dc[0][1][0, max(0, P - 16) : P],
    )
    J["anchor"] = int(e.anchor[0])
    J["anchor_position"] = int(e.start[0])
    dl = e.draft()[0]
    T["draft_logits"] = dl
    lp = dl.log_softmax(-1)
    import copy

    for N in (8, 16, 64):
        tok, par, dep, sc = spec.ddtree_heap(lp, N)
        e2 = spec.Engine(m, d)
        e2.__dict__.update({k: copy.copy(v) for k, v in e.__dict__.items()})
        e2.cache = [t.clone() for t in e.cache]
        e2.dc = [(a.clone(), b.clone()) for a, b in e.dc]
        tt = lambda z: torch.tensor([z], device=dev)
        acc, bonus, choice, path = e2.verify(tt(tok), tt(par), tt(dep))
        top = e2.node_logits[0].topk(2, -1)[0]
        T[f"tree{N}.tokens"], T[f"tree{N}.parents"], T[f"tree{N}.depths"] = (
            torch.tensor(z, dtype=torch.int32) for z in (tok, par, dep)
        )
        T[f"tree{N}.scores"] = torch.tensor(sc)
        T[f"tree{N}.target_argmax"], T[f"tree{N}.target_margin"] = (
            i32(choice[0]),
            top[:, 0] - top[:, 1],
        )
        a = [t for t in acc[0].tolist() if t >= 0]
        k = len(a) + 1
        J[f"tree{N}"] = {"accepted_tokens": a, "path": path[0, :k].tolist(), "bonus": int(bonus[0])}
    for mode in ("chain", 8, 16, 64):
        tc = []
        out, rounds, hist = spec.speculate(m, d, [ids], 128, mode, trace=tc)
        gl = spec.cut(g[0].tolist())[:128]
        J[f"run_{mode}"] = {
            "tokens": out[0],
            "rounds": rounds[0],
            "accepted_per_round": tc,
            "equals_greedy": spec.cut(out[0])[:128] == gl,
        }
    C.st_save(f"{OUT}/{n}.safetensors", T)
    json.dump(J, open(f"{OUT}/{n}.json", "w"))
    info.append(
        {k: J[k] for k in ("name", "n", "anchor")}
        | {
            "equal": [J[f"run_{q}"]["equals_greedy"] for q in ("chain", 8, 16, 64)],
            "rounds": [J[f"run_{q}"]["rounds"] for q in ("chain", 8, 16, 64)],
            "emitted": len(J["run_chain"]["tokens"]),
        }
    )
    print(info[-1], flush=True)


for p in ps:
    one(p["name"], p["ids"])
json.dump(
    {
        "mode": "fp32, exact dequantisation, TF32 off",
        "device": torch.cuda.get_device_name() if dev == "cuda" else "cpu",
        "torch": torch.__version__,
        "prompts": info,
    },
    open(OUT + "/index.json", "w"),
    indent=1,
)
