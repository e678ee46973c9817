"""Students from few explanations: how well a stranger's copy agrees, against the rows it took."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from foldline.auditing.findings import assumption, cost, finding, share_interval
from foldline.auditing.session import Estimate, Outcome, Session, Stage, plain_status
from foldline.imitation.asking import REPEAT_FROM
from foldline.networks.presets import initialise
from foldline.reports.document import Curves, Evidence, Method, Series
from foldline.results import Status

TITLE = "A student from few explanations"
EXPLAINS = ("An explanation carries as many numbers as the input has, a label carries one. A student network that is "
            "trained to match values and explanations at a handful of points learns from each row what takes a student "
            "of values alone many rows.")
WIDTH = 128
CHECKS = 150            # further rows that measure agreement; an attacker would not need them


@dataclass(frozen=True, eq=False)
class Students:
    sizes: list[int]
    explained: list[Tensor]         # the student's answers on the check rows, one tensor per size
    plain: list[Tensor]             # the same, taught by values alone
    target: Tensor                  # the target's own answers there
    status: Status                  # of the last


def sizes_of(session: Session) -> list[int]:
    inputs = session.main.known.inputs
    most = len(inputs) - 20 if inputs is not None else max(session.audit.students)
    return sorted({min(n, max(1, most)) for n in session.audit.students})


def estimate(session: Session) -> Estimate:
    sizes, inputs = sizes_of(session), session.main.known.inputs
    checks = CHECKS if inputs is None else min(CHECKS, len(inputs) - max(sizes))
    doors = len({"gradients", "values"} & set(session.main.access))
    rows = checks + doors * sum(n + (n >= REPEAT_FROM) for n in sizes)
    return Estimate.exactly(rows, 15.0 * len(sizes), f"students of {', '.join(map(str, sizes))} rows"
                            + (", each with and without explanations" if doors == 2 else "")
                            + f"; {checks} rows only measure the agreement")


def attack(session: Session) -> Students:
    import foldline as fl
    inputs, rng = session.main.known.inputs, session.rng("imitate")
    sizes = sizes_of(session)
    d = session.dim()
    if inputs is None:
        low, high = session.main.known.box
        inputs = low + (high - low) * torch.rand(max(sizes) + CHECKS, d, generator=rng, dtype=torch.float64)
    lessons, checks = inputs[:max(sizes)], inputs[max(sizes):max(sizes) + CHECKS]
    with_values = "values" in session.main.access
    output = session.audit.output
    target = session.oracle("values")(checks).double() if with_values else \
        session.oracle("gradients")(checks)[0].double()[:, None]
    explained: list[Tensor] = []
    plain: list[Tensor] = []
    k = target.shape[1]

    def taught(n: int, with_explanations: bool) -> tuple[Tensor, Status]:
        name = f"student {n}" if with_explanations else f"plain student {n}"
        oracle = session.oracle("gradients" if with_explanations else "values", purpose=name)
        found = fl.imitate(oracle, student(d, 1 if with_explanations else k, session.rng(f"start of {name}")),
                           lessons[:n], "gradient" if with_explanations else None, rng=session.rng(name),
                           output=output if with_explanations else "all", progress=session.progress)
        return answers(found.network, checks), found.status

    for n in sizes:
        # Each student is taught from scratch and asks its own rows, as a stranger with that budget would.
        if "gradients" in session.main.access:
            y, status = session.part(f"student {n}", partial(taught, n, True))
            explained.append(y)
        if with_values:
            y, plain_status = session.part(f"plain student {n}", partial(taught, n, False))
            plain.append(y)
            status = status if explained else plain_status
    return Students(sizes, explained, plain, target, status)


def student(d: int, k: int, rng: torch.Generator) -> nn.Module:
    """Its start is drawn from `rng`: torch's global generator stands elsewhere after a kill."""
    layers = [nn.utils.skip_init(nn.Linear, d, WIDTH), nn.ReLU(), nn.utils.skip_init(nn.Linear, WIDTH, k)]
    module = nn.Sequential(*layers)
    initialise(module, rng)
    return module


