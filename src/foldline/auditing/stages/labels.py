"""What labels alone give away: directions of the first layer by following the decision boundary, and training samples
out of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foldline.auditing.findings import assumption, certificate, cost, finding, method, of_its_share
from foldline.auditing.session import Estimate, Outcome, Session, Stage
from foldline.auditing.stages.reconstruct import told
from foldline.auditing.stages.span import EXTRA, expected
from foldline.auditing.subjects import Known
from foldline.errors import FoldlineError
from foldline.reports.document import Evidence, Figure, Finding
from foldline.span.result import SpanResult

TITLE = "What labels alone give away"
EXPLAINS = ("A label is one bit, but where it flips lies the decision boundary, and its normal at a point is a "
            "direction of the first layer. Bisection measures it in every coordinate: tens of thousands of labels "
            "for what one explanation says outright, and then the same separation into training samples works.")
PER_DIRECTION = 46      # rows per input dimension and direction, for float64; float32 has fewer bits to ask for
SHARE = 0.5             # of the budget that is left at most
MOST = 1_000_000
MOST_UNASKED = 100_000  # of somebody's API when the audit file sets no budget: a million is for those who say so
FIXES = ["Labels alone are slow to read, not closed: limit rows per client well below what one direction took.",
         "Refuse inputs far from real data, and watch for thousands of inputs that differ in the last digits."]


@dataclass(frozen=True, eq=False)
class FromLabels:
    span: SpanResult | None         # None: not even one direction was affordable
    found: Any | None               # the reconstruction
    why_not: str = ""


def allowed(session: Session) -> int:
    if session.left is None:
        return MOST_UNASKED if session.main.address.startswith("http") else MOST
    return min(MOST, int(SHARE * session.left))


def estimate(session: Session) -> Estimate:
    one = PER_DIRECTION * session.dim()
    if allowed(session) < one:
        return Estimate.exactly(0, 0.0, f"not tried: one direction takes about {one:,} labels, {allowed(session):,} "
                                        f"may be spent")
    rows = min(allowed(session), one * (expected(session) - EXTRA))
    return Estimate(rows, rows / 12_000, f"about {one:,} labels per direction", allowed(session))


def attack(session: Session) -> FromLabels:
    known, one = session.main.known, PER_DIRECTION * session.dim()
    if allowed(session) < one:
        return FromLabels(None, None, f"One direction takes about {one:,} labels, and {allowed(session):,} may be "
                                      f"spent on this method at this budget.")
    return from_labels(session, session.oracle("labels", most=allowed(session)), known)


def from_labels(session: Session, oracle: Any, known: Known) -> FromLabels:
    """Span and samples. Also what the defence that leaves only labels is tried with."""
    import foldline as fl
    span = fl.recover_span_from_labels(oracle, rng=session.rng("labels"), progress=session.progress)
    if span.status.code == "one_class" and known.inputs is not None:
        span = fl.recover_span_from_labels(oracle, rng=session.rng("labels from inputs"), data=known.inputs,
                                           progress=session.progress)
    if not 0 < span.rank < span.directions.shape[1]:
        return FromLabels(span, None)
    try:
        return FromLabels(span, fl.reconstruct_from_span(span, rng=session.rng("reconstruct"), mean=known.mean,
                                                         image_shape=known.image_shape, box=known.box))
    except FoldlineError as error:
        return FromLabels(span, None, str(error))


def tell(session: Session, result: FromLabels) -> Outcome:
    from foldline.reports.document import Method, Status
    if result.span is None:
        skipped = finding(session, "label-span", "Labels alone were not tried", shown=False, what=result.why_not,
                          limits="A larger budget would try it; this says nothing about what labels give away.",
                          cost=cost(session), fixes=FIXES, numbers={"rank": None})
        return Outcome(method=Method(id="labels", title=TITLE, explains=EXPLAINS, rows=0, status=Status(
            ok=False, code="skipped", message=result.why_not)), findings=[skipped])
    span, d = result.span, result.span.directions.shape[1]
    findings: list[Finding] = [span_finding(session, span, d)]
    figures: list[Figure] = []
    if result.found is not None:
        recovered, figures = told(
            session, session.main, result.found, "training-data-labels", "labels", off="labels alone", fixes=FIXES,
            cost=cost(session, f"{span.queries:,} labels", rows=span.queries), source=f"{span.queries:,} labels",
            all_of_them=False)
        findings.insert(0, recovered)
    numbers = {"directions": span.rank, "input dimensions": d, "labels asked": span.queries,
               "labels per direction": round(span.queries / max(span.rank, 1))}
    shown = method(STAGE, EXPLAINS, span, numbers=numbers, figures=[f.id for f in figures])
    return Outcome(method=of_its_share(shown), findings=findings, figures=figures)


def span_finding(session: Session, span: SpanResult, d: int) -> Finding:
    evidence = [certificate(f"Each direction was measured in every coordinate left open; the worst is off by an "
                            f"estimated {span.noise_floor:.2g}. {span.certificate.stable} moves within their null "
                            f"space changed no label since the last was found.")]
    if "span" in session.stages and span.rank:
        within = ((span.basis @ session.result("span").basis.T).square().sum(1)).sqrt()      # (rank,)
        evidence.append(Evidence(kind="measurement", text=(
            f"Against the span that explanations or values gave: {float(within.median()):.4f} of the median "
            f"direction's length lies in it, {float(within.min()):.4f} of the worst one's (a random direction: "
            f"{(session.result('span').rank / d) ** 0.5:.2f}).")))
    return finding(
        session, "label-span", "Labels alone give directions of the first layer", shown=span.rank > 0,
        what=f"{span.rank} of the directions that the model reacts to, out of {d} dimensions, were measured from "
             f"{span.queries:,} labels; no value and no explanation was asked. {span.status.message}" if span.rank else
             f"No direction was measured from {span.queries:,} labels. {span.status.message}",
        limits="" if span.status.ok else "More labels, or other points of the boundary, may give the others.",
        evidence=evidence, cost=cost(session),
        assumptions=[assumption("The decision boundary is flat between folds, and labels do not flicker.",
                                span.rank > 0 if span.status.code != "nondeterministic" else False)],
        fixes=FIXES, numbers={"rank": float(span.rank), "rows_per_direction": span.queries / max(span.rank, 1)})


STAGE = Stage("labels", TITLE, "main", estimate, attack, tell)
