"""The published algorithms of paper 000, as they are: Algorithms 1, 1a, 1b and 1-MQ. The baseline of our tables.

1a bisects [-l, l] on a random line for the first place where the gradient changes, h times; 1b solves 2h linear
equations for the signs, at points of one cell found through the Chebyshev-centre program of Appendix B; 1-MQ replaces
every gradient by d differences with step s. They know h, and hold for networks without biases whose rows are
independent; anything else ends in a status.

Differs from the paper where the paper cannot be meant: its loop (lines 13 to 17) throws Failure after every halving,
so the throw is taken as the last `else`; its proof's epsilon has a sign slip, put right in result.theorem_bound; the
program's `z_i.y + r` needs |z_i| r; "different gradients" means different beyond rounding. A gradient asked once at a
point is not paid for again (the paper's pseudo-code asks three at each halving).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BadInput, BudgetExhausted
from foldline.extract.result import Extraction, assumptions_of, parameters, theorem_bound
from foldline.extract.units import Units
from foldline.oracles.protocols import GradientOracle, Oracle, ValueOracle
from foldline.randomness import Streams
from foldline.results import FunctionCertificate, Progress, Provenance, Status

ASSUMED_C = 0.5             # 1 - cos of the smallest angle, when the caller does not say epsilon

Value = Callable[[Tensor], Tensor]              # x (n, d) -> (n,)
Gradient = Callable[[Tensor], tuple[Tensor, float]]     # x (d,) -> (d,), and what rounding may do to its norm


class Failure(Exception):
    """The theorem's `throw Failure`."""


@dataclass(frozen=True)
class Constants:
    l: float
    epsilon: float
    s: float | None = None


def theorem_constants(h: int, l: float | None, epsilon: float | None, s: float | None, delta: float) -> Constants:
    l0, eps0, _ = theorem_bound(h, ASSUMED_C, delta)
    l, epsilon = l or l0, epsilon or eps0
    # Theorem 4: s <= delta eps / (2 (2 - delta) l h).
    return Constants(l, epsilon, s or delta * epsilon / (2 * (2 - delta) * l * h))


def bisect_gradients(g: GradientOracle, *, hidden: int | None, l: float | None, epsilon: float | None, delta: float,
                     rng: torch.Generator, progress: Progress) -> Extraction:
    """Algorithm 1 with gradient queries; the 2h values of 1b are rows of the same oracle."""
    h = checked(hidden, g)
    eps = float(torch.finfo(g.dtype).eps)

    def gradient(x: Tensor) -> tuple[Tensor, float]:
        grad = g(x[None])[1][0].double()
        return grad, 1e3 * eps * max(1.0, float(grad.norm()))

    return published("bisection", g, lambda x: g(x)[0].double(), gradient, h,
                     theorem_constants(h, l, epsilon, None, delta), rng, progress)


def bisect_values(f: ValueOracle, *, hidden: int | None, l: float | None, epsilon: float | None, step: float | None,
                  delta: float, rng: torch.Generator, progress: Progress) -> Extraction:
    """Algorithm 1-MQ: every gradient is d + 1 values. The theorem's s is far below what float64 can difference:
    pass step for one that works, and read the status."""
    h = checked(hidden, f)
    if f.outputs != 1:
        raise BadInput(f"Algorithm 1-MQ is for one output; the target has {f.outputs}.")
    c = theorem_constants(h, l, epsilon, step, delta)
    assert c.s is not None
    s, d, eps = c.s, f.dim, float(torch.finfo(f.dtype).eps)

    def gradient(x: Tensor) -> tuple[Tensor, float]:
        y = f(torch.cat([x[None], x + s * torch.eye(d, dtype=torch.float64)]))[:, 0].double()
        # Differences are exact to eps |f| / s; what is less than that is "the same gradient".
        return (y[1:] - y[0]) / s, 64 * eps * d**0.5 * max(1.0, float(y[0].abs())) / s

    return published("bisection-mq", f, lambda x: f(x)[:, 0].double(), gradient, h, c, rng, progress)


def checked(hidden: int | None, oracle: Oracle) -> int:
    if hidden is None or hidden < 1:
        raise BadInput("The published algorithm must be told the number of hidden units: pass hidden=.")
    if oracle.box is not None:
        raise BadInput("The published algorithm asks on a line far beyond any box, and the target declares "
                       f"[{oracle.box[0]:g}, {oracle.box[1]:g}]; use method='crossing'.")
    return hidden


