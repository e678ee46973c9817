"""A copy with a bound on its error, from values alone: any network with one hidden layer, close units included."""

from __future__ import annotations

from foldline.auditing.findings import assumption, certificate, cost, finding, method, of_its_share
from foldline.auditing.session import Estimate, Outcome, Session, Stage
from foldline.auditing.stages.extract import which
from foldline.extract.learn_result import LearnResult
from foldline.reports.document import Curves, Evidence, Series

TITLE = "A learnt copy, from values alone"
EXPLAINS = ("Where there are no explanations, values on a line still show the folds, and differences of values on both "
            "sides of a fold give its unit. Fresh random inputs then say how far the copy is off, as a bound that "
            "holds with stated confidence, also where units nearly coincide and exact extraction fails.")
EPSILON, DELTA = 1e-3, 0.05
SHARE = 0.25            # of the budget that is left at most
MOST = 100_000
UNITS = 64


def allowed(session: Session) -> int:
    return MOST if session.left is None else max(1, min(MOST, int(SHARE * session.left)))


def estimate(session: Session) -> Estimate:
    rows = min(allowed(session), UNITS * (session.dim(which(session)) + 8))
    return Estimate(rows, rows / 8000, "about d + 8 values per hidden unit", allowed(session))


def attack(session: Session) -> LearnResult:
    import foldline as fl
    found: LearnResult = fl.learn_from_queries(session.oracle("values", which(session), most=allowed(session)), EPSILON,
                                               DELTA, rng=session.rng("learn"), progress=session.progress)
    return found


def tell(session: Session, result: LearnResult) -> Outcome:
    c, name = result.certificate, session.subjects[which(session)].name
    learnt = result.status.ok and c.holds
    reached = min((e for _, e in result.history), default=1.0)      # of the target's spread
    capped = result.status.code == "budget"
    rows = [(n, e) for n, e in result.history if e > 0]
    figure = Curves(
        id="learn-error", title="Error against rows asked", x_label="values asked", y_label="error over spread",
        log_x=True, log_y=True, series=[Series(name="error on fresh inputs", x=[float(n) for n, _ in rows],
                                               y=[e for _, e in rows],
                                               style="line" if len(rows) > 2 else "points"),
                                        Series(name="asked for", x=[float(rows[0][0]), float(rows[-1][0])],
                                               y=[EPSILON, EPSILON], style="dashed")] if rows else [],
        caption="The root mean square error of the copy over the spread of the answers, under Gaussian inputs.",
        alt=f"The error falls to {reached:.2g} after {result.queries:,} values.")
    figures = [figure] if len(rows) > 1 else []
    found = finding(
        session, "learning", f"{name} can be learnt from its values" if learnt else f"{name} was not learnt to a bound",
        shown=learnt, incomplete=capped,
        what=f"A copy with {result.units} hidden units came out of {result.queries:,} values; its error is at most "
             f"{c.bound:.2g} of the answers' spread." if learnt else
             f"No copy of {name} with an error below {EPSILON:g} came out of {result.queries:,} values; the best was "
             f"off by about {reached:.2g} of the answers' spread. {result.status.message}",
        limits="" if learnt else "Networks with more hidden layers, noise, or more units than these rows can fix: this "
                                 "bound says nothing about rough copies.",
        evidence=[certificate(f"On {c.probes} fresh inputs ({c.distribution}) the error is {c.relative_error:.2g} of "
                              f"the spread; at {c.confidence:.1%} confidence at most {c.bound:.2g} for errors whose "
                              f"kurtosis is below {c.kurtosis:.3g}, and at most {c.fraction_bound:.1%} of inputs are "
                              f"off by more than {c.epsilon:g}.")] if c.probes else
                 [Evidence(kind="measurement", text=f"Error on the last rows asked: {reached:.2g} of the spread; "
                                                    f"nothing is certified.")],
        cost=cost(session),
        assumptions=[assumption("The network has one hidden layer of ReLU units.", True if learnt else None)],
        fixes=["Answer labels, or values rounded to few digits.",
               f"Limit the values per client well below {result.queries:,}.",
               "Add hidden layers: this method and exact extraction both need a network of one."],
        numbers={"certified": float(learnt), "bound": c.bound if c.probes else None, "error": reached,
                 "units": float(result.units)}, figures=[f.id for f in figures])
    told = method(STAGE, EXPLAINS, result, numbers={
        "target": name, "hidden units": result.units, "bound": c.bound if c.probes else None, "error": reached,
        "rows": result.queries, "lines searched": result.lines}, figures=[f.id for f in figures])
    return Outcome(method=of_its_share(told), findings=[found], figures=list(figures))


STAGE = Stage("learn", TITLE, "main", estimate, attack, tell)
