"""A recovered one-hidden-layer network against the true one, unit by unit.

Both are first written with one unit per hyperplane (networks/canonical.py), so permutation, positive scaling, the sides
units face and duplicates do not matter; then units are assigned to each other by the distance of their hyperplanes, all
at once, and each pair is compared exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from foldline.errors import Refused
from foldline.networks.canonical import distances, flipped, hyperplanes, simplified
from foldline.networks.one_hidden import Network, from_sequential


@dataclass(frozen=True, eq=False)
class Alignment:
    """found unit `pairs[i, 0]` is true unit `pairs[i, 1]`, after both were written with one unit per hyperplane."""

    pairs: Tensor               # (m, 2) int64
    hyperplane_error: Tensor    # (m,) distance of the unit vectors [w, b] / |[w, b]|
    weight_error: Tensor        # (m,) worst difference of a |w| over the outputs, relative to the largest true one
    affine_error: float         # worst difference in P and q once found units face as the true ones, same scale
    missing: int                # true units without a partner within the tolerance
    spurious: int               # found units without one
    tolerance: float
    network: Network            # the found network, in the order, scale and orientation of the true one

    @property
    def exact(self) -> bool:
        """Every unit has its partner and everything else agrees within the tolerance."""
        worst = float(self.weight_error.max()) if len(self.weight_error) else 0.0
        return self.missing == 0 and self.spurious == 0 and max(worst, self.affine_error) <= self.tolerance


def score_alignment(found: nn.Module, truth: nn.Module, *, tolerance: float = 1e-6) -> Alignment:
    """found, truth: Network, or nn.Sequential of Linear-ReLU-Linear."""
    F, T = simplified(as_network(found)), simplified(as_network(truth))
    if F.P.shape != T.P.shape:
        raise Refused(f"Networks of {tuple(F.P.shape)} and {tuple(T.P.shape)} (outputs, inputs) cannot be aligned.")
    distance, sign = distances(hyperplanes(F), hyperplanes(T))          # (m, n)
    rows, columns = (torch.from_numpy(v).long() for v in linear_sum_assignment(distance.numpy()))
    close = distance[rows, columns] <= tolerance
    rows, columns = rows[close], columns[close]
    back = torch.zeros(len(F.W), dtype=torch.bool)
    back[rows] = sign[rows, columns] < 0
    G = flipped(F, back)
    scale = float(T.A.abs().max()) if T.A.numel() else 1.0
    scale = max(scale, float(T.P.abs().max()), 1e-300)
    weight_error = (G.A[:, rows] - T.A[:, columns]).abs().amax(0) / scale if len(rows) else T.q.new_zeros(0)
    affine = torch.cat([(G.P - T.P).reshape(-1), G.q - T.q]).abs().max() / max(scale, float(T.q.abs().max()))
    rest = torch.tensor([i for i in range(len(G.W)) if i not in set(rows.tolist())], dtype=torch.int64)
    order = torch.cat([rows[columns.argsort()], rest])
    aligned = Network(G.W[order], G.b[order], G.A[:, order], G.P, G.q, F.link)
    return Alignment(torch.stack([rows, columns], 1), distance[rows, columns], weight_error, float(affine),
                     missing=len(T.W) - len(rows), spurious=len(F.W) - len(rows), tolerance=tolerance, network=aligned)


def as_network(module: nn.Module) -> Network:
    if isinstance(module, Network):
        return module
    found = from_sequential(module) if isinstance(module, nn.Sequential) else None
    if found is None:
        raise Refused(f"Alignment compares networks with one hidden layer; this {type(module).__name__} is none.")
    return found
