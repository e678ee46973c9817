"""One defence: what the attacks still get behind it, and what it costs honest users.

Where the owner's own model is at hand (the demo, or weights access), defences are tried on it, in this process and
through the same wrappers that `foldline serve` switches on; nothing of that is billed. Otherwise the target's answers
are changed on their way to the attack, which asks the target again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foldline.auditing import retrain
from foldline.auditing.defences import Defence
from foldline.auditing.judging import judge
from foldline.auditing.session import Estimate, Outcome, Session, Stage
from foldline.auditing.spec import AuditFile
from foldline.auditing.stages import labels
from foldline.auditing.stages import span as span_stage
from foldline.auditing.subjects import Subject, local
from foldline.errors import BadSpec, FoldlineError
from foldline.oracles.protocols import Kind, Source
from foldline.reports.document import DefenceRow, Method
from foldline.reports.document import Status as PlainStatus

HONEST = 200            # inputs on which honest users' loss is measured
PATIENCE = 3            # behind a defence the span may ask so many times what it took without one
EXTRACTION_ROWS = 400
MANY = 1.5              # times the rank without a defence
SHORT = {"budget": "The span was not complete when the rows were used up.", "no_gap": "The span has no visible end."}


@dataclass(frozen=True, eq=False)
class Answers:
    """What honest users are told: the audited output, its explanations and the decisions, as far as there are any."""

    values: Tensor                      # (n,)
    explanations: Tensor | None         # (n, d)
    decisions: Tensor | None            # (n,) classes


@dataclass(frozen=True, eq=False)
class Leak:
    """What was got behind one defence."""

    span: Any | None = None
    samples: Tensor | None = None
    extraction: Any | None = None
    honest: Answers | None = None                           # on honest inputs
    plain: Answers | None = None                            # the same of the model as it is, without the defence
    owner: Subject | None = None                            # whose training set counts
    remark: str = ""


UNDEFENDED = Defence("none", "answers", "no defence", "raw answers")


def baseline() -> Stage:
    return stage(UNDEFENDED)


def stage(defence: Defence) -> Stage:
    return Stage(f"defence-{defence.name}", f"Defence: {defence.title}", "copy",
                 lambda session: estimate(session, defence), lambda session: attack(session, defence),
                 lambda session, leak: tell(session, defence, leak))


def estimate(session: Session, defence: Defence) -> Estimate:
    seconds = {"training": 12.0, "answers": 6.0, "access": 4.0}[defence.group]
    own, by_label = "copy" in session.subjects or session.main.module is not None, defence.switches.get("top_label")
    if by_label and own and "labels" not in (session.audit.methods or ("labels",)):
        return Estimate.exactly(0, 60.0, "half a million labels of the owner's own copy, not billed")
    if why_not(session, defence):
        return Estimate.exactly(0, 0.0, "not tried: it needs what only the owner has")
    if own:
        return Estimate.exactly(0, seconds, "on the owner's own copy, not billed")
    x, access = honest_inputs(session.main), session.main.access
    doors = len({"values", "gradients"} & set(access)) or 1
    fixed = 0 if x is None else len(x) * (doors + (1 if by_label else doors))
    if by_label or "gradients" not in access:
        return Estimate.exactly(fixed, seconds, "asks the target again")
    share = defence.budget_share
    about, most = span_stage.expected(session), span_stage.most(session) or 0
    if share is not None:
        about, most = max(1, int(share * about)), max(1, int(share * most))
    else:
        most *= PATIENCE
    return Estimate(fixed + about, seconds, "asks the target again", fixed + most)


def why_not(session: Session, defence: Defence) -> str:
    """Why a defence cannot be tried on this target, before anything is asked for it."""
    if "copy" in session.subjects:                      # the demo's owner has everything
        return ""
    if defence.group == "training" and (missing := retrain.why_not(session.main)):
        return f"The defence {defence.name} trains the model anew: {missing}."
    if defence.switches.get("smoothgrad") and session.main.module is None:
        return ("SmoothGrad over somebody's gradients would ask 50 rows for one: it is tried where the model's weights "
                "are at hand.")
    return ""


def honest_inputs(subject: Subject) -> Tensor | None:
    owner = subject.owner
    x = owner.test if owner is not None and owner.test is not None else subject.known.inputs
    return None if x is None else x[:HONEST]


def owners_model(session: Session, defence: Defence) -> Subject:
    """The subject the defence is tried on: the owner's copy where there is one."""
    if why_not(session, defence):
        raise BadSpec(why_not(session, defence))
    if defence.group == "training":
        from foldline.auditing.demo import victim
        assert session.run is not None
        seed, folder = session.audit.seed, Path(session.run.folder)
        if "copy" in session.subjects:
            return victim(defence.name, seed, folder, session.progress)
        return retrain.retrained(session.main, defence.name, session.audit, folder, session.progress)
    return session.subjects.get("copy", session.main)


