"""The target: DeepSeek-V3 / Kimi-K2 (multi-head latent attention, sigmoid-routed experts).

Target.forward is the expanded form for training and prompts; Target.rows is the cached, weight-absorbed form for
decoding and tree verification. The pieces of a layer are plain functions of tensors (…_t), so that training can
compile them. Short names: ln1/ln2 the two norms of a layer, qn/kn the inner norms of q and of the latent, sg/su/sd
gate, up and down of the dense or shared MLP, wgu/wd those of all experts.
"""

from types import SimpleNamespace as NS

import torch
import torch.nn as nn
import torch.nn.functional as F

from int4 import FQ
from layers import experts, lin, mscale, rms, rope_interleaved, rope_table, route, sdpa


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        H, h = c.hidden_size, c.num_attention_heads
        P = lambda *sh, std=None: nn.Parameter(
            torch.randn(*sh) * (std if std is not None else sh[-1] ** -0.5 * 0.7)
        )
        one = lambda n: nn.Parameter(torch.ones(n))
        self.ln1, self.ln2, self.qn, self.kn = one(H), one(H), one(c.q_lora_rank), one(c.kv_lora_rank)
        self.q_a, self.q_b = P(c.q_lora_rank, H), P(
            h * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.q_lora_rank
        )
        self.kv_a, self.kv_b = P(c.kv_lora_rank + c.qk_rope_head_dim, H), P(
            h * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank
        )
        self.o = P(H, h * c.v_head_dim, std=0.0)
        self.moe = i >= c.first_k_dense_replace
        if self.moe:
            I = c.moe_intermediate_size
            self.gate = P(c.n_routed_experts, H, std=0.02)
            self.register_buffer("bias", torch.zeros(c.n_routed_experts))
            self.wgu, self.wd = P(c.n_routed_experts, 2 * I, H), P(c.n_routed_experts, H, I, std=0.0)
            self.sg, self.su, self.sd = (
                P(I * c.n_shared_experts, H),
                P(I * c.n_shared_experts, H),
                P(H, I * c.n_shared_experts, std=0.0),
            )
        else:
            I = c.intermediate_size
            self.sg, self.su, self.sd = P(I, H), P(I, H), P(H, I, std=0.0)
        self.c = c


def mla_qkv_t(x, cos, sin, ln1, q_a, qn_, q_b, kv_a, kn_, h, dn, dr, R, eps):
    hx = rms(x, ln1, eps)
    q = lin(rms(lin(hx, q_a), qn_, eps), q_b).view(-1, h, dn + dr)
    qn, qp = q.split([dn, dr], -1)
    lat, kp = lin(hx, kv_a).split([R, dr], -1)
    return (
        qn,
        rope_interleaved(qp, cos[:, None], sin[:, None]),
        rms(lat, kn_, eps),
        rope_interleaved(kp, cos, sin),
    )


def mla_qkv(L, x, cos, sin):
    """x [T, H] (flattened tokens), cos/sin [T, rope/2] -> q_nope, q_pe [T, h, .], c [T, R] (normed latent), k_pe [T, rope]."""
    c = L.c
    return mla_qkv_t(
        x,
        cos,
        sin,
        L.ln1,
        L.q_a,
        L.qn,
        L.q_b,
        L.kv_a,
        L.kn,
        c.num_attention_heads,
        c.qk_nope_head_dim,
        c.qk_rope_head_dim,
        c.kv_lora_rank,
        c.rms_norm_eps,
    )


def pre_attn_t(x, cos, sin, ln1, q_a, qn_, q_b, kv_a, kn_, kv_b, h, dn, dr, dv, R, eps):
    qn, qp, lat, kp = mla_qkv_t(x, cos, sin, ln1, q_a, qn_, q_b, kv_a, kn_, h, dn, dr, R, eps)
    kn, v = lin(lat, kv_b).view(-1, h, dn + dv).split([dn, dv], -1)
    q = torch.cat((qn, qp), -1)
    k = torch.cat((kn, kp[:, None].expand(-1, h, -1)), -1)
    return q, k, F.pad(v, (0, dn + dr - dv)), lat, kp


