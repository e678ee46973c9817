"""Linear, logistic and multinomial models, whole, from the fewest queries there can be.

From gradients: one query. f = w x + c has w = grad f; behind a sigmoid p = s(w x + c) it is w = grad p / (p (1 - p)).
Of a softmax, one query of each output at one point: grad log p_o = w_o - sum_j p_j w_j, so differences between the
outputs are differences of rows (one output alone does not separate them).
From values: d + 1 queries, x0 and one step along each axis; behind a link the differences are taken of logits, for
several classes of log-ratios (the mean over classes is free, and taken out). The steps are as long as the box allows:
an affine function has no folds to cross, and the error is the answers' error over the step.
Which link it is, and whether the target is affine at all, n_check fresh probes decide: cost 1 + n_check gradients, or
d + 1 + n_check values; a few more where a link saturates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.errors import BudgetExhausted, Refused
from foldline.networks.one_hidden import Link, Network
from foldline.oracles.probe import decimals_of
from foldline.oracles.protocols import GradientOracle, ValueOracle
from foldline.randomness import Streams
from foldline.results import FunctionCertificate, Progress, Provenance, Result, Status, silent

FLAT = 1e-4                 # p (1 - p) below this costs four digits or more
CLOSER = 4                  # times a saturated query is moved


@dataclass(frozen=True, eq=False, kw_only=True)
class AffineRecovery(Result):
    """`network` has no hidden units: network.units() gives p, q, and network(x) answers through `link`."""

    network: Network
    link: Link
    certificate: FunctionCertificate | None


@dataclass(frozen=True, eq=False)
class Candidate:
    """A network under one link, and the error that its queries' last digits leave in it."""

    network: Network
    x0: Tensor                  # (d,)
    base_error: Tensor          # (k,) of the logits at x0
    slope_error: Tensor         # (k, d)

    def answer_error(self, x: Tensor, answer: float) -> Tensor:
        """(n, k): how far answers at x may be off when the target is affine; six standard deviations."""
        z = torch.sqrt(self.base_error**2 + (x - self.x0).square() @ self.slope_error.square().T)    # (n, k)
        # A link is never steeper than 1/4 in its own logit; the other classes of a softmax add as much again.
        steepest = {"identity": 1.0, "sigmoid": 0.25, "softmax": 0.5}[self.network.link]
        return 6.0 * (steepest * z + answer)


