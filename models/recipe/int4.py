"""INT4 in groups of 32 along the input dimension, as compressed-tensors pack-quantized stores it."""

import torch

G = 32


def quant(w):
    """[..., out, in] fp32 -> integer values in [-7, 7] and bf16 scales [..., out, in/32] (scale = max|w| / 7)."""
    g = (
        w.unflatten(-1, (w.shape[-1] // G, G))
        if hasattr(w, "unflatten")
        else w.view(*w.shape[:-1], -1, G)
    )
    s = (g.abs().amax(-1, keepdim=True) / 7).clamp_min(1e-5).to(torch.bfloat16)
    v = torch.clamp(torch.round(g / s.float()), -7, 7)
    return v, s


def fake_quant(w):
    v, s = quant(w)
    return (v * s.float()).flatten(-2)


def qat(w):
    return w + (fake_quant(w) - w).detach()  # straight-through


FQ = [qat]


def pack(v):
    """[out, in] ints in [-8, 7] -> int32 [out, in/8]; column j at bits 4*(j%8), stored as value + 8."""
    u = (v.to(torch.int64) + 8).view(v.shape[0], -1, 8)
    sh = torch.arange(0, 32, 4, device=v.device)
    w = (u << sh).sum(-1)
    return torch.where(w >= 2**31, w - 2**32, w).to(torch.int32)


def unpack(p):
    u = (p.to(torch.int64)[..., None] >> torch.arange(0, 32, 4, device=p.device)) & 15
    return (u - 8).flatten(-2)