def published(name: str, oracle: Oracle, value: Value, gradient: Gradient, h: int, c: Constants,
              rng: torch.Generator, progress: Progress) -> Extraction:
    streams = Streams(rng)
    d, start = oracle.dim, oracle.used
    zero = torch.zeros(1, d, dtype=torch.float64)
    units = Units.none(zero, zero[0, :1])
    certificate = FunctionCertificate.of(torch.zeros(0), tolerance=0.0, distribution="standard normal")
    Z: list[Tensor] = []
    try:
        for row in recover_Z(gradient, d, h, c, streams("line")):
            Z.append(row)
            progress("bisection", {"units": len(Z), "total": h, "done": len(Z), "queries": oracle.used - start})
        rows = torch.stack(Z)
        s = recover_s(value, rows, streams("cell"))
        units = Units(torch.cat([rows, -rows]), torch.zeros(2 * h, dtype=torch.float64), s[None], zero, zero[0, :1])
        units = units.keep(s.abs() > 0.5)
        x = torch.randn(8, d, generator=streams("probes"), dtype=torch.float64)
        y = value(x)
        certificate = FunctionCertificate.of(y - units.values(x)[:, 0], distribution="standard normal",
                                             tolerance=1e-4 * float(y.abs().max()))
        whole = bool(((s.abs() - s.abs().round()).abs() < 1e-3).all()) and len(units) == h
        status = Status("ok", f"{h} units by bisection.") if certificate.holds and whole else Status(
            "failure", "Algorithm 1 returned a function that fresh probes contradict: an assumption does not hold "
            "(biases, dependent rows, folds closer than epsilon), or the step s is outside float64's reach.")
    except Failure as error:
        status = Status("failure", f"{error} {len(Z)} of {h} rows were found.")
    except BudgetExhausted as error:
        status = Status("budget", f"{error} {len(Z)} of {h} rows were found.")
    u = units.normalised()
    limit = parameters(h, d, 1) if isinstance(oracle, ValueOracle) else h
    return Extraction(status=status, queries=oracle.used - start, certificate=certificate, network=u.network(),
                      units=len(u), signs_unique=True, affine_free=True, assumptions=assumptions_of(u, math.nan),
                      noise=None, limit=limit, provenance=Provenance(
                          name, streams.seed, {"hidden": h, "l": c.l, "epsilon": c.epsilon, "s": c.s}))


def recover_Z(gradient: Gradient, d: int, h: int, c: Constants, rng: torch.Generator) -> Iterator[Tensor]:
    """Algorithm 1a"""
    u, v = torch.randn(2, d, generator=rng, dtype=torch.float64)
    seen: dict[float, tuple[Tensor, float]] = {}

    def at(t: float) -> tuple[Tensor, float]:
        if t not in seen:
            seen[t] = gradient(u + t * v)
        return seen[t]

    def differ(p: tuple[Tensor, float], q: tuple[Tensor, float]) -> bool:
        return float((p[0] - q[0]).norm()) > p[1] + q[1]

    t_l = -c.l
    for i in range(h):
        t_r = c.l
        while t_r - t_l > c.epsilon:
            t_m = 0.5 * (t_l + t_r)
            if not t_l < t_m < t_r:
                break                                                # epsilon is below float64's spacing at t
            if differ(at(t_l), at(t_m)):
                t_r = t_m
            elif differ(at(t_m), at(t_r)):
                t_l = t_m
            else:
                raise Failure(f"Between {t_l:.4g} and {t_r:.4g} the gradient does not change any more.")
        if not differ(at(t_r), at(t_l)):
            raise Failure(f"Unit {i + 1} was not found on the line.")
        yield at(t_r)[0] - at(t_l)[0]
        t_l = t_r


def recover_s(value: Value, Z: Tensor, rng: torch.Generator) -> Tensor:
    """Algorithm 1b: s (2h,)"""
    X = points_in_one_cell(Z, rng)                                   # (h, d)
    up, down = torch.relu(X @ Z.T), torch.relu(-(X @ Z.T))           # (h, h)
    M = torch.cat([torch.cat([up, down], 1), torch.cat([down, up], 1)])
    y = value(torch.cat([X, -X]))
    try:
        s: Tensor = torch.linalg.solve(M, y)
    except RuntimeError as error:
        raise Failure("The 2h equations for the signs are singular: the rows are dependent.") from error
    return s


def points_in_one_cell(Z: Tensor, rng: torch.Generator) -> Tensor:
    """Appendix B: the Chebyshev centre of the cell of a random v within [0, 1]^d, and h steps from it.

    The cell is a cone, so it meets the cube if v's cell contains a positive point; v is drawn positive for that.
    """
    from scipy.linalg import qr
    from scipy.optimize import linprog
    h, d = Z.shape
    z = Z.numpy()
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    v = torch.rand(d, generator=rng, dtype=torch.float64).numpy()
    side = np.sign(z @ v)
    A = np.concatenate([-side[:, None] * z, np.ones((h, 1))], 1)     # r - side z.y <= 0
    lp = linprog(np.r_[np.zeros(d), -1.0], A_ub=A, b_ub=np.zeros(h), bounds=[(0, 1)] * d + [(0, None)], method="highs")
    if not lp.success or lp.x[-1] <= 0:
        raise Failure("The cell of a random point has no interior in the unit cube.")
    y0, r = lp.x[:-1], float(lp.x[-1])
    if h > d:
        raise Failure(f"{h} rows in {d} dimensions are dependent: Algorithm 1b needs Rank(ZX) = h.")
    Y = y0 + (r / 2) * np.eye(d)                                     # (d, d), rows are points
    _, _, order = qr(z @ Y.T, mode="economic", pivoting=True)        # the h columns that are most independent
    return torch.tensor(Y[np.sort(order[:h])])
