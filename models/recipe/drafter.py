"""The DFlash drafter: a small Qwen3-style stack that fills a block [anchor, mask x 7] in one bidirectional pass.

Its context is K/V projected from the target's hidden states; embedding and lm_head are the target's.
"""

from types import SimpleNamespace as NS

import torch
import torch.nn as nn
import torch.nn.functional as F

from layers import lin, rms, rope_half, rope_table, sdpa


class DLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        H, D = c.hidden_size, c.head_dim
        P = lambda o, i, z=False: nn.Parameter(torch.randn(o, i) * (0.0 if z else i**-0.5 * 0.7))
        one = lambda n: nn.Parameter(torch.ones(n))
        self.ln1, self.ln2, self.qn, self.kn = one(H), one(H), one(D), one(D)
        self.q, self.k, self.v, self.o = (
            P(c.num_attention_heads * D, H),
            P(c.num_key_value_heads * D, H),
            P(c.num_key_value_heads * D, H),
            P(H, c.num_attention_heads * D, True),
        )
        self.g, self.u, self.d = (
            P(c.intermediate_size, H),
            P(c.intermediate_size, H),
            P(H, c.intermediate_size, True),
        )
        self.c = c


def d_kv_t(h, cos, sin, wk, wv, kn, kv, D, eps):  # h [T, H] -> k [T, kv, D] (normed, roped), v
    k = lin(h, wk).view(-1, kv, D)
    v = lin(h, wv).view(-1, kv, D)
    return rope_half(rms(k, kn, eps), cos[:, None], sin[:, None]), v


def d_pre_t(x, cos, sin, ln1, wq, wk, wv, qn, kn, nq, kv, D, eps):
    h = rms(x, ln1, eps)
    q = rms(lin(h, wq).view(-1, nq, D), qn, eps)
    k, v = d_kv_t(h, cos, sin, wk, wv, kn, kv, D, eps)
    return rope_half(q, cos[:, None], sin[:, None]), k, v


def d_post_t(x, o, wo, ln2, g, u, d, eps):
    x = x + lin(o, wo)
    h = rms(x, ln2, eps)
    return x + lin(F.silu(lin(h, g)) * lin(h, u), d)


def d_ctx_t(f, W, gam, eps):
    return rms(lin(f, W), gam, eps)


DFN = NS(kv=d_kv_t, pre=d_pre_t, post=d_post_t, ctx=d_ctx_t)


def d_kv(L, h, cos, sin):
    return DFN.kv(
        h, cos, sin, L.k, L.v, L.kn, L.c.num_key_value_heads, L.c.head_dim, L.c.rms_norm_eps
    )


def d_pre(L, x, cos, sin):
    return DFN.pre(
        x,
        cos,
        sin,
        L.ln1,
        L.q,
        L.k,
        L.v,
        L.qn,
        L.kn,
        L.c.num_attention_heads,
        L.c.num_key_value_heads,
        L.c.head_dim,
        L.c.rms_norm_eps,
    )


def d_post(L, x, o):
    return DFN.post(x, o, L.o, L.ln2, L.g, L.u, L.d, L.c.rms_norm_eps)


class Drafter(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        m = len(c.target_layer_ids)
        self.fc = nn.Parameter(
            torch.randn(c.hidden_size, m * c.hidden_size) * (m * c.hidden_size) ** -0.5
        )
        self.hidden_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.norm = nn.Parameter(torch.ones(c.hidden_size))
        self.layers = nn.ModuleList(DLayer(c) for _ in range(c.num_hidden_layers))
        self.rope = None

    def tables(self, dev):
        if self.rope is None or self.rope[0].device != dev:
            self.rope = rope_table(
                self.c.head_dim,
                self.c.rope_theta,
                self.c.rope_scaling,
                self.c.max_position_embeddings + self.c.block_size,
                dev,
            )
        return self.rope

    def context(self, feats, pos):  # feats [T, m*H], pos [T] -> per layer (k, v)
        cos, sin = self.tables(feats.device)
        cos, sin = cos[pos], sin[pos]
        f = DFN.ctx(feats, self.fc, self.hidden_norm, self.c.rms_norm_eps)
        return [d_kv(L, f, cos, sin) for L in self.layers]

    def block(self, emb, pos, ctx, mask):
        """emb [B, Q, H] block embeddings, pos [B, Q]; ctx: per layer (k, v) [B, S, kv, D]; mask [B, Q, S + Q] bool. Returns normed [B, Q, H]."""
        c = self.c
        B, Q, _ = emb.shape
        cos, sin = self.tables(emb.device)
        cos, sin = cos[pos.reshape(-1)], sin[pos.reshape(-1)]
        x = emb.reshape(B * Q, -1)
        rep = c.num_attention_heads // c.num_key_value_heads
        for L, (ck, cv) in zip(self.layers, ctx):
            q, k, v = d_pre(L, x, cos, sin)
            t = lambda z: z.reshape(B, Q, -1, c.head_dim)
            K, V = torch.cat((ck, t(k)), 1).repeat_interleave(rep, 2).transpose(1, 2), torch.cat(
                (cv, t(v)), 1
            ).repeat_interleave(rep, 2).transpose(1, 2)
            o = sdpa(t(q).transpose(1, 2), K, V, c.head_dim**-0.5, mask=mask[:, None])
            x = d_post(L, x, o.transpose(1, 2).reshape(B * Q, -1))
        return rms(x, self.norm, c.rms_norm_eps).view(B, Q, -1)
