"""The fold lines of a first layer on the plane, and where they meet: what reconstruct_toy.py reads beside the loop.

A unit is off on one side of its line w . x + b = 0. Trained from a small start, units condense onto few lines, and a
line turns the network's slope where a training point needs it: at that point. Nothing here sees the training points,
except folds_row, which is the judge.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

LIVE = 1e-2             # of the largest |incoming| |outgoing|
SAME = 3e-3             # normals and offsets this near are one line
MEET = 1e-3             # lines this near to a point meet there
APART = 0.05            # meetings nearer than this are one
REACH = 3.0
AROUND = 0.3            # radius of the neighbourhood that says how many meetings chance would give
BY_CHANCE = 0.5         # meetings where chance explains more than this many are left out


def fold_lines(layers: list[nn.Linear]) -> tuple[Tensor, Tensor]:
    """Unit normals u (m, 2) and offsets o (m,) of the different lines u . x = o of live units, strongest first."""
    W, b = layers[0].weight.detach().double(), layers[0].bias.detach().double()
    size = W.norm(dim=1) * layers[1].weight.detach().double().norm(dim=0)           # (h,)
    order = size.argsort(descending=True)
    order = order[size[order] > LIVE * size.max()]
    length = W[order].norm(dim=1)
    lines = torch.cat([W[order] / length[:, None], (-b[order] / length)[:, None]], 1)       # (live, 3)
    kept: list[Tensor] = []
    for line in lines:
        if all(min(float((line - k).abs().max()), float((line + k).abs().max())) > SAME for k in kept):
            kept.append(line)
    found = torch.stack(kept)
    return found[:, :2], found[:, 2]


def meetings(u: Tensor, o: Tensor, least: int = 3) -> Tensor:
    """(c, 2) points within MEET of at least so many lines, those of most lines first.

    Where many lines cross, three meet by chance: a pair's crossing has a third line within MEET once in AROUND / MEET
    for each line in the neighbourhood. A meeting counts where the crossings around it, other than its own, make less
    than BY_CHANCE of those.
    """
    i, j = torch.triu_indices(len(u), len(u), 1)
    det = u[i, 0] * u[j, 1] - u[i, 1] * u[j, 0]
    crossing = det.abs() > 0.05
    i, j, det = i[crossing], j[crossing], det[crossing]
    p = torch.stack([o[i] * u[j, 1] - o[j] * u[i, 1], u[i, 0] * o[j] - u[j, 0] * o[i]], 1) / det[:, None]    # (k, 2)
    p = p[p.norm(dim=1) < REACH]
    near = (p @ u.T - o).abs() < MEET                                               # (k, m)
    found: list[Tensor] = []
    for k in near.sum(1).argsort(descending=True).tolist():
        own = int(near[k].sum())
        if own < least:
            break
        q = torch.linalg.lstsq(u[near[k]], o[near[k]][:, None]).solution[:, 0]
        away = (p - q).norm(dim=1)
        lines = int(((u @ q - o).abs() < AROUND).sum())
        chance = int(((away < AROUND) & (away > APART / 5)).sum()) * (lines - 2) * MEET / AROUND
        if chance < BY_CHANCE and all(float((q - other).norm()) > APART for other in found):
            found.append(q)
    return torch.stack(found) if found else u.new_zeros(0, 2)


def folds_row(layers: list[nn.Linear], x: Tensor, near: float) -> dict[str, Any]:
    """The judge: lines and meetings against the training points x (n, 2), turned circles and lines turned at random."""
    u, o = fold_lines(layers)
    rng = torch.Generator().manual_seed(0)
    met = meetings(u, o)
    right = torch.cdist(met, x).amin(1) < near if len(met) else torch.zeros(0, dtype=torch.bool)
    off = (x @ u.T - o).abs().amin(0)                                               # (m,)
    turned, random = [], []
    for angle in (2 * math.pi * torch.rand(20, generator=rng)).tolist():
        c, s = math.cos(angle), math.sin(angle)
        other = x @ torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
        turned.append(float(((other @ u.T - o).abs().amin(0) < 0.01).double().mean()))
        angles = 2 * math.pi * torch.rand(len(u), generator=rng, dtype=torch.float64)
        random.append(len(meetings(torch.stack([angles.cos(), angles.sin()], 1), o)))
    return {"lines": len(u), "lines_on_points": float((off < 0.01).double().mean()),
            "line_to_point_median": float(off.median()), "lines_on_turned": sum(turned) / len(turned),
            "points_on_lines": int(((x @ u.T - o).abs().amin(1) < 0.01).sum()), "meetings": len(met),
            "meetings_right": int(right.sum()), "meetings_random": sum(random) / len(random)}
