"""What an extraction returns, and the theorem's assumptions read off the instance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from foldline.extract.noise import NoiseFloor
from foldline.extract.units import Units
from foldline.networks.one_hidden import Network
from foldline.results import FunctionCertificate, Result


@dataclass(frozen=True)
class Assumptions:
    """The assumptions of Theorem 1 of paper 000 on what was found; unit rows are free (scale moves into a).

    smallest_angle (radians, between hyperplanes' normals up to sign), rank of the rows, smallest_gap between folds on
    the lines used, and query_bound = h log2(l / epsilon) with l = h^2 and the epsilon that the angle implies.
    """

    smallest_angle: float
    rank: int
    independent: bool
    smallest_gap: float
    query_bound: float
    held: bool


@dataclass(frozen=True, eq=False)
class Line:
    """One line through the network, for a plot: t (n,), y (n, k), folds (m,)."""

    t: Tensor
    y: Tensor
    folds: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Extraction(Result):
    """`network` answers as the target does; `network.units()` is (W, b, a, p, q) with rows of length one."""

    network: Network
    units: int
    certificate: FunctionCertificate
    signs_unique: bool
    affine_free: bool                   # the function is written without a linear term
    assumptions: Assumptions
    noise: NoiseFloor | None
    limit: int                          # rows below which no method can know this many parameters
    lines_used: int = 1
    line: Line | None = field(default=None, repr=False)

    @property
    def ratio(self) -> float:
        """Rows asked per row of the information limit."""
        return self.queries / max(self.limit, 1)


def parameters(h: int, d: int, k: int) -> int:
    """Weights and biases of d-h-k."""
    return h * (d + 1) + k * (h + 1)


def theorem_bound(h: int, c: float, delta: float = 0.05) -> tuple[float, float, float]:
    """(l, epsilon, rows) of Theorem 2, with the sign slip in its proof put right.

    The failure probability is 3^(4/3) (eps/c)^(2/3) h^2 + 2h / (pi l). With l = h^2 the second term is 2 / (pi h),
    which must leave room: l is enlarged to 4h / (pi delta) where h^2 is too short.
    """
    if h == 0:
        return 1.0, 1.0, 0.0
    l = max(float(h * h), 4 * h / (math.pi * delta))
    room = delta - 2 * h / (math.pi * l)
    eps = c / 9.0 * (room / h**2) ** 1.5
    return l, eps, h * math.log2(max(2 * l / eps, 2.0)) if eps > 0 else math.inf


def assumptions_of(u: Units, smallest_gap: float) -> Assumptions:
    h, d = u.W.shape
    if h == 0:
        return Assumptions(math.pi / 2, 0, True, smallest_gap, 0.0, True)
    W = u.W / u.W.norm(dim=1, keepdim=True)
    gram = W @ W.T
    cos = gram.abs().fill_diagonal_(0.0) if h > 1 else W.new_zeros(1, 1)
    worst = int(cos.argmax())
    i, j = worst // h, worst % h
    if h > 1 and float(cos.max()) > 0.9:                             # arccos has no digits left near 1
        s = 1.0 if float(gram[i, j]) > 0 else -1.0
        angle = 2 * math.asin(min(1.0, float((W[i] - s * W[j]).norm()) / 2))
    else:
        angle = math.acos(float(cos.max()))
    rank = int(torch.linalg.matrix_rank(W if h <= d else W.T, rtol=1e-9)) if min(h, d) <= 2048 else min(h, d)
    c = 2 * math.sin(angle / 2) ** 2                                 # 1 - cos
    _, _, bound = theorem_bound(h, c)
    return Assumptions(angle, rank, rank == h, smallest_gap, bound, rank == h and angle > 0)
