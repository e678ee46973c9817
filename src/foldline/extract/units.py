"""Hidden units as algebra: f(x) = sum_i A_i relu(W_i x + b_i) + P x + q, its canonical form and its signs.

A fold is a hyperplane with a jump; which side is the active one is not visible in it, since flipping a unit changes
only the affine term: relu(z) = relu(-z) + z. So a set of folds with one known piece is the exact function, and the
signs are a second question: is there a choice of sides for which the affine term vanishes?
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foldline.networks.one_hidden import Network


@dataclass(frozen=True, eq=False)
class Units:
    """W (m, d), b (m,), A (k, m), P (k, d), q (k,)"""

    W: Tensor
    b: Tensor
    A: Tensor
    P: Tensor
    q: Tensor

    @classmethod
    def none(cls, P: Tensor, q: Tensor) -> Units:
        k, d = P.shape
        return cls(P.new_zeros(0, d), P.new_zeros(0), P.new_zeros(k, 0), P, q)

    def __len__(self) -> int:
        return len(self.b)

    def z(self, x: Tensor) -> Tensor:
        return x @ self.W.T + self.b                                 # (n, m)

    def values(self, x: Tensor) -> Tensor:
        return torch.relu(self.z(x)) @ self.A.T + x @ self.P.T + self.q          # (n, k)

    def gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(y (n,), gradient (n, d)) of the first output"""
        z = self.z(x)
        y = torch.relu(z) @ self.A[0] + x @ self.P[0] + self.q[0]
        return y, ((z > 0) * self.A[0]) @ self.W + self.P[0]

    def plus(self, other: Units) -> Units:
        return Units(torch.cat([self.W, other.W]), torch.cat([self.b, other.b]), torch.cat([self.A, other.A], 1),
                     self.P + other.P, self.q + other.q)

    def keep(self, which: Tensor) -> Units:
        return replace(self, W=self.W[which], b=self.b[which], A=self.A[:, which])

    def flipped(self, which: Tensor) -> Units:
        """The same function with the units `which` (m,) bool written from their other side."""
        s = torch.where(which, -1.0, 1.0).to(self.b.dtype)
        moved = self.A * which                                       # a relu(z) = a relu(-z) + a z
        return Units(self.W * s[:, None], self.b * s, self.A, self.P + moved @ self.W, self.q + moved @ self.b)

    def normalised(self) -> Units:
        """Unit rows, the length moved into A; units without rows become constants."""
        norm = self.W.norm(dim=1)
        empty = norm == 0
        constant = self.A[:, empty] @ torch.relu(self.b[empty])
        kept = self.keep(~empty)
        n = norm[~empty]
        return Units(kept.W / n[:, None], kept.b / n, kept.A * n, self.P, self.q + constant)

    def network(self) -> Network:
        return Network(self.W, self.b, self.A, self.P, self.q)


def merged(u: Units, *, tolerance: float, drop: float | None = None) -> Units:
    """One unit per hyperplane (rows normalised; angle and offset within `tolerance`); weights below `drop` times the
    largest are noise and go."""
    u = u.normalised()
    if len(u) == 0:
        return u
    size = float(u.A.abs().max())
    scale = max(1.0, float(u.b.abs().median()))
    full = torch.cat([u.W, (u.b / scale)[:, None]], 1)               # (m, d + 1)
    full = full / full.norm(dim=1, keepdim=True)
    cos = full @ full.T
    close = (1 - cos.abs()) <= 0.5 * max(tolerance, 1e-7)**2 + 4e-16 * 16
    close.fill_diagonal_(False)
    alive = torch.ones(len(u), dtype=torch.bool)
    for i in close.any(1).nonzero().flatten().tolist():
        if not bool(alive[i]):
            continue
        for j in close[i].nonzero().flatten().tolist():
            if j <= i or not bool(alive[j]):
                continue
            s = 1.0 if float(cos[i, j]) > 0 else -1.0
            if float((full[i] - s * full[j]).norm()) > tolerance:    # cosines cannot tell angles below 1e-8
                continue
            if s < 0:
                u = u.flipped(torch.arange(len(u)) == j)
                full[j] = -full[j]
                cos[j], cos[:, j] = -cos[j], -cos[:, j]
            A = u.A.clone()
            A[:, i] += A[:, j]
            A[:, j] = 0
            # What the second row differs from the first is within tolerance and acts as affine on average.
            u = replace(u, A=A)
            alive[j] = False
    alive &= u.A.abs().amax(0) > (tolerance if drop is None else drop) * size
    return u.keep(alive)


@dataclass(frozen=True, eq=False)
class Signed:
    units: Units
    unique: bool                # the rows are independent, so that no other choice of sides is possible
    found: bool                 # the affine term is gone (up to a constant)


def with_signs(u: Units, *, tolerance: float) -> Signed:
    """Choose every unit's side so that the affine term vanishes, if there is such a choice.

    P = -sum_i s_i A_i W_i with s in {0, 1}: least squares over all outputs. With independent rows the answer is unique.
    A rest below `tolerance` (relative to the largest unit) is rounding and is dropped; a larger one stays in P.
    """
    m = len(u)
    tolerance = min(tolerance, 1e-6)
    size = float((u.A.abs().amax(0) * u.W.norm(dim=1)).max()) if m else 0.0
    if m == 0 or float(u.P.abs().max()) <= tolerance * size:
        return Signed(replace(u, P=torch.zeros_like(u.P)) if m else u, True, True)
    # Normal equations of sum_o |sum_i s_i A_oi W_i - P_o|^2: the Gram matrix is (A^T A) * (W W^T), m by m.
    gram = (u.A.T @ u.A) * (u.W @ u.W.T)
    right = (u.A * (u.W @ u.P.T).T).sum(0)                           # (m,)
    scale = gram.diagonal().sqrt()
    if not bool((scale > 0).all()) or not bool(gram.isfinite().all()):
        return Signed(u, False, False)
    eigen, vectors = torch.linalg.eigh(gram / scale[:, None] / scale)
    unique = bool(eigen[0] > 1e-10)
    if not unique:
        return Signed(u, False, False)
    s = vectors @ ((vectors.T @ (right / scale)) / eigen) / scale
    flip = s.round() == -1.0
    zero = (s.round() == 0.0) | flip
    near = bool(((s - s.round()).abs() <= 1e-3).all()) and bool(zero.all())
    if not near:
        return Signed(u, True, False)
    # P = -sum of the flipped units' A_i W_i: writing them from the other side adds exactly that.
    turned = u.flipped(flip)
    if float(turned.P.abs().max()) > max(tolerance, 1e-9) * size * max(1.0, m**0.5):
        return Signed(turned, True, False)
    return Signed(replace(turned, P=torch.zeros_like(turned.P)), True, True)
