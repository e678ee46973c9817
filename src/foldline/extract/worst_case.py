"""Paper 001's Algorithms 1 to 4 as they stand: GetBias, GetGradient, GetNeurons, LearnFromQueries.

The slow twin of `learn`, for tiny instances: a Gaussian line is cut into 2 tau / r intervals, all of them are
differentiated, every pair of intervals gives a neuron, and a norm-bounded regression chooses among them. Cost:
(d + 3) 2 tau / r rows and the regression's samples. The theorem's own r is astronomically small (`Theory.fill` says
how small); r, tau, alpha and Delta are therefore arguments.

Constants hidden in the paper's O(.) are the c_* fields, all 1 unless said; its polynomial P is k^2 (1 + R + B)
log(1/delta). Differs from the paper where the paper cannot be meant:
- b_L is a piece's intercept at the line's own origin x0; as a bias at the origin of R^d it needs - grad.x0, and the
  sign that relu(w.x - b) asks for;
- alpha is Lemma 4.10's, with r; Algorithm 3 prints tau;
- equal neurons are grouped: c copies of a feature in a norm-bounded regression are one feature times sqrt(c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from foldline.errors import BadInput, BudgetExhausted
from foldline.extract.bounded_least_squares import solve_bounded_least_squares
from foldline.extract.learn_certificate import certify, probes_wanted
from foldline.extract.learn_model import EPS, Array, Asker, Model
from foldline.extract.learn_result import LearnResult
from foldline.oracles.protocols import ValueOracle
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, Status, silent

MOST_INTERVALS = 20_000
MOST_FEATURES = 6_000


@dataclass(frozen=True)
class Theory:
    """What the theorem must know (k, R, B, smallest |w|), what it derives, and the constants it hides."""

    k: int = 1
    R: float = 1.0
    B: float = 1.0
    smallest: float | None = None       # of |w_i|; R if not said
    Delta: float | None = None
    r: float | None = None
    tau: float | None = None
    alpha: float | None = None
    samples: int | None = None
    c_r: float = 1.0
    c_tau: float = 1.0
    c_alpha: float = 1.0
    c_bias: float = 1.0
    c_M: float = 1.0

    def fill(self, d: int, epsilon: float, delta: float) -> Theory:
        """Every None replaced by the theorem's formula: (3), (4), Lemma 4.10 and line 3 of Algorithm 3."""
        k, log1, logk = self.k, math.log(1 / delta), math.log(max(self.k, 1) / delta)
        P = k ** 2 * (1 + self.R + self.B) * max(log1, 1.0)
        Delta = self.Delta if self.Delta is not None else (epsilon / P) ** 4.5
        root_d = math.sqrt(d)
        r = self.r if self.r is not None else self.c_r * Delta * delta ** 2 / (k ** 4 * (root_d + math.sqrt(logk)))
        smallest = self.smallest if self.smallest is not None else self.R
        spread = k * (root_d + math.sqrt(log1))
        tau = self.tau if self.tau is not None else \
            k * r + self.c_tau * (spread / (delta * smallest) + spread * math.sqrt(logk))
        alpha = self.alpha if self.alpha is not None else \
            delta * r / (4 * k * root_d + self.c_alpha * k * math.sqrt(logk))
        return replace(self, Delta=Delta, r=r, tau=tau, alpha=alpha)


@dataclass(frozen=True, eq=False)
class Neurons:
    """relu(w.x - b), each standing for `copies` equal ones."""

    w: Array            # (n, d)
    b: Array            # (n,)
    copies: Array       # (n,)
    intervals: int


def get_bias(f_a: Array, f_mid: Array, f_b: Array, a: Array, b: Array) -> Array:
    """Algorithm 1 on many intervals [a, b]: the intercept at t = 0 of the piece around the middle."""
    s = (f_b - f_a) / (b - a)
    out: Array = f_mid - s * 0.5 * (a + b)
    return out