def post_dense_t(x, o, wo, ln2, sg, su, sd, eps):
    x = x + lin(o, wo)
    h = rms(x, ln2, eps)
    return x + lin(F.silu(lin(h, sg)) * lin(h, su), sd)


def post_moe_t(x, o, wo, ln2, gate, bias, wgu, wd, sg, su, sd, k, scale, eps):
    x = x + lin(o, wo)
    h = rms(x, ln2, eps)
    idx, w = route(h, gate, bias, k, scale)
    y, cnt = experts(h, idx, w, wgu, wd)
    return x + (y + lin(F.silu(lin(h, sg)) * lin(h, su), sd)), cnt, idx, w


FN = NS(
    pre=pre_attn_t, dense=post_dense_t, moe=post_moe_t
)  # train_target.py replaces these by compiled versions


def pre_attn(L, x, cos, sin):  # expanded form for training / prefill
    c = L.c
    return FN.pre(
        x,
        cos,
        sin,
        L.ln1,
        L.q_a,
        L.qn,
        L.q_b,
        L.kv_a,
        L.kn,
        L.kv_b,
        c.num_attention_heads,
        c.qk_nope_head_dim,
        c.qk_rope_head_dim,
        c.v_head_dim,
        c.kv_lora_rank,
        c.rms_norm_eps,
    )


def post_dense(L, x, o, fn=None):
    return (fn or FN).dense(x, o, L.o, L.ln2, L.sg, L.su, L.sd, L.c.rms_norm_eps)


def post_moe(L, x, o, wgu, wd, fn=None):
    c = L.c
    return (fn or FN).moe(
        x,
        o,
        L.o,
        L.ln2,
        L.gate,
        L.bias,
        wgu,
        wd,
        L.sg,
        L.su,
        L.sd,
        c.num_experts_per_tok,
        c.routed_scaling_factor,
        c.rms_norm_eps,
    )


EAGER = NS(pre=pre_attn_t, dense=post_dense_t, moe=post_moe_t)