class Together:
    """Gradient oracles of all outputs of one target as one: each row is asked of every one of them."""

    def __init__(self, oracles: Sequence[GradientOracle]) -> None:
        if not oracles or any((g.dim, g.box, g.dtype) != (oracles[0].dim, oracles[0].box, oracles[0].dtype)
                              for g in oracles):
            raise ValueError("The gradient oracles must be those of the outputs of one target.")
        self.oracles, first = oracles, oracles[0]
        self.dim, self.box, self.dtype, self.snap = first.dim, first.box, first.dtype, first.snap

    @property
    def used(self) -> int:
        return sum({id(g.ledger): g.used for g in self.oracles}.values())

    def gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (n, d) -> y (n, k), gradients (n, k, d)"""
        answers = [g(x) for g in self.oracles]
        return torch.stack([y for y, _ in answers], 1).double(), torch.stack([g for _, g in answers], 1).double()

    def __call__(self, x: Tensor) -> Tensor:
        return self.gradients(x)[0]


Affine = GradientOracle | ValueOracle | Together


def recover_affine(oracle: GradientOracle | ValueOracle | Sequence[GradientOracle], *, rng: torch.Generator,
                   link: Link | None = None, n_check: int = 60, step: float = 1.0, tolerance: float | None = None,
                   progress: Progress = silent) -> AffineRecovery:
    """The affine model behind `oracle`, or a status that says it is none. `link`: given, or told from the answers.

    A sequence of gradient oracles, one for each output of one target, is asked one row each: what a softmax needs.
    """
    asked: Affine = Together(oracle) if isinstance(oracle, Sequence) else oracle
    return recover_from(asked, rng=rng, link=link, n_check=n_check, step=step, tolerance=tolerance, progress=progress)


def recover_from(oracle: Affine, *, rng: torch.Generator, link: Link | None, n_check: int, step: float,
                 tolerance: float | None, progress: Progress) -> AffineRecovery:
    streams, start = Streams(rng), oracle.used
    if n_check < 0 or not step > 0:
        raise ValueError(f"n_check must be 0 or more and step positive, not {n_check} and {step}.")
    notes: tuple[str, ...] = ()
    certificate: FunctionCertificate | None = None
    if isinstance(oracle, Together):
        candidates, complete = from_gradients_of_all(oracle, link)
    elif isinstance(oracle, GradientOracle):
        candidates, complete = from_gradient(oracle, link)
    elif isinstance(oracle, ValueOracle):
        candidates, complete = from_values(oracle, link, step, progress)
    else:
        raise Refused(f"recover_affine asks gradients or values, not a {type(oracle).__name__}.")
    best = candidates[0]
    status = Status("unverified", "No probe was asked (n_check = 0), so nothing shows that the target is affine.")
    if not complete:
        status = Status("budget", f"The budget ended after {oracle.used - start} rows; weights of inputs that were not "
                        f"asked are zero. A whole affine model takes {oracle.dim + 1} values or one gradient.")
    elif n_check:
        try:
            best, certificate = chosen(oracle, candidates, streams("probes"), n_check, tolerance, progress)
            status = verdict(best, certificate)
        except BudgetExhausted as error:
            status = Status("budget", "The model was recovered, but the budget left no rows to check it.",
                            (str(error),))
    if best.network.link == "softmax":
        notes = ("Logits of a softmax are known up to a function common to all classes; their mean was set to zero.",)
    return AffineRecovery(
        status=Status(status.code, status.message, (*status.notes, *notes)), queries=oracle.used - start,
        certificate=certificate, network=best.network, link=best.network.link,
        provenance=Provenance("recover_affine", streams.seed, {"link": link, "n_check": n_check, "step": step,
                                                               "tolerance": tolerance}))


def from_gradient(g: GradientOracle, link: Link | None) -> tuple[list[Candidate], bool]:
    x0 = g.snap(torch.full((1, g.dim), 0.0 if g.box is None else sum(g.box) / 2, dtype=torch.float64))
    try:
        value, grad = g(x0)                                             # (1,), (1, d)
    except BudgetExhausted:
        nothing = Network(*units_of(x0.new_zeros(1, g.dim), x0.new_zeros(1)))
        return [Candidate(nothing, x0[0], x0.new_zeros(1), x0.new_zeros(1, g.dim))], False
    for _ in range(CLOSER):
        # Deep in saturation p (1 - p) has no digits left: ask again where the model so far puts p = 1/2.
        p, w = value.double(), grad.double()
        dp = p * (1 - p)
        if link == "identity" or not 0 < float(dp) < FLAT or not bool(w.any()):
            break
        w = w / dp
        nearer = x0 - torch.logit(p) * w / w.square().sum()
        nearer = g.snap(nearer if g.box is None else nearer.clamp(*g.box))
        try:
            value_there, grad_there = g(nearer)
        except BudgetExhausted:
            break
        there = float(value_there * (1 - value_there))
        if not there > float(dp):
            break
        x0, value, grad = nearer, value_there, grad_there
    y, slope = value.double(), grad.double()
    y_error, slope_error = last_digit(y[:, None], g.dtype), last_digit(slope, g.dtype)
    found = []
    for kind in links_for(y[:, None], link, softmax=False):
        if kind == "identity":
            found.append(affine_candidate(slope, y, x0[0], "identity", y_error.expand(1), slope_error.expand_as(slope)))
        else:
            dp = y * (1 - y)                                            # (1,)
            found.append(affine_candidate(slope / dp, torch.logit(y), x0[0], "sigmoid", y_error / dp,
                                          (slope_error + slope.abs() * y_error / dp) / dp))
    return found, True


def from_gradients_of_all(g: Together, link: Link | None) -> tuple[list[Candidate], bool]:
    x0 = g.snap(torch.full((1, g.dim), 0.0 if g.box is None else sum(g.box) / 2, dtype=torch.float64))
    try:
        y, slope = g.gradients(x0)                                      # (1, k), (1, k, d)
    except BudgetExhausted:
        nothing = Network(*units_of(x0.new_zeros(len(g.oracles), g.dim), x0.new_zeros(len(g.oracles))))
        return [Candidate(nothing, x0[0], nothing.q, nothing.P)], False
    slope = slope[0]                                                    # (k, d)
    y_error, slope_error = last_digit(y, g.dtype), last_digit(slope, g.dtype)
    found = []
    for kind in links_for(y, link, softmax=True):
        steep = torch.ones_like(y) if kind == "identity" else 1 / (y * (1 - y)) if kind == "sigmoid" else 1 / y
        rows = slope * steep.T                                          # of the logits, or of log p
        error = (slope_error + slope.abs() * y_error * steep.T) * steep.T
        if kind == "softmax":
            rows, error = rows - rows.mean(0), error + error.mean(0)
        found.append(affine_candidate(rows, logits_of(y, kind)[0], x0[0], kind, (y_error * steepness(y, kind))[0],
                                      error))
    return found, True


def from_values(f: ValueOracle, link: Link | None, step: float, progress: Progress) -> tuple[list[Candidate], bool]:
    low, length = (0.0, step) if f.box is None else (f.box[0], f.box[1] - f.box[0])
    d = f.dim
    asked = d + 1 if f.remaining is None else min(d + 1, f.remaining)
    X = torch.full((d + 1, d), low, dtype=torch.float64)
    X[1:].diagonal().add_(length)
    X = f.snap(X)
    if asked == 0:
        nothing = Network(*units_of(X.new_zeros(1, d), X.new_zeros(1)))
        return [Candidate(nothing, X[0], X.new_zeros(1), X.new_zeros(1, d))], False
    progress("axis steps", {"rows": asked})
    y = f(X[:asked]).double()                                           # (asked, k)
    for _ in range(CLOSER):
        # Where a step ran into saturation, a shorter one does better; only those rows are asked again.
        stuck = torch.nonzero(saturated(y, link)[1:])[:, 0] + 1
        if not len(stuck):
            break
        nearer = f.snap(X[0] + (X[stuck] - X[0]) / 8)
        try:
            y_there = f(nearer).double()
        except BudgetExhausted:
            break
        X[stuck], y[stuck] = nearer, y_there
    taken = (X[1:] - X[0]).diagonal()                                   # (d,) the steps after rounding
    y_error = last_digit(y, f.dtype)
    found = []
    for kind in links_for(y, link, softmax=True):
        z = logits_of(y, kind)                                          # (asked, k)
        z_error = y_error * steepness(y, kind)                          # (asked, k)
        slope = z.new_zeros(y.shape[1], d)
        slope_error = z.new_zeros(y.shape[1], d)
        slope[:, :asked - 1] = ((z[1:] - z[0]) / taken[:asked - 1, None]).T
        slope_error[:, :asked - 1] = ((z_error[1:] + z_error[0]) / taken[:asked - 1, None]).T
        found.append(affine_candidate(slope, z[0], X[0], kind, z_error[0], slope_error))
    return found, asked == d + 1


def saturated(y: Tensor, link: Link | None) -> Tensor:
    """(n,) bool: rows of probabilities so near 0 or 1 that their logits have lost digits. y: (n, k)"""
    if link == "identity" or bool(((y < 0) | (y > 1)).any()):
        return torch.zeros(len(y), dtype=torch.bool)
    classes = y.shape[1] > 1 and bool(((y.sum(1) - 1).abs() < 1e-3).all())
    # The logarithm of a small probability is exact until it underflows; 1 - p is not.
    return (y < 1e-12).any(1) if classes else ((y < FLAT) | (y > 1 - FLAT)).any(1)


def links_for(y: Tensor, link: Link | None, *, softmax: bool) -> Sequence[Link]:
    """The links that could have given these answers, likeliest first. y: (n, k)"""
    inside = bool(((y > 0) & (y < 1)).all())
    if link is not None:
        if link != "identity" and not inside:
            raise Refused(f"Answers behind a {link} lie strictly between 0 and 1; these range over "
                          f"[{float(y.min()):.6g}, {float(y.max()):.6g}].")
        return [link]
    if not inside:
        return ["identity"]
    # Rounded to a few places, probabilities miss one by half a last digit each.
    if softmax and y.shape[1] > 1 and bool(((y.sum(1) - 1).abs() <= 1e-5 + 0.5 * y.shape[1] * grain(y)).all()):
        return ["softmax", "identity"]
    return ["sigmoid", "identity"]


def logits_of(y: Tensor, link: Link) -> Tensor:
    if link == "softmax":
        z = torch.log(y)
        return z - z.mean(1, keepdim=True)
    return torch.logit(y) if link == "sigmoid" else y


def steepness(y: Tensor, link: Link) -> Tensor:
    """d logit / d answer"""
    if link == "identity":
        return torch.ones_like(y)
    each = 1 / (y * (1 - y)) if link == "sigmoid" else 1 / y
    return each if link == "sigmoid" else each + each.mean(1, keepdim=True)


def grain(y: Tensor) -> float:
    places = decimals_of(y, torch.float32)
    return 0.0 if places is None else 10.0**-places


def last_digit(y: Tensor, dtype: torch.dtype) -> Tensor:
    """The answers' own error: a few last digits of their arithmetic, or half a digit of what they are rounded to."""
    places = decimals_of(y, dtype)
    rounding = 0.0 if places is None or bool((y == y.round()).all()) else 0.5 * 10.0**-places
    return torch.as_tensor(4 * torch.finfo(dtype).eps * float(y.abs().max()) + rounding, dtype=torch.float64)