def attack(session: Session, defence: Defence) -> Leak:
    import foldline as fl
    subject = owners_model(session, defence)
    x = honest_inputs(subject)
    scale = 1.0
    plain = None
    if x is not None:
        # A retrained model is compared with the one it would replace.
        as_it_is = session.subjects.get("copy", session.main) if defence.group == "training" else subject
        plain = answers(session, behind(as_it_is, UNDEFENDED, 1.0, session.audit), x, "plain")
        scale = float(plain.explanations.abs().amax(1).median()) if plain.explanations is not None else 1.0
    defended = behind(subject, defence, scale, session.audit)
    honest = answers(session, defended, x, "honest") if x is not None and plain is not None else None
    if defended.access == ("labels",):
        return by_labels(session, defended, Leak(honest=honest, plain=plain, owner=subject))
    if "gradients" not in defended.access:
        return Leak(honest=honest, plain=plain, owner=subject,
                    remark="There are no explanations to defend; a span from values was not tried behind it.")
    undefended = session.outcomes.get("span")
    budget = PATIENCE * undefended.method.rows if undefended is not None and undefended.method.rows else None
    if defence.budget_share is not None:
        if undefended is None:
            raise BadSpec("A share of the span's rows needs the span: add it to the methods.")
        budget = max(1, int(defence.budget_share * undefended.method.rows))
    oracle = open_oracle(session, defended, "gradients", "span", budget)
    span = fl.recover_span(oracle, rng=session.rng("span"), progress=session.progress)
    full_rank = span.rank
    samples, remark = None, "" if span.status.ok else SHORT.get(span.status.code, span.status.message)
    if undefended is not None and span.rank > MANY * (rank := int(float(undefended.method.numbers["rank"] or 0))) > 0:
        # Unmixing hundreds of directions that have no end takes minutes and finds nothing; the strongest may hold some.
        span = replace(span, basis=span.directions[:rank], rank=rank)
        remark = f"The span has no visible end; its {rank} strongest directions were unmixed."
    if "reconstruct" in session.stages and 0 < span.rank < oracle.dim:
        try:
            known = subject.known
            # Where the span has no end, snapping to the box takes long and finds nothing (Adam, images above chance: 16
            # without it in 13 s, 12 with it in 109); on spans that are only short of rows it finds more than twice as
            # much (15 rows: 14 images instead of 6).
            blurred = span.rank < full_rank
            if blurred:
                remark += " Candidates were not snapped to the range of pixels: a lower bound."
            found = fl.reconstruct_from_span(span, rng=session.rng("reconstruct"), image_shape=known.image_shape,
                                             mean=known.mean, box=None if blurred else known.box)
            samples = found.samples
        except FoldlineError as error:
            remark = str(error)
    extraction = None
    if "small" in session.subjects and defence.group == "answers":
        extraction = extract_behind(session, defence)
    return Leak(span, samples, extraction, honest, plain, subject, remark)


def by_labels(session: Session, defended: Subject, leak: Leak) -> Leak:
    """Labels of the target itself, if the audit asked for them; else of the owner's copy, if there is one."""
    if "labels" in session.outcomes:
        return leak
    if defended.module is None:
        return replace(leak, remark=f"A span from labels takes about {labels.PER_DIRECTION * session.dim():,} rows for "
                                    f"each direction and was not tried: add labels to the methods.")
    found = labels.from_labels(session, open_oracle(session, defended, "labels", "labels", labels.MOST), defended.known)
    assert found.span is not None
    return replace(leak, span=found.span, samples=None if found.found is None else found.found.samples,
                   remark="" if found.span.status.ok else found.span.status.message)


def told_by_labels(session: Session) -> dict[str, Any]:
    """The row of the stage that asked the target for labels alone."""
    outcome = session.outcomes["labels"]
    found = {f.id: f.numbers for f in outcome.findings}
    row: dict[str, Any] = {"rows": outcome.method.rows, "rank": found["label-span"].get("rank"), "status":
                           "" if outcome.method.status.ok else outcome.method.status.message}
    if (samples := found.get("training-data-labels")) is not None and samples.get("of"):
        row |= {"recovered": samples["count"], "null": samples["by_chance"], "clear": samples["clear"]}
    return {k: int(v) if isinstance(v, float) else v for k, v in row.items()}


def extract_behind(session: Session, defence: Defence) -> Any:
    """The one-hidden-layer victim behind the same defence, on the owner's own copy."""
    import foldline as fl
    from foldline.auditing.demo import victim
    assert session.run is not None
    small = victim("small", session.audit.seed, Path(session.run.folder))
    x = small.known.inputs
    assert x is not None
    gradients = answers(session, small, x[:HONEST], "small").explanations
    assert gradients is not None
    defended = behind(small, defence, float(gradients.abs().amax(1).median()), session.audit)
    return fl.extract_from_gradients(open_oracle(session, defended, "gradients", "extract", None),
                                     rng=session.rng("extract"), max_queries=EXTRACTION_ROWS)