class Target(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.25)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(c.hidden_size))
        self.head = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.02)
        self.scale = (c.qk_nope_head_dim + c.qk_rope_head_dim) ** -0.5 * mscale(
            c.rope_scaling["factor"], c.rope_scaling["mscale_all_dim"]
        ) ** 2
        self.rope = None

    def tables(self, dev):
        if self.rope is None or self.rope[0].device != dev:
            self.rope = rope_table(
                self.c.qk_rope_head_dim,
                self.c.rope_theta,
                self.c.rope_scaling,
                self.c.max_position_embeddings,
                dev,
            )
        return self.rope

    def experts_w(self, L, dtype, quantise):
        return (FQ[0](L.wgu), FQ[0](L.wd)) if quantise else (L.wgu, L.wd)

    def forward(self, ids, dtype=torch.bfloat16, quantise=False, capture=None, trace=None, upto=None):
        """Full causal forward. ids [B, S] -> final residual stream [B*S, H] and the per-layer expert counts."""
        B, S = ids.shape
        c = self.c
        cos, sin = self.tables(ids.device)
        cos, sin = cos[:S].repeat(B, 1), sin[:S].repeat(B, 1)
        x = F.embedding(ids.reshape(-1), self.embed).to(dtype)
        cnts = []
        if trace is not None:
            trace.append(dict(h=x))
        for i, L in enumerate(self.layers):
            q, k, v, lat, kp = pre_attn(L, x, cos, sin)
            t = lambda z: z.view(B, S, *z.shape[1:]).transpose(1, 2)
            o = (
                sdpa(t(q), t(k), t(v), self.scale, causal=True)[..., : c.v_head_dim]
                .transpose(1, 2)
                .reshape(B * S, -1)
            )
            r = dict(lat=lat, kp=kp)
            if L.moe:
                wgu, wd = self.experts_w(L, dtype, quantise)
                x_in = x
                x, n, idx, w = post_moe(L, x, o, wgu.to(dtype), wd.to(dtype))
                cnts.append(n)
                r.update(idx=idx, w=w)
                if (
                    trace is not None
                ):  # gap between the last chosen and the first rejected expert, to recognise near ties
                    h = rms(x_in + lin(o, L.o), L.ln2, c.rms_norm_eps)
                    t = (torch.sigmoid(F.linear(h.float(), L.gate.float())) + L.bias).topk(
                        c.num_experts_per_tok + 1, -1
                    )[0]
                    r["gap"] = t[:, -2] - t[:, -1]
            else:
                x = post_dense(L, x, o)
            r["h"] = x
            if trace is not None:
                trace.append(r)
            if capture is not None and i in capture:
                capture[i] = x
            if upto == i:
                break
        return x, cnts

    def logits(self, x):
        return lin(rms(x, self.norm, self.c.rms_norm_eps), self.head)

    # ---- cached, weight-absorbed forward used for decoding and for tree verification
    def new_cache(self, B, n, dtype, dev):
        w = self.c.kv_lora_rank + self.c.qk_rope_head_dim
        return [torch.zeros(B, n, w, dtype=dtype, device=dev) for _ in self.layers]

    def rows(self, ids, pos, cache, ok, mask=None, feats=None, dtype=None, slot=None):
        """ids, pos [B, n]; ok [B, Smax] bool = committed cache slots; mask [B, n, n] bool among the new rows (self included).

        Returns final residual [B, n, H], the new latent rows per layer and captured features.  The rows are not written to the
        cache, except with slot (a 1-element index tensor, n = 1): then they are, and ok must already include that slot.
        """
        B, n = ids.shape
        c = self.c
        R = c.kv_lora_rank
        h = c.num_attention_heads
        cos, sin = self.tables(ids.device)
        cos, sin = cos[pos.reshape(-1)], sin[pos.reshape(-1)]
        x = F.embedding(ids.reshape(-1), self.embed).to(dtype or cache[0].dtype)
        new, cap = [], []
        m = (
            ok[:, None, None]
            if slot is not None
            else torch.cat((ok[:, None].expand(B, n, ok.shape[1]), mask), -1)[:, None]
        )  # [B, 1, n, Smax + n]
        for i, L in enumerate(self.layers):
            qn, qp, lat, kp = mla_qkv(L, x, cos, sin)
            row = torch.cat((lat, kp), -1).view(B, n, -1)
            new.append(row)
            kvb = L.kv_b.to(x.dtype).view(h, c.qk_nope_head_dim + c.v_head_dim, R)
            ql = torch.einsum("thd,hdr->thr", qn, kvb[:, : c.qk_nope_head_dim])
            q = torch.cat((ql, qp), -1).view(B, n * h, R + c.qk_rope_head_dim)
            keys = (
                cache[i].index_copy_(1, slot, row)
                if slot is not None
                else torch.cat((cache[i], row), 1)
            )  # [B, Smax (+ n), R + rope]
            a = (
                torch.bmm(q, keys.transpose(1, 2)).view(B, n, h, -1).transpose(1, 2).float()
                * self.scale
            )
            p = (
                a.masked_fill(~m, float("-inf"))
                .softmax(-1)
                .to(x.dtype)
                .transpose(1, 2)
                .reshape(B, n * h, -1)
            )
            ol = torch.bmm(p, keys[..., :R]).view(B * n, h, R)
            o = torch.einsum("thr,hvr->thv", ol, kvb[:, c.qk_nope_head_dim :]).reshape(B * n, -1)
            x = post_moe(L, x, o, L.wgu, L.wd, EAGER)[0] if L.moe else post_dense(L, x, o, EAGER)
            if feats is not None and i in feats:
                cap.append(x.view(B, n, -1))
        return x.view(B, n, -1), new, cap
