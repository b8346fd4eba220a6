"""What both networks are built from: rotary embedding with YaRN, RMS norm, experts, attention.

Shapes in comments: T tokens (batch and sequence flattened), H hidden size, E experts, I expert width.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F


def mscale(s, k):
    return 1.0 if s <= 1 else 0.1 * k * math.log(s) + 1.0


def yarn_freqs(dim, theta, rs):
    f = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    corr = (
        lambda r: dim
        * math.log(rs["original_max_position_embeddings"] / (r * 2 * math.pi))
        / (2 * math.log(theta))
    )
    lo, hi = max(math.floor(corr(rs["beta_fast"])), 0), min(
        math.ceil(corr(rs["beta_slow"])), dim - 1
    )
    ramp = np.clip((np.arange(dim // 2) - lo) / ((hi - lo) or 0.001), 0, 1)
    return f / rs["factor"] * ramp + f * (1 - ramp)


def rope_table(dim, theta, rs, n, device):
    """cos, sin [n, dim/2] fp32.  mscale/mscale_all_dim = 1 here, so the amplitude factor is 1."""
    inv = torch.tensor(yarn_freqs(dim, theta, rs), dtype=torch.float32)
    ang = torch.arange(n, dtype=torch.float32)[:, None] * inv[None]
    amp = mscale(rs["factor"], rs["mscale"]) / mscale(rs["factor"], rs["mscale_all_dim"])
    return (ang.cos() * amp).to(device), (ang.sin() * amp).to(device)


def rope_interleaved(x, cos, sin):  # pairs (2i, 2i+1); cos/sin broadcast to x[..., :dim/2]
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def rope_half(x, cos, sin):  # rotate_half convention
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def rms(x, g, eps):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * g.to(x.dtype)


def lin(x, w):
    return F.linear(x, w.to(x.dtype))


_gmm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


class Permute(
    torch.autograd.Function
):  # rows to expert order; backward is a gather, not an atomic add
    @staticmethod
    def forward(ctx, x, order, inv, k):
        ctx.save_for_backward(inv)
        ctx.k = k
        return x[order // k]

    @staticmethod
    def backward(ctx, g):
        (inv,) = ctx.saved_tensors
        return g[inv].unflatten(0, (-1, ctx.k)).sum(1), None, None, None


class Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, order, inv):
        ctx.save_for_backward(order)
        return y[inv]

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return g[order], None, None


def route(x, wg, bias, k, scale):
    s = torch.sigmoid(F.linear(x.float(), wg.float()))
    idx = torch.topk(s.detach() + bias, k, dim=-1)[1]
    w = s.gather(-1, idx)
    return idx, w / (w.sum(-1, keepdim=True) + 1e-20) * scale


def experts_grouped(x, idx, w, wgu, wd):  # bf16 CUDA; wgu [E, 2I, H], wd [E, H, I]
    E, k = wgu.shape[0], idx.shape[1]
    flat = idx.reshape(-1)
    order = torch.argsort(flat, stable=True)
    inv = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=x.device))
    cnt = torch.zeros(E, device=x.device, dtype=torch.int32).scatter_add_(
        0, flat, torch.ones_like(flat, dtype=torch.int32)
    )
    offs = torch.cumsum(cnt, 0, dtype=torch.int32)
    xs = Permute.apply(x, order, inv, k)
    gu = _gmm(xs, wgu.transpose(-2, -1), offs=offs)
    g, u = gu.chunk(2, -1)
    h = (F.silu(g.float()) * u.float()).to(x.dtype)
    y = Unpermute.apply(_gmm(h, wd.transpose(-2, -1), offs=offs), order, inv)
    return (y.unflatten(0, (-1, k)).float() * w.unsqueeze(-1)).sum(1).to(x.dtype), cnt


def experts_bmm(x, idx, w, wgu, wd):  # any dtype, any device: pad every expert to the largest count
    E, k = wgu.shape[0], idx.shape[1]
    flat = idx.reshape(-1)
    order = torch.argsort(flat, stable=True)
    cnt = torch.bincount(flat, minlength=E)
    C = int(cnt.max())
    st = torch.cumsum(cnt, 0) - cnt
    slot = torch.arange(flat.numel(), device=x.device) - st[flat[order]]
    pos = flat[order] * C + slot
    buf = x.new_zeros(E * C, x.shape[1]).index_copy(0, pos, x[order // k]).view(E, C, -1)
    g, u = torch.bmm(buf, wgu.to(x.dtype).transpose(1, 2)).chunk(2, -1)
    y = torch.bmm(F.silu(g) * u, wd.to(x.dtype).transpose(1, 2)).view(E * C, -1)[pos]
    inv = torch.empty_like(order)
    inv[order] = torch.arange(order.numel(), device=x.device)
    return (y[inv].view(-1, k, x.shape[1]).float() * w.unsqueeze(-1)).sum(1).to(x.dtype), cnt


def experts(x, idx, w, wgu, wd):
    if _gmm is not None and x.is_cuda and x.dtype == torch.bfloat16:
        return experts_grouped(x, idx, w, wgu.to(x.dtype), wd.to(x.dtype))
    return experts_bmm(x, idx, w, wgu, wd)


def sdpa(q, k, v, scale, mask=None, causal=False):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale
        )
    a = q @ k.transpose(-1, -2) * scale
    if causal:
        a = a.masked_fill(
            torch.ones(a.shape[-2:], dtype=torch.bool, device=a.device).triu(1), float("-inf")
        )
    if mask is not None:
        a = a.masked_fill(~mask, float("-inf"))
    return a.softmax(-1) @ v
