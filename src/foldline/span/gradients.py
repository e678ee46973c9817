"""Span of the first layer from input gradients, or from values through differences.

f(x) = s(A x) has gradients in the row space of A, and at generic points k of them span it (Algorithm 1 of Jayaram,
Woodruff and Zhang). Cost: about rank + 2 gradients when the arithmetic is exact, rank + 12 when the spectrum falls
into noise (float32, trained victims); from values each gradient costs 1.026 d rows and all outputs share it.

method="gaussian": the paper's points, fixed before the first query (`points` lists them; `answers` reads them back).
method="adaptive": each point sets out from one that spoke, up its slope (away from where the output is dead) and into
the null space of what is known (points.py). It stops when the rank has been stable for `patience` probes that could
have changed it; most of them move a known point far into the null space, where a missing direction shows as a changed
answer. If the rank ever grew again after a pause, longer pauses are waited for. The rank is where the singular values
fall to the noise (rank.py); from noisy values, directions near the noise are asked about (weak.py).

Differs from the paper: rows scaled to unit length, so that saturated or steep points weigh the same; a gap test
instead of 1e-5 of the largest singular value; any number of outputs; adaptive points. The paper's own "adaptive"
curve (GradientsRandomAda) projects points away from what is known; ours does so to confirm.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from foldline.errors import BadInput, BudgetExhausted
from foldline.oracles.protocols import GradientOracle, ValueOracle
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, Status, fraction_upper_bound, silent
from foldline.span.points import gaussian_points
from foldline.span.rank import CLIFF, SHORT_TAIL, RankDecision
from foldline.span.result import SpanCertificate, SpanResult
from foldline.span.search import ONE_PIECE, SILENCE, Search

PATIENCE = 2
CONFIDENCE = 0.95


def recover_span(g_or_f: GradientOracle | ValueOracle, *, rng: torch.Generator,
                 method: Literal["adaptive", "gaussian"] = "adaptive", points: Tensor | int | None = None,
                 data: Tensor | None = None, patience: int = PATIENCE, max_points: int | None = None,
                 noise: float | None = None, within: Tensor | None = None,
                 progress: Progress = silent) -> SpanResult:
    """The row space of the first layer, as far as gradients or values show it.

    points: for "gaussian", how many (default: d, or 4 d / 3 in a budget's reach) or the points themselves (n, d); for
    "adaptive", points to ask first. data: points of the kind the target was made for, mixed into the adaptive ones.
    noise: relative error of one gradient, if it is known to be larger than the arithmetic's. within (p, d): orthonormal
    rows; from values with few digits only the gradients' part in their span is asked for, p rows a point instead of d.
    """
    if not isinstance(g_or_f, (GradientOracle, ValueOracle)):
        raise BadInput(f"recover_span needs a gradient or a value oracle, not {type(g_or_f).__name__}; "
                       f"from labels use recover_span_from_labels.")
    if method not in ("adaptive", "gaussian"):
        raise BadInput(f"method is 'adaptive' or 'gaussian', not {method!r}.")
    streams = Streams(rng)
    d, used = g_or_f.dim, g_or_f.used
    for name, given in (("points", points), ("data", data)):
        if isinstance(given, Tensor) and (given.ndim != 2 or given.shape[1] != d or len(given) == 0):
            raise BadInput(f"{name} must have shape (n, {d}) with at least one row, not {tuple(given.shape)}.")
    if within is not None:
        within = checked_subspace(g_or_f, within)
    search = Search(g_or_f, streams, data=data, patience=patience, noise=noise, within=within, progress=progress,
                    max_points=max_points if max_points is not None else d + 8 * SILENCE)
    try:
        if method == "gaussian":
            search.all_at_once(listed_points(g_or_f, points, streams))
        else:
            search.adaptively(points if isinstance(points, Tensor) else None)
    except BudgetExhausted:
        search.stopped = "budget"
    parameters = {"method": method, "patience": patience, "max_points": max_points, "noise": noise,
                  "points": len(points) if isinstance(points, Tensor) else points,
                  "within": None if within is None or not search.rough else len(within)}    # whole otherwise
    return result_of(search, g_or_f.used - used, Provenance("recover_span", streams.seed, parameters))


def checked_subspace(oracle: GradientOracle | ValueOracle, within: Tensor) -> Tensor:
    if isinstance(oracle, GradientOracle):
        raise BadInput("within= saves rows where gradients are made of values; this target answers whole gradients.")
    rows, d = within.double(), oracle.dim
    if rows.ndim != 2 or rows.shape[1] != d or not 0 < len(rows) <= d:
        raise BadInput(f"within must be (p, {d}) with 1 to {d} rows, not {tuple(within.shape)}.")
    if not float((rows @ rows.T - torch.eye(len(rows), dtype=torch.float64)).abs().max()) < 1e-6:
        raise BadInput("The rows of within must be orthonormal.")
    return rows


def listed_points(oracle: GradientOracle | ValueOracle, points: Tensor | int | None, streams: Streams) -> Tensor:
    if isinstance(points, Tensor):
        return points.double()
    n = points
    if n is None:
        per_point = 1 if isinstance(oracle, GradientOracle) else oracle.dim + 1
        n = oracle.dim + PATIENCE
        if oracle.remaining is not None:
            n = max(1, min(n, oracle.remaining // per_point))
    return gaussian_points(n, oracle.dim, rng=streams("points"), box=oracle.box)


def result_of(search: Search, queries: int, provenance: Provenance) -> SpanResult:
    D, s, V = search.seen.decide(SHORT_TAIL)
    rank = D.rank
    status = status_of(search, D)
    m, d = len(search.seen.rows), search.d
    # Sharp arithmetic excludes more; in noise, weak directions may hide, but no more than there were probes.
    sharp = (D.kind == "noise" and D.gap >= CLIFF) or (search.repeats >= ONE_PIECE and D.tail == 0)
    upper = d if not status.ok else rank if sharp or rank == d else min(d, len(search.seen.useful))
    stable = search.stable if provenance.parameters["method"] == "adaptive" else max(0, D.tail)
    certificate = SpanCertificate(
        stable=stable, fraction_bound=fraction_upper_bound(0, stable, CONFIDENCE) if stable else 1.0,
        confidence=CONFIDENCE, null_moves=search.null_moves, null_change=search.null_change, gap=D.gap,
        gap_confidence=D.confidence)
    empty = torch.zeros(0, d, dtype=torch.float64)
    return SpanResult(
        status=status, queries=queries, certificate=certificate, provenance=provenance,
        basis=V[:rank].clone(), rank=rank, upper_bound=upper, singular_values=s, directions=V,
        noise_floor=D.noise_floor, gradients=torch.stack(search.seen.rows) if m else empty,
        values=torch.tensor(search.seen.values, dtype=torch.float64),
        points=torch.stack(search.seen.points) if m else empty, outputs=torch.tensor(search.seen.outputs),
        link=(search.differences.link or "identity") if search.differences is not None else "identity",
        ranks=torch.tensor(search.seen.ranks))


def status_of(search: Search, D: RankDecision) -> Status:
    notes: list[str] = []
    if search.unchecked:
        notes.append(f"{search.unchecked} points were dropped: folds too close for differences.")
    if search.seen.outliers:
        notes.append(f"{search.seen.outliers} gradients were left out: each showed a direction that no other one has.")
    if D.gap_found and D.gap < CLIFF and D.rank:
        notes.append(f"Directions weaker than {D.noise_floor:.1e} of a gradient would be buried in the noise.")
    if D.kind == "tail":
        notes.append(f"The {D.tail} values after the gap are flat near {D.noise_floor:.1e}, above what rounding "
                     f"explains: a rest that the network hardly uses, not counted.")
    extra = tuple(notes)
    found = f"{D.rank} of at most {search.d} directions were found"
    if len(search.seen.useful) == 0:
        asked = f"all {search.asked} gradients that were asked are zero" if search.asked else "nothing was asked"
        if search.stopped == "budget":
            return Status("budget", f"The budget ran out: {asked}.", extra)
        return Status("constant", f"The target seems to ignore its input: {asked}. If it does answer to some "
                      f"inputs, pass them as data=.", extra)
    if D.rank >= search.d:
        return Status("ok", f"Full rank: all {search.d} directions matter and there is no null space.", extra)
    if search.repeats >= ONE_PIECE and D.tail == 0:
        return Status("ok", f"{found}; {search.repeats} further points, at growing scales, only repeated them.", extra)
    probes = max(search.stable, D.tail)
    if search.stopped == "budget" and D.kind == "noise" and D.gap >= CLIFF and probes < search.wait():
        return Status("budget", f"The budget ran out: {found}, and only {probes} further probes say that these are "
                      f"all.", extra)
    if D.gap_found:
        return Status("ok", f"{found}; the gap after them is {D.gap:.3g} wide.", extra)
    if search.stopped == "budget":
        return Status("budget", f"The budget ran out: {found}, and no gap says that these are all.", extra)
    if search.stopped == "silence":
        return Status("silent", f"{found}, then {search.stream.silent} gradients in a row were zero; pass points "
                      f"that the target answers to as data=.", extra)
    if D.tail == 0:
        return Status("unfinished", f"{found}, and every gradient still opened a new one: ask more points.", extra)
    return Status("no_gap", f"{found} above the noise floor of {D.noise_floor:.1e}, but the singular values sink "
                  f"into it without a gap: the true rank may be larger.", extra)
