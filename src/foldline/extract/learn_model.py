"""The network being learnt: units with an error each, an affine part, and every row that was asked on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from foldline.networks.one_hidden import Network
from foldline.oracles.protocols import ValueOracle

Array = npt.NDArray[np.float64]
DRAWS = 2
EPS = float(np.finfo(np.float64).eps)
ROUNDINGS = 8               # roundings that may add up inside the target, in units of the answer's own


class Asker:
    """numpy in, numpy out; `eta` is how far an answer of usual size may be from the exact value."""

    def __init__(self, oracle: ValueOracle) -> None:
        self.oracle = oracle
        self.start = oracle.used
        self.d, self.m = oracle.dim, oracle.outputs
        self.eta = 0.0
        self.magnitude = 0.0

    @property
    def rows(self) -> int:
        return self.oracle.used - self.start

    def points(self, x: Array) -> Array:
        """What is really asked: rounded to the target's dtype."""
        return np.asarray(self.oracle.snap(torch.from_numpy(x)).numpy(), dtype=np.float64)

    def __call__(self, x: Array) -> Array:
        y = np.asarray(self.oracle(torch.from_numpy(np.ascontiguousarray(x))).double().numpy(), dtype=np.float64)
        self.note(x, y)
        return y

    def note(self, x: Array, y: Array) -> None:
        """Answers as large as y round by that much."""
        far = np.maximum(1.0, np.linalg.norm(x, axis=1) / np.sqrt(self.d))
        self.magnitude = max(self.magnitude, float((np.abs(y).max(1) / far).max(initial=0.0)))
        self.eta = max(self.eta, ROUNDINGS * EPS * self.magnitude)

    def noise_at(self, x: Array) -> Array:
        """(n,): far out the same relative rounding is larger."""
        far: Array = np.maximum(1.0, np.linalg.norm(x, axis=1) / np.sqrt(self.d))
        return self.eta * far


