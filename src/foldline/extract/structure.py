"""What nearly equal units of a one-hidden-layer network add up to (paper 001, Section 3), as pure functions.

A unit is a pair (v, b) that computes relu(v.x - b): note the paper's sign of b. Two units are (Delta, alpha)-close
when their hyperplanes nearly coincide (Definition 3.1). A group of close units acts as one fold with a unit on either
side (Lemma 3.6), or, when its weights cancel, as an affine function (Lemma 3.8).

Differs from the paper: the bounds returned here are explicit. For Gaussian x,
    |relu(w.x - b) - relu(g (v.x - c))| <= |w_perp.x| + |b - g c|    where w = g v + w_perp,
so one unit is off by at most sqrt(2 (Delta^2 + alpha^2)) |w| in L2, and a group by the sum of these. That is stronger
than Lemma 3.6's O(k^2 (Delta^(2/5) + alpha^2)) |v|^2 for the squared error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def closeness(V: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(sin, offset), each (k, k): the smallest Delta and alpha of Definition 3.1 for every pair of units.

    A zero weight vector has no direction: it is close only to other zero vectors.
    """
    norm = V.norm(dim=1)                                            # (k,)
    product = norm[:, None] * norm[None, :]                         # (k, k)
    unit = V / norm.clamp_min(torch.finfo(V.dtype).tiny)[:, None]   # (k, d)
    # |u - (u.u') u'| is accurate for tiny angles, where sqrt(1 - cos^2) has lost every digit.
    sin = torch.stack([(unit - (unit @ u)[:, None] * u).norm(dim=1) for u in unit]) if len(V) else V.new_zeros(0, 0)
    cross = torch.stack([(bi * V - b[:, None] * v).norm(dim=1) for v, bi in zip(V, b, strict=True)]) \
        if len(V) else V.new_zeros(0, 0)
    offset = cross / product.clamp_min(torch.finfo(V.dtype).tiny)
    none = norm == 0
    mixed = none[:, None] ^ none[None, :]
    both = none[:, None] & none[None, :]
    inf = torch.full_like(sin, float("inf"))
    zero = torch.zeros_like(sin)
    return (torch.where(mixed, inf, torch.where(both, zero, sin)),
            torch.where(mixed, inf, torch.where(both, zero, offset)))


def are_close(V: Tensor, b: Tensor, Delta: float, alpha: float) -> Tensor:
    """(k, k) of bool: which pairs are (Delta, alpha)-close (Definition 3.1)."""
    sin, offset = closeness(V, b)
    return (sin <= Delta) & (offset <= alpha)


def orientation(V: Tensor) -> Tensor:
    """(k,) of +1 and -1: the two sides of Definition 3.4, the first unit on the side of +1.

    For pairwise close units with Delta < sqrt(2)/2 it polarises them: inner products are >= 0 inside a side and < 0
    across (Lemma 3.3). ValueError when the vectors do not polarise.
    """
    if len(V) == 0:
        return V.new_zeros(0)
    side = torch.where(V @ V[0] >= 0, 1.0, -1.0).to(V.dtype)        # (k,)
    gram = (V @ V.T) * side[:, None] * side[None, :]
    slack = torch.finfo(V.dtype).eps * V.norm(dim=1).square().max()
    if bool((gram < -slack).any()):
        raise ValueError("These weight vectors do not split into two opposite sides, so they are not pairwise close.")
    return side


