"""Exact extraction of a network with one hidden layer: every weight, from explanations or from values."""

from __future__ import annotations

import torch

from foldline.auditing.findings import assumption, certificate, cost, finding, method, of_its_share
from foldline.auditing.session import Estimate, Outcome, Session, Stage
from foldline.extract.result import Extraction
from foldline.randomness import unit_rows
from foldline.reports.document import Evidence, Folds

TITLE = "An exact copy of a one-hidden-layer network"
EXPLAINS = ("Along a line, a ReLU network is straight between folds, and each fold is one hidden unit. Two "
            "explanations on either side of a fold differ by that unit's weights; so a few rows per unit give the "
            "whole network, not an approximation of it.")
SHARE = 0.25            # of the remaining budget at most: on deeper networks the search cannot succeed
MOST = 3000
UNITS = 64
PROBES = 59              # all agreeing: at 95 % confidence at most 5 % of such inputs are off


def which(session: Session) -> str:
    return "small" if "small" in session.subjects else "main"


def allowed(session: Session) -> int:
    return MOST if session.left is None else max(1, min(MOST, int(SHARE * session.left)))


def estimate(session: Session) -> Estimate:
    subject = session.subjects[which(session)]
    if "gradients" in subject.access:
        return Estimate(min(4 * UNITS + PROBES, allowed(session)), 5.0, f"about 3 rows per hidden unit, and {PROBES}",
                        allowed(session))
    return Estimate(2 * UNITS * session.dim(which(session)), 30.0, "about one value per parameter")


def attack(session: Session) -> Extraction:
    import foldline as fl
    subject = which(session)
    rng = session.rng("extract")
    found: Extraction
    if "gradients" in session.subjects[subject].access:
        most = allowed(session)
        oracle = session.oracle("gradients", subject, most=most)
        found = fl.extract_from_gradients(oracle, rng=rng, max_queries=most, probes=PROBES,
                                          progress=session.progress)
    else:
        found = fl.extract_from_values(session.oracle("values", subject), rng=rng, progress=session.progress)
    return found


def tell(session: Session, result: Extraction) -> Outcome:
    c, a, name = result.certificate, result.assumptions, session.subjects[which(session)].name
    exact = result.status.ok and c.holds
    figures = [fold_figure(session, result)] if result.units else []
    W = result.network.W
    numbers = {"exact": float(exact), "worst_error": c.worst, "units": float(result.units)}
    found = finding(
        session, "extraction", f"{name} can be copied exactly" if exact else f"{name} was not copied exactly",
        shown=exact, incomplete=result.status.code in ("budget", "time"),
        what=f"All {result.units} hidden units of {name}, {W.numel() + len(W):,} weights and biases of the first layer "
             f"among them, were recovered from {result.queries:,} rows; the copy is off by at most {c.worst:.2g}."
             if exact else f"No exact copy was made of {name}: {result.status.message}",
        limits="" if exact else "A network of more than one hidden layer, noise, or a larger budget than this: exact "
                                "extraction says nothing about approximate copies.",
        evidence=[certificate(f"On {c.probes} fresh inputs ({c.distribution}) the copy is off by {c.worst:.2g} at "
                              f"most; at {c.confidence:.0%} confidence at most {c.fraction_bound:.0%} of such inputs "
                              f"are off by more than {c.tolerance:.2g}."),
                  Evidence(kind="measurement", text=f"{result.ratio:.2f} times the {result.limit:,} rows below which "
                                                    f"no method can know so many parameters.")],
        cost=cost(session),
        assumptions=[assumption("The rows of the first layer are independent.", a.independent,
                                f"rank {a.rank} of {result.units}"),
                     assumption("No two units have the same hyperplane.", a.smallest_angle > 0,
                                f"smallest angle {a.smallest_angle:.2g}")] if exact else
                    [assumption("The network has one hidden layer of ReLU units and answers without noise.", False)],
        fixes=["Answer labels, or probabilities rounded to few digits, instead of exact values and gradients.",
               f"Limit the rows per client below {result.queries:,}: fewer cannot fix so many weights.",
               "Treat an exactly recovered model as published: its weights give access to every white-box attack."],
        numbers=numbers, figures=[f.id for f in figures])
    told = method(STAGE, EXPLAINS, result, numbers={
        "target": name, "hidden units": result.units, "worst error": c.worst, "rows": result.queries,
        "least possible rows": result.limit, "signs unique": str(result.signs_unique)}, figures=[f.id for f in figures])
    # From values nothing is set aside: they end with the audit's budget.
    shared = "gradients" in session.subjects[which(session)].access
    return Outcome(method=of_its_share(told) if shared else told, findings=[found], figures=list(figures))


def fold_figure(session: Session, result: Extraction) -> Folds:
    """The copy from one input to another: its folds are known exactly, and the target need not be asked."""
    inputs = session.subjects[which(session)].known.inputs
    d = result.network.in_features
    ends = inputs[:2] if inputs is not None and len(inputs) >= 2 else unit_rows(2, d, rng=session.rng("folds"))
    x0, u = ends[0], ends[1] - ends[0]
    W, b = result.network.W, result.network.b
    crossing = (-(W @ x0 + b) / (W @ u))                                        # (h,)
    low, high = -1.0, 2.0
    folds = crossing[(crossing > low) & (crossing < high)].sort().values
    t = torch.cat([torch.linspace(low, high, 61, dtype=torch.float64), folds]).sort().values
    f = result.network.logits(x0 + t[:, None] * u)[:, 0]
    return Folds(id="extract-folds", title="Folds between two inputs", t=t.tolist(), f=f.tolist(), folds=folds.tolist(),
                 caption=f"The copy's output on the way from one input (0) to another (1) and beyond: straight between "
                         f"folds, and each fold is one hidden unit. {len(folds)} of {len(W)} units fold on this way.",
                 alt=f"A piecewise straight curve with {len(folds)} marked folds.")


STAGE = Stage("extract", TITLE, "main", estimate, attack, tell)