def affine_candidate(slope: Tensor, z0: Tensor, x0: Tensor, link: Link, base_error: Tensor,
                     slope_error: Tensor) -> Candidate:
    """slope (k, d) and logits z0 (k,) at x0 -> z = slope x + (z0 - slope x0)"""
    return Candidate(Network(*units_of(slope, z0 - slope @ x0), link), x0, base_error, slope_error)


def units_of(P: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(W, b, A, P, q) of a network without hidden units"""
    return P.new_zeros(0, P.shape[1]), P.new_zeros(0), P.new_zeros(len(q), 0), P, q


def chosen(oracle: Affine, candidates: Sequence[Candidate], rng: torch.Generator, n_check: int,
           tolerance: float | None, progress: Progress) -> tuple[Candidate, FunctionCertificate]:
    """The candidate that fits fresh probes best, with its certificate."""
    x, distribution = probes(oracle, n_check, rng)
    progress("checking", {"probes": n_check})
    answers = oracle(x)
    y = (answers[0][:, None] if isinstance(answers, tuple) else answers).double()       # (n, k)
    scored = []
    for candidate in candidates:
        residual = candidate.network(x) - y
        reach = float((x.abs() @ candidate.network.P.abs().T).max())    # the sums that the target rounds
        size = reach if candidate.network.link == "identity" else 0.25 * reach
        own = float(last_digit(y, oracle.dtype)) + 4 * torch.finfo(oracle.dtype).eps * size
        allowed = float(candidate.answer_error(x, own).max()) if tolerance is None else tolerance
        scored.append((float(residual.abs().max()) / max(allowed, 1e-300), candidate, residual, allowed))
    _, best, residual, allowed = min(scored, key=lambda s: s[0])
    return best, FunctionCertificate.of(residual, tolerance=allowed, distribution=distribution)


def probes(oracle: Affine, n: int, rng: torch.Generator) -> tuple[Tensor, str]:
    if oracle.box is None:
        x = torch.randn(n, oracle.dim, generator=rng, dtype=torch.float64)
        return oracle.snap(x), "standard normal"
    low, high = oracle.box
    x = low + (high - low) * torch.rand(n, oracle.dim, generator=rng, dtype=torch.float64)
    return oracle.snap(x).clamp(low, high), f"uniform in [{low:g}, {high:g}]"


def verdict(best: Candidate, certificate: FunctionCertificate) -> Status:
    if certificate.holds:
        return Status("ok", f"The target is affine behind its {best.network.link} link: {certificate.probes} fresh "
                      f"probes are off by at most {certificate.worst:.3g}.")
    return Status("not-affine", f"The target is not affine, neither plainly nor behind a sigmoid or softmax: "
                  f"{certificate.off} of {certificate.probes} probes are off by more than {certificate.tolerance:.3g} "
                  f"(worst {certificate.worst:.3g}). extract_from_gradients and extract_from_values find hidden units.")
