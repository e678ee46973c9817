"""All answers at once: Levenberg's least squares of a one-hidden-layer network, each answer in units of its own error.

minimise sum_n |f_theta(x_n) - y_n|^2 / sigma_n^2 over theta = (W, b, A, P, q). Away from the folds f is smooth in theta
and its derivatives are the unit's own activity, so a step is a linear least-squares problem. Up to DENSE unknowns it is
solved by normal equations (repeated steps correct their rounding); above that by LSMR, whose products with the
Jacobian cost n d h. The scale of a unit (W, b, 1/A) is free: the damping keeps it where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from foldline.extract.units import Units

Prepared = tuple[Tensor, Tensor, Tensor]                     # Gram matrix and right side, scaled, and the scale
Array = NDArray[np.float64]
DENSE = 3_200
SMALLEST = 1e-13            # of the damping: the free scales need some
GOOD = 1e-4                 # relative gain below which a step is the last


@dataclass(frozen=True, eq=False)
class Fitted:
    units: Units
    rms: float                  # of the residuals, in units of sigma; near 1 when sigma is their standard deviation
    residual: Tensor            # (n, k), in units of sigma


def solve_least_squares(u: Units, x: Tensor, y: Tensor, sigma: Tensor, *, rounds: int = 30, start: float = 1e-4,
                        freeze_rows: bool = False, tight: bool = False) -> Fitted:
    """x (n, d), y (n, k), sigma (n,) -> the units that fit best, from u on. freeze_rows keeps W (a line: w = 1); tight
    goes on until nothing moves, which matters for what the answers hardly determine."""
    weight = 1.0 / sigma[:, None]                                    # (n, 1)
    unknowns = len(u) * (1 + (0 if freeze_rows else x.shape[1])) + u.A.numel() + u.P.numel() + u.q.numel()
    solve = dense_step if unknowns <= DENSE or freeze_rows else sparse_step
    left = (y - u.values(x)) * weight
    cost, damping, small = float(left.square().sum()), start, 0
    for _ in range(rounds):
        accepted = False
        prepared: Prepared | None = None                             # a rejected step changes only the damping
        for _attempt in range(8):
            step, prepared = solve(u, x, left, weight, damping, freeze_rows, prepared)
            tried = moved(u, step, freeze_rows)
            off = (y - tried.values(x)) * weight
            after = float(off.square().sum())
            if after < cost:
                accepted = True
                break
            damping = max(damping, 1e-9) * 10
            if damping > 1e6:
                break
        if not accepted:
            break
        gain = (cost - after) / max(cost, 1e-300)
        u, left, cost = balanced(tried, freeze_rows), off, after
        damping = max(damping * 0.1, SMALLEST)
        small = small + 1 if gain < GOOD else 0
        if gain < 1e-10 or (small >= 2 and not tight):
            break
    return Fitted(u, (cost / max(left.numel(), 1))**0.5, left)


def balanced(u: Units, frozen: bool) -> Units:
    """The same function with rows of length one, so that the damping treats all units alike."""
    if frozen or len(u) == 0:
        return u
    norm = u.W.norm(dim=1).clamp_min(1e-300)
    return replace(u, W=u.W / norm[:, None], b=u.b / norm, A=u.A * norm)


def moved(u: Units, step: Tensor, frozen: bool) -> Units:
    m, d, k = len(u), u.P.shape[1], len(u.q)
    sizes = [0 if frozen else m * d, m, k * m, k * d, k]
    dW, db, dA, dP, dq = step.split(sizes)
    W = u.W if frozen else u.W + dW.view(m, d)
    return Units(W, u.b + db, u.A + dA.view(k, m), u.P + dP.view(k, d), u.q + dq)


def jacobian(u: Units, x: Tensor, weight: Tensor, frozen: bool) -> Tensor:
    """(n k, unknowns), rows ordered by output first."""
    n, d = x.shape
    m, k = len(u), len(u.q)
    z = u.z(x)
    on, up = (z > 0).double() * weight, torch.relu(z) * weight       # (n, m)
    xw = x * weight
    blocks = []
    for o in range(k):
        act = on * u.A[o]                                            # (n, m)
        parts = [] if frozen else [(act[:, :, None] * x[:, None, :]).reshape(n, m * d)]
        dA, dP, dq = x.new_zeros(n, k, m), x.new_zeros(n, k, d), x.new_zeros(n, k)
        dA[:, o], dP[:, o], dq[:, o] = up, xw, weight[:, 0]
        blocks.append(torch.cat([*parts, act, dA.reshape(n, k * m), dP.reshape(n, k * d), dq], 1))
    return torch.cat(blocks)


def dense_step(u: Units, x: Tensor, left: Tensor, weight: Tensor, damping: float, frozen: bool,
               prepared: Prepared | None) -> tuple[Tensor, Prepared | None]:
    if prepared is None:
        J = jacobian(u, x, weight, frozen)
        gram = J.T @ J
        scale = gram.diagonal().sqrt()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        prepared = (gram / scale[:, None] / scale, (J.T @ left.T.reshape(-1)) / scale, scale)
    gram, right, scale = prepared
    damped = gram.clone()
    damped.diagonal().add_(damping + 1e-13)
    factor, failed = torch.linalg.cholesky_ex(damped)
    if int(failed):
        return torch.full_like(right, float("nan")), prepared
    return torch.cholesky_solve(right[:, None], factor)[:, 0] / scale, prepared


def sparse_step(u: Units, x: Tensor, left: Tensor, weight: Tensor, damping: float, frozen: bool,
                prepared: Prepared | None) -> tuple[Tensor, Prepared | None]:
    n, d = x.shape
    m, k = len(u), len(u.q)
    sizes = [m * d, m, k * m, k * d, k]
    z = u.z(x)
    on, up = (z > 0).double() * weight, torch.relu(z) * weight
    strength = u.A.square().sum(0)                                   # (m,)
    x2 = (x * weight).square()
    active = (z > 0).double()
    scale = torch.cat([((active.T @ x2) * strength[:, None]).reshape(-1), (on.square().sum(0) * strength),
                       up.square().sum(0).repeat(k), x2.sum(0).repeat(k),
                       weight.square().sum().repeat(k)]).sqrt()
    scale = torch.where(scale > 1e-12 * scale.max(), scale, scale.max())

    def forward(v: Array) -> Array:
        dW, db, dA, dP, dq = (torch.from_numpy(np.asarray(v).reshape(-1)) / scale).split(sizes)
        inner = on * (x @ dW.view(m, d).T + db)                      # (n, m)
        out = inner @ u.A.T + up @ dA.view(k, m).T + (x @ dP.view(k, d).T + dq) * weight
        product: Array = out.reshape(-1).numpy()
        return product

    def backward(r: Array) -> Array:
        R = torch.from_numpy(np.asarray(r).reshape(n, k))
        inner = (R @ u.A) * on                                       # (n, m)
        Rw = R * weight
        v = torch.cat([(inner.T @ x).reshape(-1), inner.sum(0), (R.T @ up).reshape(-1), (Rw.T @ x).reshape(-1),
                       Rw.sum(0)])
        product: Array = (v / scale).numpy()
        return product

    size = int(scale.numel())
    operator = LinearOperator((n * k, size), matvec=forward, rmatvec=backward, dtype=np.float64)
    found = lsmr(operator, left.reshape(-1).numpy(), damp=damping**0.5, atol=1e-8, btol=1e-8, maxiter=60)[0]
    return torch.from_numpy(found) / scale, prepared
