"""fl.imitate: a student trained to answer as the target does, from the target's values and explanations at few points.

Paper 000, Sections 4 and 5. One query is one point: its values (n, k) and, with `explain`, the explanations of all
outputs (output="all"), of the predicted one (output="top", what most explanation APIs give) or of one by number.
Cost: one row per input, all asked first; everything after is computation on the answers.
Differs from the paper: answers are compared as logits or log-probabilities instead of probabilities, learning rate,
lambda and length are chosen on held-out answers, and linear students are solved for.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foldline.errors import BadInput
from foldline.imitation.asking import Asked, ask, open_oracle
from foldline.imitation.committee import why_not
from foldline.imitation.deep import prepared
from foldline.imitation.linear import only_linear, put, solve_affine
from foldline.imitation.losses import Lesson, Pupil, Scores, query_metric, score_lesson
from foldline.imitation.optimise import Plan, Taught, Trial, evaluating_all, rank_of, teach
from foldline.imitation.solved import solved_student
from foldline.imitation.spaces import Space, chosen_space, convert, ending, found_space
from foldline.imitation.unlabelled import carry
from foldline.networks.presets import initialise
from foldline.oracles.explain import Explain, Link, Output
from foldline.oracles.explain_forms import Form
from foldline.oracles.local import as_table
from foldline.oracles.shapes import conv_input_shape, declared_dim
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, Result, Status, silent

LINEAR_ENOUGH = 1e-6            # relative squared residual on unseen answers below which the target is linear


@dataclass(frozen=True)
class ImitationCertificate:
    """Scores of the chosen way of training on answers that it did not see (the student itself then saw all)."""

    held_out: Scores | None
    held_out_rows: int
    training_loss: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Imitation(Result):
    network: nn.Module | None       # the trained student, a copy; None where nothing was answered
    explained: str | None           # what was matched besides values: "gradient", "smoothgrad", ...; None: values only
    output: Output
    space: str                      # where answers were compared
    form: str
    solved: bool                    # by algebra
    plan: Plan | None
    trials: tuple[Trial, ...]
    seconds: float


def imitate(target: Any, student: nn.Module, inputs: Tensor, explain: Explain | Any | None = "gradient", *,
            rng: torch.Generator, output: Output = "all", match: Space | None = None,
            answers: Literal["logits", "probabilities", "log-probabilities"] | None = None,
            link: Link = "identity", form: Form | None = None, samples: int = 50, sigma: float | None = None,
            path_steps: int = 50, baseline: float = 0.0, budget: int | None = None, steps: int | None = None,
            plans: list[Plan] | None = None, committee: int | None = None, soft: float = 0.0, scale: float = 1.0,
            unlabelled: Tensor | None = None, input_shape: tuple[int, ...] | None = None,
            run: Path | str | None = None, repeat: bool | None = None, progress: Progress = silent) -> Imitation:
    """Train a copy of `student` on what `target` answers at `inputs` (n, d).

    explain: "gradient", "smoothgrad", "gradient_x_input", "integrated_gradients", a captum attribution, or None.
    link: what stands between the target and its answers here, as in link="softmax" for an API of probabilities.
    answers: what the answers are, where it cannot be read off them. match: the space of comparison.
    form: what the API does to explanations before it shows them; found by itself for d >= 16.
    steps or plans: fix the training instead of choosing it on held-out answers. committee: how many students, from
    different starts, are averaged into one network that many times as wide (committee.py); None: 3 where 32 explained
    queries or fewer are asked and the student's layers allow it, else 1. A wider student does more.
    soft: how soft the student's folds start (soften.py), where explanations are matched; 1.8x the time. The
    command passes NOISE_SOFTNESS for Gaussian queries.
    scale: the target is asked at scale * inputs and taught as f(scale x) / scale. Against SmoothGrad whose noise is
    many times the inputs: far out a ReLU network is homogeneous but for its biases, which are then not seen.
    unlabelled: other pictures like the inputs, (m, d); none is asked, and what a committee was taught is carried to
    them (unlabelled.py): by default from up to 32 explained queries, with committee=3 from any answers.
    repeat: ask the first row twice, to notice a target that answers at random; None: from 16 queries on.
    """
    streams = Streams(rng)
    x = checked_inputs(inputs)
    if not 0 <= soft < math.inf:
        raise BadInput(f"soft must be zero or a positive number, not {soft}.")
    if committee is not None and committee > 1 and why_not(student) is not None:
        raise BadInput(f"committee={committee} cannot be: {why_not(student)}.")
    if unlabelled is not None:
        unlabelled = checked_inputs(unlabelled, "unlabelled")
        if unlabelled.shape[1] != x.shape[1]:
            raise BadInput(f"unlabelled has rows of {unlabelled.shape[1]} numbers, inputs of {x.shape[1]}.")
    student, made = fresh(student, streams)
    scalable = explain in ("gradient", "smoothgrad") and only_linear(student) is None
    if not 0 < scale < math.inf or (scale != 1 and not scalable):
        raise BadInput(f"scale={scale} (--stretch above 10) cannot be: it is a positive number, other than 1 only for "
                       f"the gradient or SmoothGrad and for a student that is not linear.")
    shape = input_shape or getattr(student, "input_shape", None) or conv_input_shape(student)
    k = checked_student(student, shape, x.shape[1])
    oracle, notes = open_oracle(target, explain, output, link=link, form=form, samples=samples, sigma=sigma,
                                path_steps=path_steps, baseline=baseline, noise=streams("smoothgrad noise"),
                                budget=budget, input_shape=None, run=run)
    if oracle.dim != x.shape[1]:
        raise BadInput(f"The queries have {x.shape[1]} numbers each, but the target takes {oracle.dim}.")
    asked = ask(oracle, scale * x, progress, repeat)
    asked.notes = [*made, *notes, *asked.notes]
    if scale != 1:
        asked.notes.append(f"The target was asked at {scale:.3g} times the inputs: the student is what the target is "
                           f"there, without its biases.")
    if form is not None:
        asked.form = form
    provenance = Provenance("imitate", streams.seed, {
        "explain": explain if isinstance(explain, str) or explain is None else type(explain).__name__,
        "output": output, "link": link, "inputs": len(x), "samples": samples, "sigma": sigma, "steps": steps,
        "scale": scale, "unlabelled": 0 if unlabelled is None else len(unlabelled)})
    if len(asked.x) == 0:
        return nothing(asked, output, provenance)
    lesson, ends = lesson_of(asked, student, k, match, answers, scale)
    start = copy.deepcopy(student)
    pupil = Pupil(student, ends, lesson.space, tuple(shape) if shape else None)
    lesson = prepared(pupil, lesson)
    progress("solving", {"done": 0, "total": 1})
    exact = solved_student(pupil, lesson) if plans is None and steps is None else None
    if exact is not None:
        asked.notes.append(exact.said())
        affine, taught, held_out = True, None, None
    else:
        affine, taught, held_out = learn(pupil, lesson, streams, steps, plans, committee, soft, progress)
    if taught is not None and not affine:
        student = taught.module
    student.eval()
    if unlabelled is not None and taught is not None and not affine and math.isfinite(taught.loss):
        taught, said = carry(pupil.like(student), taught, start, lesson, unlabelled, streams=streams, progress=progress)
        student = taught.module
        asked.notes += [said] if said else []
    if taught is not None and len(taught.members) > 1 and not affine:
        asked.notes.append(f"The student is the mean of {len(taught.members)} that differ in their start, as one "
                           f"network of {len(taught.members)} times the width.")
    loss = taught.loss if taught else exact.residual if exact is not None else float("nan")
    return Imitation(
        status=status_of(asked, taught, lesson), queries=asked.queries, provenance=provenance,
        certificate=ImitationCertificate(held_out, 0 if held_out is None else held_rows(lesson.n), loss),
        network=student, explained=None if lesson.explanations is None else lesson.recipe.kind, output=output,
        space=lesson.space, form=lesson.form, solved=affine, plan=taught.plan if taught else None,
        trials=taught.trials if taught else (), seconds=taught.seconds if taught else 0.0)


def learn(pupil: Pupil, lesson: Lesson, streams: Streams, steps: int | None, plans: list[Plan] | None,
          committee: int | None, soft: float, progress: Progress) -> tuple[bool, Taught | None, Scores | None]:
    """(solved by algebra?, what training did, scores on answers that were not seen)"""
    layer = only_linear(pupil.module)
    if layer is None:
        taught = teach(pupil, lesson, streams=streams, steps=steps, plans=plans, committee=committee,
                       soft=soft, progress=progress)
        return False, taught, taught.held_out
    progress("solving", {"done": 0, "total": 1})
    held = held_rows(lesson.n)
    order = torch.randperm(lesson.n, generator=streams("held out"))
    affine = solve_affine(lesson.part(order[held:])) if held else solve_affine(lesson)
    scores = None
    if affine is not None and held:
        put(layer, affine)
        with evaluating_all(pupil.module):
            scores = score_lesson(pupil, lesson.part(order[:held]), rng=streams("score"))
    whole = solve_affine(lesson) if affine is not None else None
    if whole is not None and (scores is None or scores.total < LINEAR_ENOUGH):
        put(layer, whole)
        return True, None, scores
    # Not a linear target: descent on the same answers may serve the classes better than least squares does.
    initialise(pupil.module, streams("student"))
    taught = teach(pupil, lesson, streams=streams, steps=steps, plans=plans, committee=committee,
                       soft=soft, progress=progress)
    if whole is not None and scores is not None and taught.held_out is not None \
            and by_class(scores) < by_class(taught.held_out):
        put(layer, whole)
        return True, taught, scores
    return False, taught, taught.held_out


def by_class(scores: Scores) -> float:
    value = scores.cross_entropy if math.isfinite(scores.cross_entropy) else rank_of(scores)
    return value if math.isfinite(value) else math.inf


def held_rows(n: int) -> int:
    return 0 if n < 4 else max(1, min(n // 5, 500))


def checked_inputs(inputs: Tensor, name: str = "inputs") -> Tensor:
    if not isinstance(inputs, Tensor) or inputs.ndim < 2:
        raise BadInput(f"{name} must be a tensor of queries, one per row: shape (n, d).")
    if len(inputs) == 0:
        raise BadInput(f"There are zero queries to learn from: {name} needs at least one row.")
    if not inputs.is_floating_point():
        raise BadInput(f"{name} must be floating point, not {inputs.dtype}.")
    return inputs.detach().reshape(len(inputs), -1)


def fresh(student: nn.Module, streams: Streams) -> tuple[nn.Module, list[str]]:
    if not isinstance(student, nn.Module):
        raise BadInput(f"A student is a torch module, not {type(student).__name__}.")
    student = copy.deepcopy(student)
    parameters = list(student.parameters())
    if not parameters:
        raise BadInput("The student has no parameters to train.")
    weights = [p for p in parameters if p.ndim > 1]
    if weights and all(float(p.detach().abs().max()) == 0.0 for p in weights):
        initialise(student, streams("student"))                     # a network of zeros has no gradient to follow
        return student, ["The student's weights were all zero; it was given PyTorch's default start."]
    return student, []


def checked_student(student: nn.Module, shape: tuple[int, ...] | None, d: int) -> int:
    """The number of outputs, or a sentence on why the student cannot be asked such rows."""
    wants = math.prod(shape) if shape else declared_dim(student)
    if wants is not None and wants != d:
        raise BadInput(f"The student takes {wants} inputs{f' {tuple(shape)}' if shape else ''}, but the queries have "
                       f"{d}.")
    dtype = next(student.parameters()).dtype
    try:
        with evaluating_all(student), torch.no_grad():
            row = torch.zeros(1, d, dtype=dtype)
            out = as_table(student(row.reshape(1, *shape) if shape else row), 1)
    except Exception as error:
        raise BadInput(f"The student cannot be asked rows of {d} numbers: {type(error).__name__}: {error}. Pass "
                       f"input_shape= if it takes another shape.") from error
    return out.shape[1]


def lesson_of(asked: Asked, student: nn.Module, k: int, match: Space | None, answers: Space | None,
              scale: float = 1.0) -> tuple[Lesson, Space]:
    """The answers in the space of comparison and the student's dtype; of f(scale x) / scale, at x."""
    dtype = next(student.parameters()).dtype
    if scale != 1:
        sigma = asked.recipe.sigma
        asked = replace(asked, x=asked.x / scale,
                        recipe=replace(asked.recipe, sigma=None if sigma is None else sigma / scale))
    ends = ending(student)
    if asked.labels is not None:
        return labels_lesson(asked, k, dtype), ends
    assert asked.values is not None
    if asked.values.shape[1] != k:
        raise BadInput(f"The target answers {asked.values.shape[1]} outputs, but the student has {k}.")
    answered: Space = answers or found_space(asked.values)
    if k == 1 and answers is None and ends == "log-odds" and float(asked.values.min()) >= 0 \
            and float(asked.values.max()) <= 1:
        answered = "probabilities"
    space = chosen_space(answered, match, ends, k)
    if scale != 1 and space == "probabilities":
        raise BadInput(f"scale={scale} cannot be where probabilities are compared: they are not homogeneous.")
    values, e = convert(asked.values, asked.explanations, asked.of, answered, space)
    values = values / scale
    probabilities = None
    if k > 1:
        probabilities = values if space == "probabilities" else values.double().softmax(1)
    metric = query_metric(asked.x) if asked.form == "signed" and e is not None else None
    if metric is not None and e is not None:
        e = e * metric.to(e)
    size = float(values.double().square().sum(1).mean())
    spread = 1.0 if e is None else float(e.double().square().sum((1, 2)).mean())
    return Lesson(asked.x.to(dtype), values.to(dtype), None if probabilities is None else probabilities.to(dtype),
                  None if e is None else e.to(dtype), asked.of, space, asked.recipe, asked.form,
                  size or 1.0, spread or 1.0, None if metric is None else metric.to(dtype)), ends