def answers(network: nn.Module | None, x: Tensor) -> Tensor:
    if network is None:
        return torch.zeros(len(x), 1, dtype=torch.float64)
    with torch.no_grad():
        y: Tensor = network(x.to(next(network.parameters()).dtype))
    return y.double().reshape(len(x), -1)


def labels(y: Tensor) -> Tensor:
    return y.argmax(1) if y.shape[1] > 1 else (y[:, 0] >= 0).long()


def tell(session: Session, result: Students) -> Outcome:
    n = len(result.target)
    truth = labels(result.target)
    one = result.target.shape[1] == 1
    best_rows = result.explained if result.explained and one else result.plain or result.explained

    def agreements(found: list[Tensor]) -> list[float]:
        return [float((labels(y) == truth).double().mean()) for y in found]

    scores, plain_scores = agreements(best_rows), agreements(result.plain)
    # The null: a copy that always gives the target's most frequent answer.
    constant = float(truth.bincount().max()) / n
    chosen = max(range(len(scores)), key=lambda i: (scores[i], -result.sizes[i]))
    hits = round(scores[chosen] * n)
    series = [Series(name="with explanations", x=[float(s) for s in result.sizes], y=list(scores))] \
        if best_rows is result.explained else []
    if plain_scores:
        series.append(Series(name="values only", x=[float(s) for s in result.sizes], y=list(plain_scores)))
    series.append(Series(name="always the commonest answer", x=[float(s) for s in result.sizes],
                         y=[constant] * len(result.sizes), style="dashed"))
    figure = Curves(
        id="imitate-curve", title="Agreement against rows asked", x_label="rows asked", y_label="agreement",
        log_x=len(result.sizes) > 1, series=series, alt=f"The best student agrees in {scores[chosen]:.0%} of cases.",
        caption=f"How often a student of {WIDTH} hidden units, taught on so many rows, gives the model's answer on {n} "
                f"inputs neither was taught on.")
    what = "explanations" if best_rows is result.explained else "values"
    shown = scores[chosen] > constant + 0.05
    more = sum(session.asked.values()) - result.sizes[chosen]
    found = finding(
        session, "imitation", f"{result.sizes[chosen]} {what} are enough for a rough copy" if shown else
        "No useful copy came out of these rows", shown=shown,
        what=f"A student taught on {result.sizes[chosen]} {what} gives the model's own answer in {hits} of {n} cases"
             + (f"; taught on values alone, in {round(plain_scores[chosen] * n)}." if plain_scores and what != "values"
                else "."),
        limits="More rows, a student of the model's own kind, or inputs nearer to its data would agree more often.",
        evidence=[share_interval(hits, n, "Agreement"),
                  Evidence(kind="null", text=f"Always giving the commonest answer agrees in {constant:.0%} of cases.")],
        cost=cost(session, f"{result.sizes[chosen]} {what}; the audit asked {more:,} more rows, for students of other "
                           f"sizes, for those without explanations and to measure the agreement",
                  rows=result.sizes[chosen]),
        assumptions=[assumption("An attacker has inputs of the kind the model was made for.",
                                session.main.known.inputs is not None)],
        fixes=["Answer with fewer numbers: top labels, or coarse explanations.",
               "Log and limit explanations per client; ten are enough for a rough copy."],
        numbers={"agreement": scores[chosen], "gain": scores[chosen] - constant, "rows": float(result.sizes[chosen])},
        figures=[figure.id])
    numbers: dict[str, float | str | None] = {f"agreement after {s} rows": a
                                              for s, a in zip(result.sizes, scores, strict=True)}
    numbers |= {f"values only, {s} rows": a for s, a in zip(result.sizes, plain_scores, strict=False)}
    told = Method(id="imitate", title=TITLE, explains=EXPLAINS, rows=result.sizes[chosen], figures=[figure.id],
                  status=plain_status(result.status), numbers=numbers)
    return Outcome(method=told, findings=[found], figures=[figure])


STAGE = Stage("imitate", TITLE, "main", estimate, attack, tell)
