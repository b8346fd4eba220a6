"""Reference speculative decoding, batched: prefill, plain greedy decoding, DFlash rounds with a chain or a DDTree.

Every forward is the cached weight-absorbed one; rejected rows are never written to the cache.
"""

import heapq
import torch
import common as C


def ddtree_heap(lp, N, K=None):
    """Best-first tree of N nodes below the root. lp [L, V] log-probabilities. Returns tokens, parents (root = 0), depths in pop order."""
    L, V = lp.shape
    K = min(K or N, V)
    val, tok = lp.topk(K, -1)
    val, tok = val.tolist(), tok.tolist()
    heap = [(-val[0][0], (0,), 0, 1, 0)]
    toks, par, dep, sc = [], [], [], []
    while heap and len(toks) < N:
        s, rk, p, d, r = heapq.heappop(heap)
        toks.append(tok[d - 1][r])
        par.append(p)
        dep.append(d)
        sc.append(-s)
        me = len(toks)
        if r + 1 < K:
            heapq.heappush(
                heap, (s + val[d - 1][r] - val[d - 1][r + 1], rk[:-1] + (r + 1,), p, d, r + 1)
            )
        if d < L:
            heapq.heappush(heap, (s - val[d][0], rk + (0,), me, d + 1, 0))
    return toks, par, dep, sc


