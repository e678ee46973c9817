"""Two points that test every fold from both sides at once.

d unknowns can satisfy up to d equations W_i y + b_i = 0: there is a point on all the hyperplanes found (or on d at a
time). Just beside it, once with every unit on its positive and once on its negative side, a unit that is really two
must show: on the hyperplane where a_p z_p + a_q z_q = 0, weights of equal sign have exactly one of the two active, and
weights of opposite sign both or none, so that at least one of the two points contradicts, however close the two
hyperplanes are. Random points would almost never fall between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.extract.units import Units

BESIDE = 1e-8               # distance to the hyperplanes, relative to |y|
AT_ONCE = 0.75              # of the dimension: more equations than that make the point run far away
FAR = 1e3


def pinch_points(u: Units, start: Tensor, *, beside: float = BESIDE) -> tuple[Tensor, Tensor]:
    """(x (n, d), tested (m,) bool): pairs of points beside the hyperplanes of u, from start (d,).

    Hyperplanes that nearly meet only far away (parallel ones) are taken apart into smaller groups.
    """
    m, d = u.W.shape
    norm = u.W.norm(dim=1)
    W, b = u.W / norm[:, None], u.b / norm
    size = max(1, int(AT_ONCE * d))
    groups = [torch.arange(i, min(i + size, m)) for i in range(0, m, size)]
    points: list[Tensor] = []
    tested = torch.zeros(m, dtype=torch.bool)
    while groups:
        g = groups.pop()
        inverse = torch.linalg.pinv(W[g], rtol=1e-9)                 # (d, n)
        y = start - inverse @ (W[g] @ start + b[g])
        y = y - inverse @ (W[g] @ y + b[g])                          # once more: the first solve leaves rounding
        away = beside * max(1.0, float(y.norm()))
        pair = torch.stack([y + away * inverse.sum(1), y - away * inverse.sum(1)])
        z = pair @ W[g].T + b[g]                                     # (2, n)
        near = bool(((z - away * z.new_tensor([[1.0], [-1.0]])).abs() < 0.1 * away).all())
        if near and float(y.norm()) <= FAR * (1.0 + float(start.norm()) + float(b[g].abs().median())):
            points.append(pair)
            tested[g] = True
        elif len(g) > 1:
            half = len(g) // 2
            groups += [g[:half], g[half:]]
    return (torch.cat(points) if points else W.new_zeros(0, d)), tested
