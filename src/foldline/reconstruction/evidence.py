"""Ranking candidates by what an attacker can see: no training set, no labels.

exact         on the box's edge far more often than the span forces (snap.py): conclusive by itself
inactive      weights only: [W, b] = M X~ gives every candidate its column of M, and a unit that a training point
              leaves inactive never received its gradient, so that part of the column is empty (measured: 1e-5 of the
              column for training points, a third and more for mixtures)
residual      weights only, where unmixing both sides fitted (two_sided.py): how far the column is from the signal
              that the network sends back from this very candidate
agreement     another random start finds the same component; none is drawn where images and units grew together
independence  its features are far from Gaussian
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.reconstruction.peel import Peeled

LOOSE = 5.0             # times the usual contrast: then the constant did not fix size and sign


def inactive_share(samples: Tensor, A: Tensor) -> Tensor:
    """(m,) share of each column of M that lies on units the sample leaves inactive. A (h, d + 1) = [W, b]."""
    X = torch.cat([samples, samples.new_ones(len(samples), 1)], 1)          # (m, d + 1)
    # Units at their natural scale would let the few large ones speak alone.
    rows = A / A.norm(dim=1, keepdim=True).clamp(min=1e-300)
    M = torch.linalg.lstsq(X.T, rows.T, driver="gelsd").solution            # (m, h)
    off = rows @ X.T < 0                                                    # (h, m)
    energy = M.square()
    share: Tensor = (energy * off.T).sum(1) / energy.sum(1).clamp(min=1e-300)
    return share


def untied(rows: Tensor, inactive: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, inactive) with sign and size of those that the bias coordinate left open put right.

    A component that is an image minus about as much of others hardly carries the constant: scaled by it, it is far too
    large, and its sign is chance. A wrong sign shows in the units: its column lies on those that it turns off.
    """
    size = rows.std(1)
    usual = size.median()
    loose = (size > LOOSE * usual) & ~exact
    turned = loose & (inactive > 0.5)
    factor = torch.where(loose, usual / size.clamp(min=1e-300), torch.ones_like(size))
    return rows * torch.where(turned, -factor, factor)[:, None], torch.where(turned, 1 - inactive, inactive)


def weigh(found: Peeled, inactive: Tensor | None,
          residual: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """(weights (q,) in [0, 1], the evidence by name)"""
    evidence = {"exact": found.exact.double(), "violation": found.violation, "edge": found.edge.double(),
                "independence": found.independence}
    inside = 1 - (10 * found.violation).clamp(0, 1)                         # a tenth of the ink outside is too much
    soft = 0.4 * inside + 0.2 * ranked(found.independence)
    if found.agreement is not None:
        evidence["agreement"] = found.agreement
        soft = soft + 0.4 * found.agreement.clamp(0, 1)
    else:
        soft = soft / 0.6
    if inactive is not None:
        evidence["inactive"] = inactive
        soft = 0.8 * soft + 0.2 * ranked(-inactive)
    if residual is not None:
        evidence["residual"] = residual
        soft = 0.5 * soft + 0.5 * ranked(-residual)
    # What agrees with itself but is not exact stays below everything that is.
    weights = torch.where(found.exact, 0.9 + 0.1 * soft, 0.9 * soft)
    return weights, evidence


def ranked(values: Tensor) -> Tensor:
    """Ranks scaled to [0, 1], the largest value 1."""
    if len(values) < 2:
        return torch.ones_like(values)
    return values.argsort().argsort().double() / (len(values) - 1)