@dataclass(eq=False)
class Model:
    """A relu(W x + b) + P x + q with rows of W of length 1; `error` (h,) bounds |a w| as it was measured.

    drift (DRAWS, h, d + 1) are draws of those errors, in [a w, a b]. Two units that share a badly measured piece are
    off by opposite amounts, which a sum of bounds would not see and a draw does.
    """

    W: Array
    b: Array
    A: Array                # (m, h)
    P: Array                # (m, d)
    q: Array                # (m,)
    error: Array            # (h,)
    drift: Array            # (DRAWS, h, d + 1)
    places: list[Array] = field(default_factory=list)       # where gradients of F were measured: (n, d)
    slopes: list[Array] = field(default_factory=list)       # those gradients: (n, m, d)
    values: list[Array] = field(default_factory=list)       # F there: (n, m)
    slope_errors: list[Array] = field(default_factory=list)     # (n,)

    @classmethod
    def empty(cls, d: int, m: int) -> Model:
        return cls.plain(np.zeros((0, d)), np.zeros(0), np.zeros((m, 0)), np.zeros((m, d)), np.zeros(m))

    @classmethod
    def plain(cls, W: Array, b: Array, A: Array, P: Array, q: Array) -> Model:
        """Taken as exact."""
        return cls(W, b, A, P, q, np.zeros(len(W)), np.zeros((DRAWS, len(W), W.shape[1] + 1)))

    @classmethod
    def of(cls, network: Network) -> Model:
        """A network's units with rows scaled to 1; units without a direction go into the constant."""
        W, b, A, P, q = (np.array(t.numpy(), dtype=np.float64) for t in (network.W, network.b, network.A, network.P,
                                                                         network.q))
        norm = np.linalg.norm(W, axis=1)
        live = norm > 0
        q = q + A[:, ~live] @ np.maximum(b[~live], 0.0)
        W, b, A, norm = W[live], b[live], A[:, live], norm[live]
        return cls.plain(W / norm[:, None], b / norm, A * norm, P, q)

    @property
    def h(self) -> int:
        return len(self.W)

    def network(self) -> Network:
        W, b, A, P, q = (torch.from_numpy(np.ascontiguousarray(v)) for v in (self.W, self.b, self.A, self.P, self.q))
        return Network(W, b, A, P, q)

    def __call__(self, x: Array) -> Array:
        out: Array = np.maximum(x @ self.W.T + self.b, 0.0) @ self.A.T + x @ self.P.T + self.q
        return out

    def gradient(self, x: Array) -> Array:
        """(n, m, d)"""
        on = (x @ self.W.T + self.b > 0).astype(np.float64)         # (n, h)
        out: Array = np.einsum("nh,mh,hd->nmd", on, self.A, self.W, optimize=True) + self.P
        return out

    def uncertainty(self, x: Array) -> Array:
        """(n,): what the units' measuring errors add up to at x, about."""
        if not self.h:
            return np.zeros(len(x))
        on = (x @ self.W.T + self.b > 0).astype(np.float64)         # (n, h)
        off = [((on @ draw[:, :-1]) * x).sum(1) + on @ draw[:, -1] for draw in self.drift]
        size = np.sqrt(np.square(off).mean(0))                      # (n,)
        # One draw may be small at one point by chance: no point is trusted ten times more than the typical one.
        out: Array = 3 * np.maximum(size, 0.1 * float(np.median(size)))
        return out

    def add(self, W: Array, b: Array, A: Array, error: Array, drift: Array | None = None) -> None:
        if drift is None:
            drift = np.zeros((DRAWS, len(W), W.shape[1] + 1))
        self.W, self.b = np.concatenate([self.W, W]), np.concatenate([self.b, b])
        self.A, self.error = np.concatenate([self.A, A], 1), np.concatenate([self.error, error])
        self.drift = np.concatenate([self.drift, drift], 1)

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        self.W, self.b, self.A, self.error = self.W[which], self.b[which], self.A[:, which], self.error[which]
        self.drift = self.drift[:, which]

    def doubt(self, error: float, rng: np.random.Generator) -> None:
        """After a fit that is off by `error` in all: spread it over the units."""
        each = error / np.sqrt(max(self.h, 1))
        self.error = np.full(self.h, each)
        self.drift = each / np.sqrt(self.W.shape[1] + 1) * rng.standard_normal((DRAWS, self.h, self.W.shape[1] + 1))

    def copy(self) -> Model:
        return Model(self.W.copy(), self.b.copy(), self.A.copy(), self.P.copy(), self.q.copy(), self.error.copy(),
                     self.drift.copy(), list(self.places), list(self.slopes), list(self.values),
                     list(self.slope_errors))

    def read_affine_part(self) -> None:
        """P and q from every measured gradient: with all units known, they agree; the median shrugs off the rest."""
        if not self.places:
            return
        x, G = np.concatenate(self.places), np.concatenate(self.slopes)
        y, error = np.concatenate(self.values), np.concatenate(self.slope_errors)
        self.P, self.q = np.zeros_like(self.P), np.zeros_like(self.q)
        near = np.linalg.norm(x, axis=1) <= 10 * np.sqrt(x.shape[1]) + np.linalg.norm(x, axis=1).min()
        good = near & (error <= 30 * error[near].min() + 1e-300)
        rest = G[good] - self.gradient(x[good])                     # (n, m, d)
        self.P = np.median(rest, axis=0)
        self.q = np.median(y[good] - self(x[good]), axis=0)


def fold_into_affine(model: Model, reach: float = 8.0) -> int:
    """Drop units whose hyperplane is farther than `reach` from the origin; those always on become affine.

    Gaussian x crosses it with probability below 1e-15.
    """
    far = np.abs(model.b) > reach
    on = far & (model.b > 0)
    model.P = model.P + model.A[:, on] @ model.W[on]
    model.q = model.q + model.A[:, on] @ model.b[on]
    model.keep(~far)
    return int(far.sum())