def ddtree_batch(lp, N):
    """The same node set for a batch, built level by level; order is by depth. lp [B, L, V] -> tokens, parents, depths [B, N]."""
    B, L, V = lp.shape
    K = min(N, V)
    val, tok = lp.double().topk(K, -1)
    dev = lp.device
    sc, tk, pa, de, off = (
        [val[:, 0]],
        [tok[:, 0]],
        [torch.full((B, K), -1, device=dev)],
        [torch.ones(B, K, dtype=torch.long, device=dev)],
        [0, K],
    )
    for d in range(1, L):
        c = (sc[-1][:, :, None] + val[:, d][:, None]).flatten(1)
        v, i = c.topk(min(N, c.shape[1]), -1)
        sc.append(v)
        tk.append(tok[:, d].gather(1, i % K))
        pa.append(i // K + off[-2])
        de.append(torch.full_like(i, d + 1))
        off.append(off[-1] + i.shape[1])
    sc, tk, pa, de = (torch.cat(z, 1) for z in (sc, tk, pa, de))
    sel = (
        (sc - 1e-9 * de).topk(N, -1)[1].sort(-1)[0]
    )  # the small depth term keeps parents before children on exact ties
    inv = torch.full((B, sc.shape[1] + 1), -1, device=dev).scatter(
        1, sel, torch.arange(1, N + 1, device=dev).expand(B, N)
    )
    inv[:, -1] = 0
    p = inv.gather(1, pa.gather(1, sel) % (sc.shape[1] + 1))  # parent -1 -> last column -> root 0
    assert (p >= 0).all()
    return tk.gather(1, sel), p, de.gather(1, sel)


def visible(parent):
    """parent [B, n] with parent[:, 0] = -1 -> [B, n, n] bool, row i sees itself and its ancestors."""
    B, n = parent.shape
    vis = torch.eye(n, dtype=torch.bool, device=parent.device).repeat(B, 1, 1)
    cur = torch.arange(n, device=parent.device).expand(B, n)
    for _ in range(n):
        cur = torch.where(cur > 0, parent.gather(1, cur), torch.zeros_like(cur))
        vis.scatter_(2, cur[:, :, None], True)
        if not (cur > 0).any():
            break
    return vis


def logits(m, x):
    return torch.nn.functional.linear(
        C.rms(x, m.norm, m.c.rms_norm_eps).float(), m.head.float()
    )  # fp32 logits, also for bf16 activations


def gumbel(B, n, V, seed, dev):
    g = torch.Generator(device=dev)
    g.manual_seed(seed)
    return -torch.log(
        -torch.log(torch.rand(B, n, V, device=dev, generator=g).clamp(1e-9, 1 - 1e-7))
    )


class Engine:
    """temp > 0: the token at absolute position p of request b is argmax(logits / temp + noise[b, p]); the noise belongs to the
    position, not to the row, so sampled output does not depend on whether or how it was drafted."""

    def __init__(self, m, d, dtype=torch.float32, temp=0.0, seed=0):
        self.m, self.d, self.dt, self.T, self.seed = m, d, dtype, temp, seed
        self.dev = m.embed.device
        self.ids = d.c.target_layer_ids if d else []

    def pick(self, lg, pos):  # lg [B, n, V], pos [B, n] = absolute position of the token to be chosen
        if not self.T:
            return lg.argmax(-1)
        k = (pos - self.n0[:, None]).clamp_max(self.G.shape[1] - 1)
        return (lg / self.T + self.G[torch.arange(lg.shape[0], device=self.dev)[:, None], k]).argmax(-1)

    @torch.no_grad()
    def prefill(self, prompts, room):
        m, dev = self.m, self.dev
        B = len(prompts)
        n = [len(p) for p in prompts]
        P = max(n)
        self.P = n
        ids = torch.full((B, P), C.SPECIAL["pad"], device=dev)
        for i, p in enumerate(prompts):
            ids[i, : n[i]] = torch.tensor(p, device=dev)
        self.S = P + room
        self.cache = m.new_cache(B, self.S, self.dt, dev)
        self.start = torch.tensor(n, device=dev)
        tr = []
        x, _ = m(ids, dtype=self.dt, trace=tr)
        x = x.view(B, P, -1)
        for l, r in enumerate(tr[1:]):
            self.cache[l][:, :P] = torch.cat((r["lat"], r["kp"]), -1).view(B, P, -1)
        lg = logits(m, x[torch.arange(B, device=dev), self.start - 1].contiguous())
        self.n0 = self.start
        if self.T:
            self.G = gumbel(B, room, lg.shape[-1], self.seed, dev)
        self.anchor = self.pick(lg[:, None], self.start[:, None])[:, 0]
        self.first_logits = lg
        if self.d:
            f = torch.cat([tr[1 + l]["h"] for l in self.ids], -1)
            pos = torch.arange(P, device=dev).repeat(B)
            c = self.d.c
            self.dc = [
                (torch.zeros(B, self.S, c.num_key_value_heads, c.head_dim, dtype=self.dt, device=dev),)
                * 2
                for _ in self.d.layers
            ]
            self.dc = [(a.clone(), b.clone()) for a, b in self.dc]
            for (a, b), (k, v) in zip(self.dc, self.d.context(f, pos)):
                a[:, :P] = k.view(B, P, *k.shape[1:])
                b[:, :P] = v.view(B, P, *v.shape[1:])
            self.feats = f.view(B, P, -1)

    def ok(self):
        return torch.arange(self.S, device=self.dev)[None] < self.start[:, None]

    @torch.no_grad()
    def draft(self):
        d = self.d
        B = self.anchor.numel()
        n = d.c.block_size
        ids = torch.full((B, n), d.c.mask_token_id, device=self.dev)
        ids[:, 0] = self.anchor
        pos = self.start[:, None] + torch.arange(n, device=self.dev)
        mask = torch.cat(
            (
                self.ok()[:, None].expand(B, n, self.S),
                torch.ones(B, n, n, dtype=torch.bool, device=self.dev),
            ),
            -1,
        )
        y = d.block(self.m.embed[ids].to(self.dt), pos, self.dc, mask)
        return C.lin(y[:, 1:], self.m.head).float()

    @torch.no_grad()
    def verify(self, tok, par, dep, live=None):
        """tok, dep [B, N], par [B, N] (root 0). Runs the target over root + nodes, walks, commits. Returns accepted [B, L] (-1 padded), bonus, choices."""
        B, N = tok.shape
        dev = self.dev
        L = int(dep.max())
        z = torch.zeros(B, 1, dtype=torch.long, device=dev)
        ids = torch.cat((self.anchor[:, None], tok), 1)
        depth = torch.cat((z, dep), 1)
        parent = torch.cat((z - 1, par), 1)
        pos = self.start[:, None] + depth
        x, new, cap = self.m.rows(ids, pos, self.cache, self.ok(), visible(parent), feats=self.ids)
        lg = logits(self.m, x)
        choice = self.pick(lg, pos + 1)
        self.node_logits = lg
        cur = torch.zeros(B, dtype=torch.long, device=dev)
        alive = torch.ones(B, dtype=torch.bool, device=dev) if live is None else live.clone()
        path = [cur]
        acc = []
        for _ in range(L):
            hit = (parent == cur[:, None]) & (ids == choice.gather(1, cur[:, None]))
            alive = alive & hit.any(1)
            cur = torch.where(alive, hit.float().argmax(1), cur)
            path.append(torch.where(alive, cur, torch.full_like(cur, -1)))
            acc.append(
                torch.where(alive, ids.gather(1, cur[:, None])[:, 0], torch.full_like(cur, -1))
            )
        bonus = choice.gather(1, cur[:, None])[:, 0]
        path = torch.stack(path, 1)
        acc = torch.stack(acc, 1)
        n = (path >= 0).sum(1)
        if live is not None:
            n = torch.where(live, n, torch.zeros_like(n))
        good = torch.arange(path.shape[1], device=dev)[None] < n[:, None]
        b, k = good.nonzero(as_tuple=True)
        row = path[b, k]
        slot = self.start[b] + k
        for c, r in zip(self.cache, new):
            c[b, slot] = r[b, row]
        if self.d:
            f = torch.cat(cap, -1)[b, row]
            for (a, v_), (kk, vv) in zip(self.dc, self.d.context(f, slot)):
                a[b, slot] = kk
                v_[b, slot] = vv
        self.start = self.start + n
        self.anchor = torch.where(n > 0, bonus, self.anchor)
        return acc, bonus, choice, path


@torch.no_grad()
def greedy(m, prompts, n, dtype=torch.float32, temp=0.0, seed=0):
    """Plain decoding (greedy for temp 0): tokens [B, n] and the gap between the two largest logits at each step."""
    e = Engine(m, None, dtype, temp, seed)
    e.prefill(prompts, n + 10)
    B = len(prompts)
    out, marg = [e.anchor], []
    top = e.first_logits.topk(2, -1)[0]
    marg.append(top[:, 0] - top[:, 1])
    none = torch.zeros(B, 1, 1, dtype=torch.bool, device=e.dev) | True
    for _ in range(n - 1):
        x, new, _ = m.rows(e.anchor[:, None], e.start[:, None], e.cache, e.ok(), none)
        for c, r in zip(e.cache, new):
            c[torch.arange(B, device=e.dev), e.start] = r[:, 0]
        lg = logits(m, x[:, 0])
        top = lg.topk(2, -1)[0]
        e.start = e.start + 1
        e.anchor = e.pick(lg[:, None], e.start[:, None])[:, 0]
        out.append(e.anchor)
        marg.append(top[:, 0] - top[:, 1])
    return torch.stack(out, 1), torch.stack(marg, 1)


def cut(t):
    for i, x in enumerate(t):
        if x in C.STOP:
            return t[: i + 1]
    return t


@torch.no_grad()
def speculate(m, d, prompts, n, mode, dtype=torch.float32, temp=0.0, seed=0, trace=None):
    """mode: 'chain' or an int tree budget. Returns per prompt: emitted tokens (first token included), rounds, accepted-per-round histogram."""
    e = Engine(m, d, dtype, temp, seed)
    L = d.c.block_size - 1
    N = L if mode == "chain" else mode
    e.prefill(prompts, n + 10)
    B = len(prompts)
    out = [[t] for t in e.anchor.tolist()]
    rounds = [0] * B
    hist = [0] * (L + 1)
    live = torch.tensor([o[0] not in C.STOP for o in out], device=e.dev)
    ch = torch.arange(L, device=e.dev).expand(B, L)
    while live.any():
        lp = e.draft().log_softmax(-1)
        tok, par, dep = (lp.argmax(-1), ch, ch + 1) if mode == "chain" else ddtree_batch(lp, N)
        acc, bonus, _, _ = e.verify(tok, par, dep, live)
        acc, bonus, lv = acc.tolist(), bonus.tolist(), live.tolist()
        for b in range(B):
            if not lv[b]:
                continue
            new = [t for t in acc[b] if t >= 0] + [bonus[b]]
            hist[len(new) - 1] += 1
            if trace is not None:
                trace.append(len(new) - 1)
            new = cut(new)
            out[b] += new
            rounds[b] += 1
            if new[-1] in C.STOP or len(out[b]) >= n:
                lv[b] = False
        live = torch.tensor(lv, device=e.dev)
    return out, rounds, hist


def acceptance(m, d, sets, n, modes, dtype=torch.float32, ref=None, temp=0.0, seed=0):
    """sets {kind: prompts}. Returns table[kind][mode] = tau and the comparison with plain greedy decoding."""
    allp = [p for k in sets for p in sets[k]]
    kind = [k for k in sets for _ in sets[k]]
    g, marg = greedy(m, allp, n, dtype, temp, seed) if ref is None else ref
    ref = (g, marg)
    g = g.tolist()
    marg = marg.tolist()
    table = {k: {} for k in sets}
    cmp = {}
    for mode in modes:
        out, rounds, hist = speculate(m, d, allp, n, mode, dtype, temp, seed)
        for k in sets:
            idx = [i for i in range(len(allp)) if kind[i] == k and rounds[i]]
            table[k][str(mode)] = sum(len(out[i]) - 1 for i in idx) / sum(rounds[i] for i in idx)
        same, diffs = 0, []
        for i in range(len(allp)):
            a, b = cut(g[i])[:n], cut(out[i])[:n]
            if a == b:
                same += 1
            else:
                j = next(
                    (t for t in range(min(len(a), len(b))) if a[t] != b[t]), min(len(a), len(b))
                )
                diffs.append(round(marg[i][min(j, len(marg[i]) - 1)], 6))
        cmp[str(mode)] = dict(
            equal=same, different=len(diffs), margin_at_first_difference=diffs, hist=hist
        )
    return table, cmp, ref
