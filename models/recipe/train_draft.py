"""Train the DFlash drafter on the frozen INT4 target (dequantised to bf16): corpus windows first, then mostly
continuations that the target itself generated (two thirds greedy, one third sampled).

usage: train_draft.py DATA TARGET OUT SECONDS [key=value ...]
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

DATA, TGT, OUT, SECS = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
A = dict(
    lr=4e-3,
    adam=2.5e-3,
    wd=0.1,
    S=384,
    rb=2048,
    T=98304,
    anchors=24,
    gamma=4.0,
    corpus=0.2,
    pool1=0.14,
    pool2=0.12,
    mixc=0.15,
    warm=0.02,
    flat=0.45,
    compile=1,
    steps=10**9,
    seed=1,
    temp=0.8,
    longS=1024,
)
A.update({k: type(A[k])(float(v)) for k, v in (x.split("=") for x in sys.argv[5:])})
P = C.NS(**A)
dev = "cuda" if torch.cuda.is_available() else "cpu"
T00 = time.time()
torch.manual_seed(P.seed)
bf = torch.bfloat16
KINDS, MIX = ("code", "prose", "chat"), (0.5, 0.2, 0.3)


def load(kind):
    p = f"{DATA}/{kind}.train.u16"
    raw = open(p, "rb").read() if os.path.exists(p) else lzma.open(p + ".xz").read()
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint16).astype(np.int32)).to(dev)


with ThreadPoolExecutor(3) as ex:
    D = dict(zip(KINDS, ex.map(load, KINDS)))
m, _ = C.load_target(TGT, dev)
bias = [L.bias.clone() for L in m.layers if L.moe]
m.to(bf)
for L, b in zip([L for L in m.layers if L.moe], bias):
    L.bias = b
dc = C.draft_config()
d = C.Drafter(dc).to(dev)
B_, LAST = dc.block_size, max(dc.target_layer_ids)
print(
    "loaded %.1fs, drafter %.2fM"
    % (time.time() - T00, sum(p.numel() for p in d.parameters()) / 1e6),
    flush=True,
)


def windows(S, B):
    n = [max(1, round(B * f)) for f in MIX]
    n[0] = B - n[1] - n[2]
    out = []
    for k, b in zip(KINDS, n):
        out.append(
            D[k][
                torch.randint(0, D[k].numel() - S - 1, (b, 1), device=dev)
                + torch.arange(S, device=dev)[None]
            ]
        )
    return torch.cat(out).long()


# ---------------------------------------------------------------- rollouts: static buffers, one CUDA graph per decode step
class Rollout:
    def __init__(self, B, S):
        self.B, self.S = B, S
        self.cache = m.new_cache(B, S, bf, dev)
        self.tok = torch.zeros(B, 1, dtype=torch.long, device=dev)
        self.pos = torch.zeros(1, dtype=torch.long, device=dev)
        self.seq = torch.zeros(B, S, dtype=torch.long, device=dev)
        self.ar = torch.arange(S, device=dev)
        self.hot = (torch.arange(B, device=dev) % 3 == 1).float()[
            :, None
        ]  # a third of the rows is sampled, the rest greedy
        self.graph = None

    def pick(self, lg):
        z = lg.float() / (1 + self.hot * (P.temp - 1))
        return (z - self.hot * torch.log(-torch.log(torch.rand_like(z).clamp(1e-9, 1 - 1e-7)))).argmax(
            -1
        )

    def one(self):
        ok = (self.ar[None] <= self.pos[:, None]).expand(self.B, self.S)
        x, _, _ = m.rows(self.tok, self.pos[None].expand(self.B, 1), self.cache, ok, slot=self.pos)
        t = self.pick(m.logits(x[:, 0]))
        self.pos.add_(1)
        self.tok.copy_(t[:, None])
        self.seq.index_copy_(1, self.pos, t[:, None])

    @torch.no_grad()
    def run(self, Pn):
        self.seq.zero_()
        self.seq[:, :Pn] = windows(Pn, self.B)
        for j in range(0, self.B, 512):
            tr = []
            x, _ = m(self.seq[j : j + 512, :Pn], trace=tr)
            k = min(512, self.B - j)
            for c, r in zip(self.cache, tr[1:]):
                c[j : j + k, :Pn] = torch.cat((r["lat"], r["kp"]), -1).view(k, Pn, -1)
        self.tok.copy_(self.seq[:, Pn - 1 : Pn])
        self.pos.fill_(Pn - 1)  # the first step recomputes the last prompt row
        if dev == "cuda" and self.graph is None:
            st = torch.cuda.Stream()
            st.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(st):
                for _ in range(2):
                    self.one()
            torch.cuda.current_stream().wait_stream(st)
            self.tok.copy_(self.seq[:, Pn - 1 : Pn])
            self.pos.fill_(Pn - 1)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.one()
            self.tok.copy_(self.seq[:, Pn - 1 : Pn])
            self.pos.fill_(Pn - 1)
        for _ in range(self.S - Pn):
            (self.graph.replay() if self.graph else self.one())
        return self.seq.to(torch.int16), torch.full((self.B,), Pn, device=dev)


pool, poolP = [], []
gen_s = 0.0
gen_tok = 0


def generate(ro, secs, lens=(48, 96, 160, 240)):
    global gen_s, gen_tok
    t = time.time()
    i = 0
    while time.time() - t < secs:
        a, b = ro.run(min(lens[(i + len(pool)) % len(lens)], P.S // 2))
        pool.append(a)
        poolP.append(b)
        gen_tok += int(P.rb * (P.S - int(b[0])))
        i += 1
        if dev == "cuda":
            torch.cuda.synchronize()
        if dev == "cpu" and i >= 1:
            break
    gen_s += time.time() - t
    seqs, ps = torch.cat(pool), torch.cat(poolP)
    print(
        f"pool {seqs.shape[0]} sequences, {gen_tok/1e6:.1f}M generated tokens, {gen_s:.1f}s, greedy sample: {seqs[0, :60].tolist()}",
        flush=True,
    )
    return seqs, ps


# ---------------------------------------------------------------- training step
slotw = torch.exp(-torch.arange(B_ - 1, device=dev).float() / P.gamma)


def d_loss(x, head, y):
    lg = C.lin(x, head).float()
    return F.cross_entropy(lg, y, reduction="none"), lg.argmax(-1) == y


if P.compile and dev == "cuda":
    cp = lambda f: torch.compile(f, dynamic=False)
    C.FN.pre, C.FN.dense, C.FN.moe = cp(C.pre_attn_t), cp(C.post_dense_t), cp(C.post_moe_t)
    C.DFN.ctx, C.DFN.kv, C.DFN.pre, C.DFN.post = (
        cp(C.d_ctx_t),
        cp(C.d_kv_t),
        cp(C.d_pre_t),
        cp(C.d_post_t),
    )
    d_loss = cp(d_loss)
mu, ad = [], [d.norm, d.hidden_norm]
for L in d.layers:
    for n, p in L.named_parameters():
        (ad.append(p) if p.dim() == 1 else mu.append((p, tuple(p.shape))))
mu.append((d.fc, tuple(d.fc.shape)))
muon = C.Muon(mu)
adam = torch.optim.AdamW(ad, lr=0.0, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)


def lrf(f):
    return min(f / P.warm, 1.0) if f < P.flat else max((1 - f) / (1 - P.flat), 0.0) * 0.99 + 0.01


def step(f, ids, lo, NA, upd=True):
    """ids [B, S]; lo [B] lowest anchor position; NA anchors per sequence."""
    B, S = ids.shape
    Q = NA * B_
    with torch.no_grad():
        cap = {i: None for i in dc.target_layer_ids}
        m(ids, capture=cap, upto=LAST)
        feats = torch.cat([cap[i] for i in dc.target_layer_ids], -1)
        lo = lo.clamp_max(S - B_ - 1)
        p = (
            lo[:, None]
            + (torch.rand(B, NA, device=dev) * (S - B_ + 1 - lo)[:, None].float()).long()
        )  # anchor positions, p + 7 <= S - 1
        pos = (p[..., None] + torch.arange(B_, device=dev)).view(B, Q)
        blk = torch.full((B, NA, B_), dc.mask_token_id, device=dev)
        blk[..., 0] = ids.gather(1, p)
        y = ids.gather(1, pos).view(B, NA, B_)[..., 1:].reshape(-1)
        ctxok = (
            torch.arange(S, device=dev)[None, None] < p.repeat_interleave(B_, 1)[..., None]
        )  # [B, Q, S]: strictly before the anchor
        own = (torch.arange(Q, device=dev) // B_)[:, None] == (torch.arange(Q, device=dev) // B_)[
            None
        ]
        mask = torch.cat((ctxok, own[None].expand(B, Q, Q)), -1)
        emb = m.embed[blk.view(B, Q)]
    kv = [
        (k.view(B, S, *k.shape[1:]), v.view(B, S, *v.shape[1:]))
        for k, v in d.context(feats, torch.arange(S, device=dev).repeat(B))
    ]
    x = d.block(emb, pos, kv, mask)
    x = x.view(B, NA, B_, -1)[:, :, 1:].reshape(-1, dc.hidden_size)
    l, hit = d_loss(x, m.head, y)
    lw = l.view(-1, B_ - 1)
    (lw * slotw).mean().backward()
    if upd:
        torch.nn.utils.clip_grad_norm_(ad, 1.0)
        s = lrf(f)
        for g in adam.param_groups:
            g["lr"] = P.adam * s
        muon.step(P.lr * s, P.wd, 0.85 + 0.1 * min(1.0, f / 0.05))
        adam.step()
    for q in d.parameters():
        q.grad = None
    h = hit.view(-1, B_ - 1).float()
    return torch.stack(
        [lw.detach().mean(), h[:, 0].mean(), h[:, 3].mean(), h.cumprod(1).sum(1).mean() + 1]
    )


sync = torch.cuda.synchronize if dev == "cuda" else (lambda: None)


def corpus_batch():
    B = P.T // P.longS
    return windows(P.longS, B), torch.full((B,), 16, device=dev), P.anchors * P.longS // P.S


t = time.time()
ids, lo, na = corpus_batch()
step(0, ids, lo, na, False)
sync()
print("warm %.1fs" % (time.time() - t), flush=True)
t0 = time.time()
i = 0
acc = []
log = []
seqs = None
stage = 0
tl = t0
ro = None
while True:
    f = (time.time() - t0) / SECS
    if f >= 1 or i >= P.steps:
        break
    if (stage == 0 and f >= P.corpus) or (stage == 1 and f >= 0.62):
        if ro is None:
            FN0 = dict(vars(C.FN))
            ro = Rollout(P.rb, P.S)
        C.FN.pre, C.FN.dense, C.FN.moe = (
            C.pre_attn_t,
            C.post_dense_t,
            C.post_moe_t,
        )  # prefill of the rollouts runs uncompiled
        seqs, sp = generate(ro, SECS * (P.pool1 if stage == 0 else P.pool2))
        vars(C.FN).update(FN0)
        stage += 1
        tl = time.time()
        if stage == 2:
            ro = None
    if seqs is None or (i % 100) < 100 * P.mixc:
        ids, lo, na = corpus_batch()
        src = "c"
    else:
        B = P.T // P.S
        j = torch.randint(0, seqs.shape[0], (B,), device=dev)
        ids, lo, na, src = seqs[j].long(), sp[j], P.anchors, "r"
    acc.append((src, step(f, ids, lo, na)))
    i += 1
    if i % 4 == 0:
        sync()
    if i % 100 == 0:
        now = time.time()
        row = dict(step=i, s=round(now - t0, 1), ms=round((now - tl) * 10, 1))
        tl = now
        for k in "cr":
            v = [r for q, r in acc[-100:] if q == k]
            if v:
                row[{"c": "corpus", "r": "rollout"}[k]] = [
                    round(z, 4) for z in torch.stack(v).mean(0).tolist()
                ]  # loss, top-1 slot 1, top-1 slot 4, mean tau
        log.append(row)
        if i % 200 == 0:
            print(row, flush=True)
sync()
train_s = time.time() - t0
print(f"drafter trained {i} steps in {train_s:.1f}s", flush=True)
C.export_draft(d, OUT)
json.dump(
    dict(
        args=A,
        seconds=train_s,
        steps=i,
        blocks=i * P.T // P.S * P.anchors,
        generated_tokens=gen_tok,
        generation_seconds=gen_s,
        sequences=0 if seqs is None else int(seqs.shape[0]),
        log=log,
    ),
    open(OUT + "/train_log.json", "w"),
    indent=1,
)
print("done %.1fs" % (time.time() - T00), flush=True)
