"""Points far from every fold: where to stand so that long steps stay inside one linear piece.

A slope costs noise / step, and a step must not cross a fold. A random point among h hyperplanes is about 1/h away from
the nearest. With the units known in a few directions, a linear program finds, for any reachable pattern of activity,
the point with the largest distance to all folds: steps grow a hundredfold. Which patterns to use is a weighing design:
the slopes at the points are sums of the active units' rows, and greedy D-optimality picks points whose sums are
easiest to take apart.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from foldline.extract.units import Units

POOL = 3                    # candidates per point chosen


def roomy_points(u: Units, rho: Tensor, count: int, *, radius: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(c (count, d), room (count,)): points with |c_j| <= radius and room = min_i |z_i| / rho_i, well spread in
    their patterns of activity."""
    m, d = u.W.shape
    start = torch.randn(max(POOL * count, 8), d, generator=rng, dtype=torch.float64)
    start = start / start.norm(dim=1, keepdim=True) * radius
    if m == 0:
        return start[:count], torch.full((count,), radius, dtype=torch.float64)
    side = torch.where(u.z(start) > 0, 1.0, -1.0).double()           # (n, m)
    _, first = np.unique(side.numpy(), axis=0, return_index=True)
    side = side[torch.from_numpy(np.sort(first))]
    points, rooms = [], []
    for s in side:
        point, most = roomiest(u, rho, s, radius)
        points.append(point)
        rooms.append(most)
    c, room = torch.stack(points), torch.tensor(rooms, dtype=torch.float64)
    chosen = spread(u, c, room, count)
    return c[chosen], room[chosen]


def roomiest(u: Units, rho: Tensor, side: Tensor, radius: float) -> tuple[Tensor, float]:
    """max r such that side_i z_i(c) / rho_i >= r, |c_j| <= radius"""
    m, d = u.W.shape
    scale = radius
    A = np.concatenate([-(side / rho)[:, None].numpy() * u.W.numpy(), np.ones((m, 1))], 1)
    b = (side / rho * u.b).numpy() / scale
    cost = np.zeros(d + 1)
    cost[-1] = -1.0
    found = linprog(cost, A_ub=A, b_ub=b, bounds=[(-1.0, 1.0)] * d + [(None, None)], method="highs")
    if found.status != 0:
        return torch.zeros(d, dtype=torch.float64), 0.0
    return torch.from_numpy(found.x[:-1] * scale), float(found.x[-1] * scale)


def spread(u: Units, c: Tensor, room: Tensor, count: int) -> Tensor:
    """Greedy D-optimal choice: each point adds the most to what the slopes at the points determine."""
    m, k = len(u), len(u.q)
    n = len(c)
    strength = u.A.norm(dim=0).clamp_min(1e-300)
    on = (u.z(c) > 0).double()                                       # (n, m)
    # Rows of one point: output o sees P_o and the active units, in units of each unit's own strength.
    M = torch.cat([on[:, None, :] * (u.A / strength)[None], torch.eye(k, dtype=c.dtype).expand(n, k, k)], 2)
    M = M * room.clamp_min(1e-12)[:, None, None] / room.max().clamp_min(1e-12)
    inverse = torch.eye(m + k, dtype=c.dtype) * 1e6
    left = torch.ones(n, dtype=torch.bool)
    chosen: list[int] = []
    for _ in range(min(count, n)):
        V = M @ inverse                                              # (n, k, m + k)
        gain = torch.linalg.slogdet(torch.eye(k, dtype=c.dtype) + V @ M.transpose(1, 2)).logabsdet
        best = int(torch.where(left, gain, -torch.inf).argmax())
        chosen.append(best)
        left[best] = False
        core = torch.eye(k, dtype=c.dtype) + V[best] @ M[best].T
        inverse = inverse - V[best].T @ torch.linalg.solve(core, V[best])
    return torch.tensor(chosen)
