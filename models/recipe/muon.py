"""The optimiser of all matrices (norms, embeddings, head and router use AdamW)."""

import math

import torch


class Muon:
    """Orthogonalised momentum (5 Newton-Schulz steps in bf16), update scaled to RMS 0.2; equal shapes share one batched product."""

    def __init__(self, ps):
        self.ps = ps
        self.buf = [torch.zeros_like(p) for p, _ in ps]

    @torch.no_grad()
    def step(self, lr, wd, mom):
        g = [p.grad for p, _ in self.ps]
        torch._foreach_mul_(self.buf, mom)
        torch._foreach_add_(self.buf, g, alpha=1 - mom)
        upd = torch._foreach_mul(g, 1 - mom)
        torch._foreach_add_(upd, torch._foreach_mul(self.buf, mom))
        groups = {}
        for (p, shape), u in zip(self.ps, upd):
            m, n = shape
            u = u.reshape(-1, m, n)
            t = m > n
            groups.setdefault((min(m, n), max(m, n)), []).append(
                (p, u.transpose(1, 2) if t else u, t)
            )
        for (m, n), L in groups.items():
            X = torch.cat([u.to(torch.bfloat16) for _, u, _ in L])
            X = X / (X.float().pow(2).sum((1, 2), keepdim=True).sqrt() + 1e-7).to(X.dtype)
            for _ in range(5):
                Am = X @ X.transpose(1, 2)
                B = torch.baddbmm(Am, Am, Am, beta=-4.7750, alpha=2.0315)
                X = torch.baddbmm(X, B, X, beta=3.4445)
            sc = 0.2 * math.sqrt(n)
            for (p, u, t), o in zip(L, X.split([u.shape[0] for _, u, _ in L])):
                p.mul_(1 - lr * wd).add_(
                    (o.transpose(1, 2) if t else o).reshape(p.shape).to(p.dtype), alpha=-lr * sc
                )
