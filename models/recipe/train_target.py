"""Train the target: bf16 compute, fp32 masters, Muon for matrices + AdamW for the rest, loss-free router balance,
last part with INT4 group-32 fake quantisation of the routed experts and sequence length 4096.

usage: train_target.py DATA OUT SECONDS [key=value ...]      (time-based schedule)
"""

import json
import lzma
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import torch
import torch.nn.functional as F
import common as C

DATA, OUT, SECS = sys.argv[1], sys.argv[2], float(sys.argv[3])
A = dict(
    lr=4e-3,
    adam=2.5e-3,
    wd=0.1,
    tokens=131072,
    seq=1024,
    long=4096,
    qat=0.70,
    longfrac=0.86,
    warm=0.02,
    flat=0.45,
    compile=1,
    steps=10**9,
    seed=0,
    u=1e-3,
    evaltok=400000,
)
A.update({k: type(A[k])(float(v)) for k, v in (x.split("=") for x in sys.argv[4:])})
P = C.NS(**A)
dev = "cuda" if torch.cuda.is_available() else "cpu"
T00 = time.time()
torch.manual_seed(P.seed)
torch.set_float32_matmul_precision("high")
KINDS = ("code", "prose", "chat")
MIX = (0.70, 0.18, 0.12)


def load(kind, part):
    p = f"{DATA}/{kind}.{part}.u16"
    raw = open(p, "rb").read() if os.path.exists(p) else lzma.open(p + ".xz").read()
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint16).astype(np.int32)).to(dev)


with ThreadPoolExecutor(6) as ex:
    D = dict(
        zip(
            [(k, p) for k in KINDS for p in ("train", "held")],
            ex.map(lambda a: load(*a), [(k, p) for k in KINDS for p in ("train", "held")]),
        )
    )
print("data", {k: v.numel() for k, v in D.items()}, "%.1fs" % (time.time() - T00), flush=True)


def batch(S, B):
    n = [max(1, round(B * f)) for f in MIX]
    n[0] = B - n[1] - n[2]
    out = []
    for k, b in zip(KINDS, n):
        d = D[k, "train"]
        st = torch.randint(0, d.numel() - S - 1, (b, 1), device=dev)
        out.append(d[st + torch.arange(S + 1, device=dev)[None]])
    x = torch.cat(out).long()
    return x[:, :-1].contiguous(), x[:, 1:].contiguous(), n


def head_loss(x, g, head, y, inp, eps):
    lg = C.lin(C.rms(x, g, eps), head)
    l = F.cross_entropy(lg.float(), y, reduction="none")
    # an empty <think></think> is always given in the prompt, never generated
    return l * (~((inp == C.SPECIAL["think"]) & (y == C.SPECIAL["think_end"]))).float()


if P.compile and dev == "cuda":
    cp = lambda f: torch.compile(f, dynamic=False)
    C.FN.pre, C.FN.dense, C.FN.moe = cp(C.pre_attn_t), cp(C.post_dense_t), cp(C.post_moe_t)
    head_loss = cp(head_loss)
    C.FQ[0] = cp(C.qat)

cfg = C.target_config()
m = C.Target(cfg).to(dev)
mu, ad = [], {"embed": [m.embed], "head": [m.head], "other": [m.norm]}
for L in m.layers:
    for n, p in L.named_parameters():
        if p.dim() == 1:
            ad["other"].append(p)
        elif n == "gate":
            ad["other"].append(p)
        elif n == "wgu":
            mu.append((p, (cfg.moe_intermediate_size, cfg.hidden_size)))
        elif n == "wd":
            mu.append((p, (cfg.hidden_size, cfg.moe_intermediate_size)))
        else:
            mu.append((p, tuple(p.shape)))
muon = C.Muon(mu)
mult = {"embed": 2.0, "head": 1.0, "other": 1.0}
adam = torch.optim.AdamW(
    [{"params": v, "name": k, "lr": 0.0} for k, v in ad.items()],
    betas=(0.9, 0.95),
    eps=1e-10,
    weight_decay=0.0,
    **({"fused": True} if dev == "cuda" else {}),
)
adps = [p for v in ad.values() for p in v]
print("params %.2fM" % (sum(p.numel() for p in m.parameters()) / 1e6), P, flush=True)


def lrf(f):
    return min(f / P.warm, 1.0) if f < P.flat else max((1 - f) / (1 - P.flat), 0.0) * 0.99 + 0.01


