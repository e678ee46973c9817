"""What an audit will run, before anything is asked: stages, rows, seconds, money."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from foldline.auditing.defences import DEFENCES
from foldline.auditing.session import Estimate, Session, Stage
from foldline.auditing.spec import AuditFile
from foldline.errors import BadSpec

# method -> (module under stages, access of which one is needed)
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "span": ("span", ("gradients", "values")),
    "reconstruct": ("reconstruct", ("gradients", "values")),
    "weights": ("weights", ("weights",)),
    "imitate": ("imitate", ("gradients", "values")),
    "obfuscate": ("obfuscate", ("gradients", "values")),
    "extract": ("extract", ("gradients", "values")),
    "learn": ("learn", ("values",)),
    "labels": ("labels", ("labels",)),
}
NEEDS = {"reconstruct": "span", "obfuscate": "span"}


@dataclass(frozen=True)
class Planned:
    stage: Stage
    estimate: Estimate


def chosen_methods(audit: AuditFile, access: tuple[str, ...]) -> list[str]:
    """The file's methods, or all that the access allows, each after what it builds on."""
    wanted: tuple[str, ...] = audit.methods or tuple(m for m, (_, need) in METHODS.items() if set(need) & set(access))
    for name in wanted:
        need = METHODS[name][1]
        if not set(need) & set(access):
            raise BadSpec(f"The method {name} needs {' or '.join(need)}; the access is {', '.join(access)}.")
    missing = [NEEDS[m] for m in wanted if m in NEEDS and NEEDS[m] not in wanted]
    full = {*wanted, *missing}
    return [m for m in METHODS if m in full]


def plan(session: Session) -> list[Planned]:
    audit, main = session.audit, session.main
    stages: list[Stage] = [import_module(f"foldline.auditing.stages.{METHODS[m][0]}").STAGE
                           for m in chosen_methods(audit, main.access)]
    if audit.defences:
        from foldline.auditing.stages import defence
        stages += [defence.baseline(), *(defence.stage(DEFENCES[name]) for name in audit.defences)]
    return [Planned(stage, stage.estimate(session)) for stage in stages]


@dataclass(frozen=True)
class Plan:
    stages: list[Planned]
    budget: int | None
    price: float

    @property
    def total(self) -> Estimate:
        every = [s.estimate for s in self.stages]
        most = None if any(e.most is None for e in every) else sum(e.most or 0 for e in every)
        if self.budget is not None and (most is None or most > self.budget):
            most = self.budget
        return Estimate(sum(e.rows for e in every), sum(e.seconds for e in every), most=most,
                        exact=all(e.exact for e in every))


def planned_only(audit: AuditFile) -> Plan:
    """The plan of an audit without opening what would ask, train or listen."""
    from foldline.auditing import demo
    from foldline.auditing.subjects import subject_of
    own = audit.target == demo.TARGET
    main = demo.sketch(audit) if own else subject_of(audit)
    rows, _ = budget_rows(audit, main.price)
    session = Session(audit, dict.fromkeys(("main", "copy", "small") if own else ("main",), main), None, budget=rows)
    return Plan(plan(session), rows, main.price)


def budget_rows(audit: AuditFile, price: float) -> tuple[int | None, str]:
    """The number of rows that queries and money allow together, and which of the two binds."""
    limits = []
    if audit.budget.queries is not None:
        limits.append((audit.budget.queries, "queries"))
    if audit.budget.money is not None and price > 0:
        limits.append((int(audit.budget.money / price + 1e-9), "money"))
    return min(limits, default=(None, ""), key=lambda pair: pair[0])