def behind(subject: Subject, defence: Defence, scale: float, audit: AuditFile) -> Subject:
    """The subject as a client sees it when the defence is on."""
    from foldline.serving.steady import Steady
    from foldline.serving.switching import defended, explained
    from foldline.serving.victim import Switches
    settings: dict[str, Any] = {**defence.switches, **{k: v * scale for k, v in defence.relative.items()}}
    switches = Switches(**settings)

    def opened(kind: Kind) -> Source:
        source: Source = subject.open(kind)
        if defence.box:
            source = source if subject.module is None else local(subject.module, kind, audit, subject.known.box)
        steady = Steady(source) if subject.module is not None else source
        if kind == "gradient" and switches.smoothgrad:
            steady = explained(Steady(source), "smoothgrad", 0)
        return defended(steady, switches)

    access = ("labels",) if switches.top_label else subject.access
    return replace(subject, open=opened, access=access)


def open_oracle(session: Session, subject: Subject, access: str, purpose: str, budget: int | None) -> Any:
    """An oracle over the owner's copy (free), or over the target itself (billed)."""
    return session.oracle_over(subject, access, purpose, billed=subject.module is None, budget=budget)


def answers(session: Session, subject: Subject, x: Tensor, purpose: str) -> Answers:
    """What the subject answers at x; labels stand in for values behind label-only."""
    decisions = explained = None
    if "values" in subject.access:
        rows = open_oracle(session, subject, "values", purpose, None)(x).double()                   # (n, k)
        values = rows[:, session.audit.output]
        decisions = rows.argmax(1) if rows.shape[1] > 1 else (values >= session.audit.threshold).long()
    elif "labels" in subject.access:
        decisions = open_oracle(session, subject, "labels", purpose, None)(x).long()
        values = decisions.double() - 0.5
    if "gradients" in subject.access:
        purpose = purpose if decisions is None else f"{purpose} explained"
        told, explained = (t.double() for t in open_oracle(session, subject, "gradients", purpose, None)(x))
        values = told if decisions is None else values
    return Answers(values, explained, decisions)


def tell(session: Session, defence: Defence, leak: Leak) -> Outcome:
    owner = leak.owner.owner if leak.owner is not None else None
    description = defence.description
    private = leak.owner.facts.get("training", "").partition("; ")[2] if leak.owner is not None else ""
    if defence.group == "training" and private:
        description = f"{description}; {private}"
    row: dict[str, Any] = {"name": defence.title, "description": description, "status": leak.remark,
                           "group": "none" if defence.name == "none" else defence.group}
    if leak.span is not None:
        row |= {"rows": leak.span.queries, "rank": int(leak.span.ranks[-1]) if len(leak.span.ranks) else 0}
    if owner is not None:
        row["of"] = len(owner.train)
        if leak.samples is not None and len(leak.samples):
            known = session.main.known
            samples = leak.samples if known.mean is None else leak.samples + known.mean
            verdict = judge(samples, owner, known.mean is not None, known.image_shape)
            row |= {"recovered": verdict.count, "null": verdict.null_count, "clear": verdict.score.above["0.9"]}
        elif leak.span is not None:
            row |= {"recovered": 0, "clear": 0}
    if defence.switches.get("top_label") and "labels" in session.outcomes:
        row |= told_by_labels(session)
    if leak.extraction is not None:
        row |= {"extraction_rows": leak.extraction.queries,
                "extraction_error": leak.extraction.certificate.worst if leak.extraction.status.ok else None}
    row |= honest_numbers(leak)
    method = Method(id=f"defence-{defence.name}", title=defence.title, explains=defence.description, rows=0,
                    status=PlainStatus(ok=True, code="ok", message=leak.remark or "Done."))
    return Outcome(method=method, row=DefenceRow.model_validate(row))


def honest_numbers(leak: Leak) -> dict[str, float | None]:
    if leak.honest is None or leak.plain is None:
        return {}
    y, e, y0, e0 = leak.honest.values, leak.honest.explanations, leak.plain.values, leak.plain.explanations
    found: dict[str, float | None] = {}
    # One class for all inputs: a model of no use, or a probability whose threshold was not given.
    told, known = leak.honest.decisions, leak.plain.decisions
    if told is not None and known is not None and known.unique().numel() > 1:
        found["decisions_changed"] = float((told != known).double().mean())
    spread = float(y0.std()) or 1.0
    owner = leak.owner.owner if leak.owner is not None else None
    if owner is not None and owner.test_labels is not None and told is not None:
        found["accuracy"] = float((told == owner.test_labels[:len(told)]).double().mean())
    if leak.owner is not None and "values" in leak.owner.access and y.unique().numel() > 2:
        found["output_change"] = float((y - y0).abs().mean()) / spread
    if e is not None and e0 is not None:
        turned = 1 - torch.nn.functional.cosine_similarity(e, e0, dim=1)
        turned[(e == e0).all(1)] = 0.0                      # also where both are nothing, which has no cosine
        found["explanation_change"] = max(0.0, float(turned.mean()))
    return found