def get_gradient(ask: Asker, x: Array, f_x: Array, alpha: float, rng: np.random.Generator) -> Array:
    """Algorithm 2 at many points x (n, d): d random unit directions each, and the linear system. n d rows."""
    n, d = x.shape
    z: Array = rng.standard_normal((n, d, d))
    np.divide(z, np.linalg.norm(z, axis=2, keepdims=True), out=z)
    y = ask((x[:, None, :] + alpha * z).reshape(-1, d))[:, 0].reshape(n, d)
    return np.asarray(np.linalg.solve(z, ((y - f_x[:, None]) / alpha)[:, :, None])[:, :, 0], dtype=np.float64)


def get_neurons(ask: Asker, constants: Theory, delta: float, rng: np.random.Generator) -> Neurons:
    """Algorithm 3: differences of all pairs of intervals of one Gaussian line, within the bounds (5)."""
    r, tau, alpha = constants.r, constants.tau, constants.alpha
    assert r is not None and tau is not None and alpha is not None and constants.Delta is not None
    d, k = ask.d, constants.k
    x0, v = rng.standard_normal(d), rng.standard_normal(d)
    v /= np.linalg.norm(v)
    m = math.ceil(2 * tau / r)
    edge: Array = -tau + r * np.arange(m + 1, dtype=np.float64)
    a, b = edge[:-1], edge[1:]
    t = np.concatenate([a, 0.5 * (a + b), b])
    f_a, f_mid, f_b = np.split(ask(x0 + t[:, None] * v)[:, 0], 3)
    x_mid = x0 + (0.5 * (a + b))[:, None] * v
    g = get_gradient(ask, x_mid, f_mid, alpha, rng)                 # (m, d)
    c = get_bias(f_a, f_mid, f_b, a, b) - g @ x0                    # (m,): at the origin of R^d
    rounding = 64 * EPS * max(1.0, float(np.abs(f_mid).max())) / alpha
    kind, copies = equal_rows(np.concatenate([g, c[:, None]], 1), rounding * (1 + tau))
    g, c = g[kind], c[kind]
    i, j = np.nonzero(~np.eye(len(g), dtype=bool))
    w, bias = g[i] - g[j], -(c[i] - c[j])
    norm = np.linalg.norm(w, axis=1)
    most_w = k * constants.R
    most_b = k * constants.B + constants.c_bias * constants.Delta * k * most_w * math.sqrt(math.log(max(k, 1) / delta))
    fits = (norm > rounding) & (norm <= most_w * (1 + 1e-9)) & (np.abs(bias) <= most_b * (1 + 1e-9))
    return Neurons(w[fits], bias[fits], (copies[i] * copies[j])[fits], m)


def equal_rows(table: Array, tolerance: float) -> tuple[Array, Array]:
    """(first row of each group of equal rows, how many rows it has); intervals of one piece are neighbours or not."""
    kept: list[int] = []
    count: list[int] = []
    for i, row in enumerate(table):
        near = np.flatnonzero(np.abs(table[kept] - row).max(1) <= tolerance) if kept else np.zeros(0, dtype=np.int64)
        if len(near):
            count[int(near[0])] += 1
        else:
            kept.append(i)
            count.append(1)
    return np.array(kept, dtype=np.int64), np.array(count, dtype=np.float64)


def truncated_gaussian(n: int, d: int, M: float, rng: np.random.Generator) -> Array:
    """n rows of N(0, I) conditioned on |x| <= M (Definition 4.12), by rejection."""
    rows: list[Array] = []
    while sum(map(len, rows)) < n:
        x = rng.standard_normal((n, d))
        rows.append(x[np.linalg.norm(x, axis=1) <= M])
    return np.concatenate(rows)[:n]


