"""The span of the first layer from explanations, or from values where there are no explanations."""

from __future__ import annotations

from foldline.auditing.findings import assumption, certificate, cost, finding, method, of_its_share
from foldline.auditing.session import Estimate, Outcome, Session, Stage
from foldline.reports.document import Evidence, Spectrum
from foldline.span.result import SpanResult

TITLE = "The span of the training data"
EXPLAINS = ("In a trained network every row of the first layer is a combination of training inputs, and so is every "
            "input gradient. A few more explanations than there are training samples span the same space; how many "
            "samples there were shows as a gap in the singular values.")
EXTRA = 20              # rows beyond the number of samples, when the owner says how many there are
GUESS = 100             # directions, when nobody says
SPARE = 1024            # explanations beyond the input's dimensions at most: silent points, and asking again for noise


def expected(session: Session) -> int:
    owner = session.main.owner
    return (len(owner.train) if owner is not None else min(GUESS, session.dim())) + EXTRA


def estimate(session: Session) -> Estimate:
    n, note = expected(session), "stops by itself at the gap"
    if "gradients" in session.main.access:
        return Estimate(n, 0.02 * n, note, most(session))
    d = session.dim()
    return Estimate(n * (d + 1 + d // 39), 0.5 * n, f"{note}; values cost {d + 1} rows for each gradient")


def most(session: Session) -> int | None:
    """Explanations; values end with the audit's budget."""
    return session.dim() + SPARE if "gradients" in session.main.access else None


def attack(session: Session) -> SpanResult:
    import foldline as fl
    access = "gradients" if "gradients" in session.main.access else "values"
    found: SpanResult = fl.recover_span(session.oracle(access, most=most(session)), rng=session.rng("span"),
                                        progress=session.progress)
    return found


def tell(session: Session, result: SpanResult) -> Outcome:
    d, c = result.directions.shape[1], result.certificate
    values = [float(v) for v in result.singular_values]
    figure = Spectrum(
        id="span-spectrum", title="Where the singular values fall", values=values, rank=result.rank,
        floor=float(result.noise_floor) if result.noise_floor > 0 else None,
        marks={f"rank {result.rank}": result.rank + 0.5} if 0 < result.rank < len(values) else {},
        caption=f"Singular values of {len(result.gradients)} explanations scaled to unit length. {result.rank} stand "
                f"above the noise floor; the gap after them is {c.gap:.3g} wide.",
        alt=f"{result.rank} singular values above the noise floor, {max(0, len(values) - result.rank)} below it.")
    told = f"A space of {result.rank} dimensions, out of {d}, holds everything the model reacts to. "
    shown = result.status.ok and 0 < result.rank < d
    found = finding(
        session, "span", "The model's explanations stay in a small space",
        shown=shown, incomplete=not result.status.ok and result.rank > 0,
        what=told + ("Training inputs lie in it (up to their mean), and whatever is orthogonal to it is invisible to "
                     "the model." if shown else str(result.status)),
        limits="That the space is the span of the training set is an inference from how such networks train; the next "
               "finding tests it." if shown else "No gap was found in what these rows show; more rows may find one.",
        evidence=[certificate(f"{c.stable} further probes opened no new direction (at {c.confidence:.0%} confidence at "
                              f"most {c.fraction_bound:.0%} of such probes would); gap {c.gap:.3g}."),
                  Evidence(kind="measurement", text=f"The noise floor of the answers is {result.noise_floor:.2g} on "
                                                    f"the scale of the singular values.")],
        cost=cost(session, "one explanation each" if "gradients" in session.main.access else "values"),
        assumptions=[assumption("The answers have a spectrum with a gap.", c.gap_confidence > 0.5,
                                f"confidence {c.gap_confidence:.3f}")],
        fixes=["Serve no raw input gradients: fewer numbers per explanation, coarser ones, or none.",
               "Count explanations per client and stop well below the number of training samples (see the defences)."],
        numbers={"rank": float(result.rank), "fraction_of_input": result.rank / d, "gap": c.gap}, figures=[figure.id])
    told_as = method(STAGE, EXPLAINS, result, numbers={
        "rank": result.rank, "input dimensions": d, "gap": c.gap, "noise_floor": float(result.noise_floor),
        "explanations kept": len(result.gradients)}, figures=[figure.id])
    capped = (limit := most(session)) is not None and result.queries >= limit
    return Outcome(method=of_its_share(told_as) if capped else told_as, findings=[found], figures=[figure])


STAGE = Stage("span", TITLE, "main", estimate, attack, tell)
