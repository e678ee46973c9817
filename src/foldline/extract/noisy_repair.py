"""Least squares that is stuck: answers far out give way first, and a unit that is missing is looked for.

Three things stop Levenberg's steps above the noise. (1) A fit that is off by e in a slope is off by e |x| in an answer:
far answers, and those beside a fold, hold every fold where it is. So each answer is taken to be off by tau |x| as well,
and tau falls. (2) A fold is held by two answers next to it: a small random push frees it. (3) A unit has the wrong
hyperplane, and all others bend to make up for it. What no small change of the other units explains is the residual
outside the span of the Jacobian; thousands of random hyperplanes are compared with it at the price of one matrix
product, and least squares over everything goes on from the best. Costs no rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from foldline.extract.least_squares import Fitted, jacobian, solve_least_squares
from foldline.extract.units import Units

FALL = 4.0                  # tau falls by this factor
TRIED = 4_000               # random hyperplanes
KEPT = 3                    # of them that least squares goes on from
PUSHES = (1e-3, 3e-3, 1e-2, 3e-3)                           # relative to a row's length
NEAR = 30.0                 # answers within this distance lie where folds are
CLOSE = 30.0                # residual, in standard deviations, below which pushes are worth their time
AS_GOOD = 1.05              # a fit without a unit that is this close was as good with it


def solve_annealed(u: Units, x: Tensor, y: Tensor, sigma: Tensor) -> Fitted:
    size = x.norm(dim=1).clamp_min(1.0)
    off = (y - u.values(x)).abs().amax(1) / size
    tau, least = float(off.quantile(0.9)), float((sigma / size).min())
    while tau > least:
        u = solve_least_squares(u, x, y, torch.hypot(sigma, tau * size), rounds=6).units
        tau /= FALL
    return solve_least_squares(u, x, y, sigma, rounds=20, start=1e-8, tight=True)


def better_of(one: Fitted, two: Fitted) -> Fitted:
    return two if two.rms < one.rms else one


def pushed(best: Fitted, x: Tensor, y: Tensor, sigma: Tensor, *, enough: float, rng: torch.Generator) -> Fitted:
    """The best of several starts near the fit, if it is not good enough."""
    for size in PUSHES:
        if best.rms <= enough or len(best.units) == 0:
            break
        v = best.units.normalised()
        W, b = (size * torch.randn(t.shape, generator=rng, dtype=t.dtype) for t in (v.W, v.b))
        start = replace(v, W=v.W + W / v.W.shape[1]**0.5, b=v.b + b)
        best = better_of(best, solve_annealed(start, x, y, sigma))
    return best


def likely_hyperplanes(u: Units, x: Tensor, y: Tensor, sigma: Tensor, rng: torch.Generator) -> list[Units]:
    """u with one more unit each, whose hyperplane best explains what the others cannot; best first."""
    (n, d), k = x.shape, y.shape[1]
    size = x.norm(dim=1).clamp_min(1.0)
    left = y - u.values(x)                                           # (n, k)
    tau = float((left.abs().amax(1) / size).median())
    weight = 1 / torch.hypot(sigma, tau * size)[:, None]             # (n, 1)
    Q = torch.linalg.qr(jacobian(u, x, weight, frozen=False)).Q      # (k n, unknowns)
    r = (left * weight).T.reshape(-1)
    r = (r - Q @ (Q.T @ r)).view(k, n)
    near = (size < NEAR).nonzero().flatten()
    if len(near) == 0:
        return []
    W = torch.randn(TRIED, d, generator=rng, dtype=x.dtype)
    W = W / W.norm(dim=1, keepdim=True)
    b = -(W * x[near[torch.randint(len(near), (TRIED,), generator=rng)]]).sum(1)
    C = torch.relu(x @ W.T + b) * weight                             # (n, tried)
    gain, share = x.new_zeros(TRIED), []
    for o in range(k):
        q = Q[o * n:(o + 1) * n]
        own = (C.square().sum(0) - (q.T @ C).square().sum(0)).clamp_min(1e-6 * C.square().sum(0) + 1e-300)
        along = r[o] @ C
        gain += along.square() / own
        share.append(along / own)
    out = []
    for i in gain.argsort(descending=True)[:KEPT].tolist():
        a = torch.stack([s[i] for s in share])[:, None]              # (k, 1)
        out.append(u.plus(Units(W[i:i + 1], b[i:i + 1], a, torch.zeros_like(u.P), torch.zeros_like(u.q))))
    return out


def solve_missing(u: Units, x: Tensor, y: Tensor, sigma: Tensor, *, enough: float, rng: torch.Generator,
                  most: int = 3) -> Fitted:
    """The best fit with up to `most` more units than u, and without those that turn out not to be needed."""
    best = better_of(solve_least_squares(u, x, y, sigma), solve_annealed(u, x, y, sigma))
    if best.rms < CLOSE:
        best = pushed(best, x, y, sigma, enough=enough, rng=rng)
    for _ in range(most):
        if best.rms <= enough or y.numel() <= unknowns(best.units) + x.shape[1]:
            break
        found = best
        for tried in likely_hyperplanes(best.units, x, y, sigma, rng):
            found = better_of(found, solve_annealed(tried, x, y, sigma))
            if found.rms <= enough:
                break
        if found.rms < CLOSE:
            found = pushed(found, x, y, sigma, enough=enough, rng=rng)
        if found.rms > 0.9 * best.rms:
            break
        best = found
    return without_idle(best, x, y, sigma, len(best.units) - len(u))


def without_idle(best: Fitted, x: Tensor, y: Tensor, sigma: Tensor, most: int) -> Fitted:
    """Units go, weakest first and one of each close pair, while the fit stays as good."""
    for _ in range(most):
        v = best.units.normalised()
        cos = (v.W @ v.W.T).abs().fill_diagonal_(0.0)
        pair = int(cos.argmax())
        weak = v.A.norm(dim=0).argsort()[:2].tolist()
        for i in dict.fromkeys([*weak, pair // len(v), pair % len(v)]):
            fewer = v.keep(torch.arange(len(v)) != i)
            tried = solve_annealed(fewer, x, y, sigma)
            if tried.rms <= AS_GOOD * max(best.rms, 1e-300):
                best = tried
                break
        else:
            break
    return best


def unknowns(u: Units) -> int:
    return u.W.numel() + u.b.numel() + u.A.numel() + u.P.numel() + u.q.numel()
