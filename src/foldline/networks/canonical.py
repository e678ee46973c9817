"""One form for all one-hidden-layer ReLU networks that are the same function.

f(x) = sum_i a_i relu(w_i x + b_i) + P x + q does not change when units are permuted, when (w_i, b_i) is scaled by c > 0
and a_i by 1 / c, or when a unit is turned round: a relu(z) = a relu(-z) + a z, where the affine rest goes into P and q.
Units on the same hyperplane add up to one, units that do nothing vanish. What remains is unique (for generic x the
gradient jumps by a_i w_i across hyperplane i and nowhere else): rows of length one, turned so that the first entry that
is not zero is positive, in lexicographic order.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from foldline.networks.one_hidden import Network

DIGITS = 9                  # rows are ordered by this many digits, so that rounding errors do not decide
NEAR = 1e-6                 # squared distances below this are computed again without cancellation


def canonical(network: Network, *, tolerance: float | None = None) -> Network:
    """The unique form of `network`; hyperplanes closer than `tolerance` count as the same (default: rounding)."""
    network = turned(simplified(network, tolerance=tolerance))
    order = np.lexsort(np.round(hyperplanes(network).numpy(), DIGITS).T[::-1])
    at = torch.from_numpy(order.astype(np.int64))
    return Network(network.W[at], network.b[at], network.A[:, at], network.P, network.q, network.link)


def simplified(network: Network, *, tolerance: float | None = None) -> Network:
    """Rows of length one, one unit per hyperplane, and no unit that does nothing. The function stays the same."""
    W, b, A, P, q = network.W, network.b, network.A, network.P.clone(), network.q.clone()
    eps = torch.finfo(torch.float64).eps
    length = W.norm(dim=1)                                              # (h,)
    constant = length <= 1e-150                                         # no slope: a constant, whatever x is
    q += A[:, constant] @ torch.relu(b[constant])
    W, b, A, length = W[~constant], b[~constant], A[:, ~constant], length[~constant]
    W, b, A = W / length[:, None], b / length, A * length               # the jump in slope, a |w|, stays
    if len(W):
        tolerance = 16 * eps * W.shape[1] ** 0.5 if tolerance is None else tolerance
        group, sign = same_hyperplane(W, b, tolerance)                  # (h,), (h,)
        first = first_of_each(group)                                    # (m,) one unit to stand for each hyperplane
        # A unit that faces the other way: a relu(-z) = a relu(z) - a z.
        back = sign < 0
        P -= A[:, back] @ -W[back]
        q -= A[:, back] @ -b[back]
        size = A.new_zeros(len(A), len(first)).index_add_(1, group, A.abs())
        A = A.new_zeros(len(A), len(first)).index_add_(1, group, A)     # (k, m)
        W, b = W[first], b[first]
        # What duplicates leave when they cancel is rounding, not a unit.
        alive = (A.abs() > 16 * eps * size).any(0)
        W, b, A = W[alive], b[alive], A[:, alive]
    return Network(W, b, A, P, q, network.link)


def turned(network: Network) -> Network:
    """Every row with its first entry that is not (rounded) zero positive."""
    rows = hyperplanes(network)
    big = rows.abs() > 10.0**-DIGITS
    first = rows.gather(1, big.int().argmax(1, keepdim=True))[:, 0] if len(rows) else rows.new_zeros(0)
    return flipped(network, first < 0)


def flipped(network: Network, back: Tensor) -> Network:
    """The same function with the units in the mask turned round: a relu(z) = a relu(-z) + a z."""
    s = torch.where(back, -1.0, 1.0).double()                           # (h,)
    P = network.P + network.A[:, back] @ network.W[back]
    q = network.q + network.A[:, back] @ network.b[back]
    return Network(s[:, None] * network.W, s * network.b, network.A, P, q, network.link)


def hyperplanes(network: Network) -> Tensor:
    """(h, d + 1): [w, b] scaled to length one, so that far hyperplanes stay comparable"""
    rows = torch.cat([network.W, network.b[:, None]], 1)
    return cast(Tensor, rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300))


def distances(U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Between unit rows, whichever way they face: (distance (m, n), +-1 (m, n)). Exact also for close rows."""
    dot = U @ V.T                                                       # (m, n)
    sign = torch.where(dot < 0, -1.0, 1.0).double()
    squared = (2.0 - 2.0 * dot.abs()).clamp_min(0.0)
    i, j = torch.nonzero(squared < NEAR, as_tuple=True)                 # cancellation left no digits here
    for part in torch.arange(len(i)).split(4096):
        a, b = i[part], j[part]
        squared[a, b] = (U[a] - sign[a, b][:, None] * V[b]).square().sum(1)
    return squared.sqrt(), sign


def same_hyperplane(W: Tensor, b: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """(group (h,), +-1 (h,)): which units share a hyperplane, and which of them face the other way than the first."""
    rows = torch.cat([W, b[:, None]], 1)
    U = rows / rows.norm(dim=1, keepdim=True)                           # (h, d + 1)
    distance, sign = distances(U, U)
    i, j = torch.nonzero(distance <= tolerance, as_tuple=True)
    links = coo_array((np.ones(len(i)), (i.numpy(), j.numpy())), shape=(len(U), len(U)))
    _, label = connected_components(links, directed=False)
    group = torch.from_numpy(np.unique(label, return_inverse=True)[1].astype(np.int64))
    first = first_of_each(group)
    return group, sign[torch.arange(len(U)), first[group]]


def first_of_each(group: Tensor) -> Tensor:
    """(m,) the lowest index in each group"""
    m = int(group.max()) + 1
    return torch.full((m,), len(group)).scatter_reduce_(0, group, torch.arange(len(group)), "amin")