def step(f, S, q, upd=True):
    B = P.tokens // S
    x, y, n = batch(S, B)
    h, cnts = m(x, dtype=torch.bfloat16, quantise=q)
    l = head_loss(h, m.norm, m.head, y.reshape(-1), x.reshape(-1), cfg.rms_norm_eps)
    l.mean().backward()
    if upd:
        torch.nn.utils.clip_grad_norm_(adps, 1.0)
        s = lrf(f)
        for g in adam.param_groups:
            g["lr"] = P.adam * mult[g["name"]] * s
        muon.step(P.lr * s, P.wd, 0.85 + 0.1 * min(1.0, f / 0.05))
        adam.step()
        u = P.u * (3.0 if f < 0.25 else 1.0 if f < 0.7 else max(0.0, (0.97 - f) / 0.27))
        with torch.no_grad():
            for L, c in zip([L for L in m.layers if L.moe], cnts):
                c = c.float()
                L.bias += u * torch.sign(c.mean() - c)
    for p in m.parameters():
        p.grad = None
    with torch.no_grad():
        lk = l.detach().view(B, S)
        pk = torch.stack(
            [lk[: n[0]].mean(), lk[n[0] : n[0] + n[1]].mean(), lk[n[0] + n[1] :].mean()]
        )
        load = torch.stack([c.float().max() / c.float().mean() for c in cnts]).max()
    return pk, load


sync = torch.cuda.synchronize if dev == "cuda" else (lambda: None)
t = time.time()
for S, q in ((P.seq, False), (P.seq, True), (P.long, True)):
    step(0.0, S, q, upd=False)
    sync()
    print("warm", S, q, "%.1fs" % (time.time() - t), flush=True)
t0 = time.time()
i = 0
tok = 0
acc = []
tl = t0
log = []
while True:
    f = (time.time() - t0) / SECS
    if f >= 1 or i >= P.steps:
        break
    S = P.long if f >= P.longfrac else P.seq
    q = f >= P.qat
    acc.append(torch.cat([r.view(-1) for r in step(f, S, q)]))
    i += 1
    tok += P.tokens
    if i % 4 == 0:
        sync()  # keeps the clock honest
    if i % 50 == 0:
        a = torch.stack(acc[-50:]).mean(0).tolist()
        now = time.time()
        row = dict(
            step=i,
            s=round(now - t0, 1),
            f=round(f, 3),
            S=S,
            qat=q,
            code=round(a[0], 4),
            prose=round(a[1], 4),
            chat=round(a[2], 4),
            maxload=round(a[3], 2),
            ktok_s=round(50 * P.tokens / (now - tl) / 1e3),
        )
        tl = now
        log.append(row)
        if i % 100 == 0 or i <= 100:
            print(row, flush=True)
sync()
train_s = time.time() - t0
print(
    f"trained {i} steps {tok/1e6:.1f}M tokens in {train_s:.1f}s; peak mem %.1f GB"
    % (torch.cuda.max_memory_allocated() / 1e9 if dev == "cuda" else 0),
    flush=True,
)
del muon, adam
size = C.export_target(m, OUT)


@torch.no_grad()
def evaluate(mm, d, quantise=False, limit=P.evaltok, S=1024):
    n = min(d.numel() - 1, limit) // S * S
    tot = cnt = 0
    for j in range(0, n, 32 * S):
        k = min(32 * S, n - j)
        x = d[j : j + k].long().view(-1, S)
        y = d[j + 1 : j + k + 1].long().view(-1)
        h, _ = mm(x, dtype=torch.bfloat16 if dev == "cuda" else torch.float32, quantise=quantise)
        tot += F.cross_entropy(mm.logits(h).float(), y, reduction="sum").item()
        cnt += y.numel()
    return tot / cnt


m.eval()
C.FN = C.EAGER
C.FQ[0] = C.qat
q4, _ = C.load_target(OUT, dev)
res = {}
for k in KINDS:
    st = json.load(open(f"{DATA}/{k}.stat.json"))
    bpt = {p: st["bytes"][p] / st["tokens"][p] for p in ("train", "held")}
    tr = D[k, "train"]
    o = tr.numel() // 3
    seg = tr[o : o + P.evaltok + 1]
    r = dict(
        held_nats=evaluate(q4, D[k, "held"]),
        held_nats_unquantised=evaluate(m, D[k, "held"]),
        train_nats=evaluate(q4, seg),
    )
    r["held_bits_per_byte"] = r["held_nats"] / math.log(2) / bpt["held"]
    r["train_bits_per_byte"] = r["train_nats"] / math.log(2) / bpt["train"]
    r["held_bits_per_byte_unquantised"] = r["held_nats_unquantised"] / math.log(2) / bpt["held"]
    res[k] = {a: round(b, 4) for a, b in r.items()}
    print(k, res[k], flush=True)
b = torch.stack([L.bias for L in m.layers if L.moe])
print("router bias range", b.min().item(), b.max().item(), "abs mean", b.abs().mean().item())
json.dump(
    dict(
        args=A,
        seconds=train_s,
        steps=i,
        tokens=tok,
        eval=res,
        log=log,
        torch=torch.__version__,
        total_size=size,
        device=torch.cuda.get_device_name() if dev == "cuda" else "cpu",
    ),
    open(OUT + "/train_log.json", "w"),
    indent=1,
)
print("done %.1fs" % (time.time() - T00), flush=True)