def fold_coefficients(W: Tensor, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(a_plus, a_minus) of Lemma 3.6: sum_i s_i relu(w_i.x - b_i) ~ a_plus relu(v.x - b) + a_minus relu(-(v.x - b)).

    With w_i = g_i v + rest, a unit is |g_i| times the fold's, on the side that the sign of g_i says.
    """
    g = (W @ v) / (v @ v)                                           # (k,)
    return (s * g.clamp_min(0)).sum(), (s * (-g).clamp_min(0)).sum()


def merge_bound(W: Tensor, s: Tensor, Delta: float, alpha: float) -> float:
    """L2 error under Gaussian x of replacing units that are (Delta, alpha)-close to one fold by that fold."""
    return float((s.abs() * W.norm(dim=1)).sum()) * math.sqrt(2 * (Delta ** 2 + alpha ** 2))


def affine_case(V: Tensor, b: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """(w, c) of Lemma 3.8: the affine w.x - c that a cancelling group of close units is near to.

    relu(z) = z + relu(-z) turns the units of the second side around; turned, they add up to almost nothing beside
    those of the first side, and the z of the second side remain.
    """
    second = orientation(V) < 0
    return (s[second, None] * V[second]).sum(0), (s[second] * b[second]).sum()


def affine_bound(V: Tensor, b: Tensor, s: Tensor, Delta: float, alpha: float) -> float:
    """L2 error under Gaussian x of `affine_case` for units pairwise (Delta, alpha)-close."""
    side = orientation(V)
    rest = ((s * side)[:, None] * V).sum(0).norm()                  # |v*| of equation (1)
    reach = (1 + (b[0] / V[0].norm()).square()).sqrt()              # L2 norm of a unit vector's ReLU, at most
    return float(rest * reach) + merge_bound(V, s, Delta, alpha)


@dataclass(frozen=True, eq=False)
class Merged:
    """sum_i a_i relu(W_i x + b_i) + p.x + q, and which of the old units each group held."""

    W: Tensor               # (h, d)
    b: Tensor               # (h,), the sign of the network, not of the paper
    a: Tensor               # (k, h): k outputs
    p: Tensor               # (k, d)
    q: Tensor               # (k,)
    groups: tuple[tuple[int, ...], ...]     # only groups of two or more


def merge_close(W: Tensor, b: Tensor, a: Tensor, p: Tensor, q: Tensor, *, Delta: float, alpha: float) -> Merged:
    """One fold for every group of units (Delta, alpha)-close to the group's strongest unit (Lemmas 3.6 to 3.9).

    W (h, d), b (h,) as in a.relu(W x + b) + p.x + q; a (k, h), p (k, d), q (k,). A fold's two sides are one unit
    and an affine term, since a relu(-z) = a relu(z) - a z. The fold's direction is the group's combination v* of
    Lemma 3.9 where that is not small, else the strongest unit's own.
    """
    h = len(W)
    strength = a.norm(dim=0) * W.norm(dim=1)                        # (h,)
    close = are_close(W, -b, Delta, alpha) if h else torch.zeros(0, 0, dtype=torch.bool)
    free = torch.ones(h, dtype=torch.bool)
    new_W, new_b, new_a, groups = [], [], [], []
    p, q = p.clone(), q.clone()
    for i in torch.argsort(strength, descending=True).tolist():
        if not free[i]:
            continue
        members = torch.nonzero(close[i] & free).reshape(-1)
        free[members] = False
        free[i] = False
        if len(members) <= 1:
            new_W.append(W[i])
            new_b.append(b[i])
            new_a.append(a[:, i])
            continue
        side = torch.where(W[members] @ W[i] >= 0, 1.0, -1.0).to(W.dtype)
        # Turn the second side around: a relu(z) = a relu(-z) + a z.
        turned = members[side < 0]
        p += a[:, turned] @ W[turned]
        q += a[:, turned] @ b[turned]
        Wm, bm = side[:, None] * W[members], side * b[members]      # (m, d), (m,)
        am = a[:, members]                                          # (k, m)
        v, c = fold_direction(Wm, bm, am, W[i], b[i])
        g = (Wm @ v) / (v @ v)                                      # (m,)
        new_W.append(v)
        new_b.append(c)
        new_a.append(am @ g)
        groups.append(tuple(sorted(members.tolist())))
    d, k = W.shape[1], len(q)
    return Merged(torch.stack(new_W) if new_W else W.new_zeros(0, d),
                  torch.stack(new_b) if new_b else W.new_zeros(0),
                  torch.stack(new_a, 1) if new_a else W.new_zeros(k, 0), p, q, tuple(groups))


def fold_direction(W: Tensor, b: Tensor, a: Tensor, w0: Tensor, b0: Tensor) -> tuple[Tensor, Tensor]:
    """(v, c) for a group turned to one side: Lemma 3.9's sum where it keeps a quarter of the group's weight."""
    lead = int(a.norm(dim=1).argmax())                              # with several outputs: the group's main one
    v, c = a[lead] @ W, a[lead] @ b
    if float(v @ w0) < 0:                                           # relu must open on the side the units open on
        v, c = -v, -c
    total = (a[lead].abs() * W.norm(dim=1)).sum()
    return (v, c) if float(v.norm()) > 0.25 * float(total) else (w0, b0)