def learn_by_theory(f: ValueOracle, epsilon: float, delta: float, *, rng: torch.Generator, theory: Theory,
                    progress: Progress = silent) -> LearnResult:
    """Algorithm 4. epsilon is absolute, as in the paper; so is its certificate."""
    if f.outputs != 1:
        raise BadInput(f"The paper's algorithm learns one output; this target has {f.outputs}.")
    ask, streams = Asker(f), Streams(rng)
    draw = {name: np.random.default_rng(streams.integer(name)) for name in ("line", "samples", "probes")}
    constants = theory.fill(ask.d, epsilon, delta)
    assert constants.r is not None and constants.tau is not None
    m = 2 * constants.tau / constants.r
    if not m <= MOST_INTERVALS:
        raise BadInput(f"With k={theory.k}, d={ask.d}, epsilon={epsilon:g} the theorem cuts the line into {m:.2g} "
                       f"intervals of length {constants.r:.2g}, {m * (ask.d + 3):.2g} rows; at most {MOST_INTERVALS} "
                       f"are computed here. Pass Theory(r=..., tau=...). Nothing was asked.")
    model, status = Model.empty(ask.d, 1), Status("ok", "Done.")
    residual: Array = np.zeros((0, 1))
    sd, history = 0.0, []
    try:
        neurons = get_neurons(ask, constants, delta, draw["line"])
        progress("neurons", {"rows": ask.rows, "neurons": len(neurons.w)})
        if len(neurons.w) > MOST_FEATURES:
            raise BadInput(f"The line gave {len(neurons.w)} different neurons; a regression over more than "
                           f"{MOST_FEATURES} is not computed here. Take a larger r.")
        M = math.sqrt(ask.d) + constants.c_M * math.sqrt(math.log(1 / delta))
        n = constants.samples or 4 * (len(neurons.w) + ask.d + 1)
        x = truncated_gaussian(n, ask.d, M, draw["samples"])
        y = ask(x)[:, 0]
        model = regression(neurons, x, y, radius(constants))
        error = float(np.sqrt(np.square(y - model(x)[:, 0]).mean()))
        sd = float(y.std())
        history.append((ask.rows, error / sd if sd > 0 else error))
        progress("regression", {"rows": ask.rows, "error": history[-1][1]})
        fresh = draw["probes"].standard_normal((probes_wanted(ask.d, delta, None)[0], ask.d))
        answers = ask(fresh)
        residual, sd = answers - model(fresh), float(answers.std())
    except BudgetExhausted as problem:
        status = Status("budget", f"{problem} The literal algorithm has no useful result before its last step.")
    certificate = certify(residual, sd=sd, epsilon=epsilon, delta=delta, relative=False, noise=ask.eta)
    if status.ok and not certificate.holds:
        status = Status("unverified", f"The regression's error is {math.sqrt(certificate.squared_error):.2g}, not "
                        f"certified below epsilon={epsilon:g}: the interval length r={constants.r:.2g} is too coarse "
                        f"for this network, or k, R and B are too small.")
    parameters = {"epsilon": epsilon, "delta": delta, "method": "theory", "k": constants.k, "R": constants.R,
                  "B": constants.B, "Delta": constants.Delta, "r": constants.r, "tau": constants.tau,
                  "alpha": constants.alpha}
    return LearnResult(status=status, queries=ask.rows, certificate=certificate, network=model.network(),
                       units=model.h, merged=(), dropped=0, tangles=0, lines=1, handed_over=False, noise=ask.eta,
                       history=tuple(history), trace=None,
                       provenance=Provenance("learn_from_queries", streams.seed, parameters))


def radius(constants: Theory) -> float:
    """W of equation (7)."""
    assert constants.r is not None and constants.tau is not None
    return math.sqrt(constants.tau / constants.r) + constants.k * (constants.R + constants.B)


def regression(neurons: Neurons, x: Array, y: Array, W: float) -> Model:
    """Equation (7) over [relu features, x, 1], as a model."""
    scale = np.sqrt(neurons.copies)
    features = np.maximum(x @ neurons.w.T - neurons.b, 0.0) * scale
    v, _ = solve_bounded_least_squares(np.concatenate([features, x, np.ones((len(x), 1))], 1), y, W)
    h, d = neurons.w.shape[0], x.shape[1]
    norm = np.linalg.norm(neurons.w, axis=1)
    return Model.plain(neurons.w / norm[:, None], -neurons.b / norm, (v[:h] * scale * norm)[None, :],
                       v[None, h:h + d], v[-1:])