def labels_lesson(asked: Asked, k: int, dtype: torch.dtype) -> Lesson:
    assert asked.labels is not None
    top = int(asked.labels.max())
    classes = max(k, 2)
    if top >= classes or int(asked.labels.min()) < 0:
        raise BadInput(f"The target answers labels up to {top}, but the student has {k} outputs.")
    asked.code = "labels_only"
    asked.notes.append("The target answers labels only: confidences and explanations are lost, so the student learns "
                       "one class per query and needs far more of them.")
    hot = nn.functional.one_hot(asked.labels, classes).to(dtype)
    if k == 1:
        signs = (2 * hot[:, 1:] - 1) * 4                            # a logit that says the class with 98 %
        return Lesson(asked.x.to(dtype), signs, None, None, None, "logits", asked.recipe, "signed", 16.0, 1.0)
    return Lesson(asked.x.to(dtype), hot, hot, None, None, "logits", asked.recipe, "signed", 1.0, 1.0)


def status_of(asked: Asked, taught: Taught | None, lesson: Lesson) -> Status:
    notes = (*asked.notes, *(taught.notes if taught else ()))
    if taught is not None and not math.isfinite(taught.loss):
        return Status("diverged", "Training did not stay finite at any learning rate tried; the student is its start.",
                      notes)
    if asked.short_of_budget:
        return Status("budget", f"The budget ended {asked.short_of_budget} queries early; the student was trained on "
                                f"{lesson.n}.", notes)
    if asked.code != "ok":
        return Status(asked.code, "The student was trained on less than was asked for.", notes)
    return Status("ok", "Done.", notes)


def nothing(asked: Asked, output: Output, provenance: Provenance) -> Imitation:
    code = "budget" if asked.short_of_budget and not asked.dropped else "bad_answers"
    message = "The budget allows no query; nothing was asked." if code == "budget" else \
        f"Every one of {asked.dropped} answers held NaN or infinity: there is nothing to learn from."
    return Imitation(status=Status(code, message, tuple(asked.notes)), queries=asked.queries, provenance=provenance,
                     certificate=ImitationCertificate(None, 0, float("nan")), network=None, explained=None,
                     output=output, space="", form=asked.form, solved=False, plan=None, trials=(), seconds=0.0)


def as_row(result: Imitation) -> dict[str, Any]:
    """The numbers of a result without its network: one line of a table."""
    held = result.certificate.held_out
    return {"queries": result.queries, "explained": result.explained, "status": result.status.code,
            "solved": result.solved, "plan": None if result.plan is None else asdict(replace(result.plan)),
            "held_out": None if held is None else asdict(held), "fit_seconds": round(result.seconds, 2)}
