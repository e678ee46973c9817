"""Training a student on few answers, with learning rate, lambda and length chosen from a held-out part of them.

A run is Adam with warm-up and cosine decay on unbiased draws of the joint loss. With one to a few dozen queries every
step sees them all; the noise is only in the projection of the outputs. Candidates are compared after a fifth of the
steps on answers they did not see; with five or more such answers the best is run twice as long, and kept short if that
made it clearly worse; the final student starts afresh with all answers, and where they are few so do some more, whose
mean it becomes (committee.py). Test labels and test images play no part.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from foldline.imitation.committee import gather, members_for
from foldline.imitation.losses import Lesson, Pupil, Scores, ValueLoss, joint_loss, score_lesson
from foldline.imitation.soften import Softened, tau_at
from foldline.randomness import Streams
from foldline.results import Progress, silent

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
REPORT_SECONDS = 0.3
RETRIES = 3                     # a run that blows up starts again at a quarter of the rate
BATCH = 32
TRIAL_SHARE = 5                 # of the steps, which candidates are compared after
FEWEST_TO_HOLD_OUT = 4          # below that every answer is needed, and the defaults stand
FEWEST_FOR_LENGTH = 5           # one or two unseen answers rank learning rates well, but not lengths


@dataclass(frozen=True)
class Plan:
    lr: float = 2e-3
    lam: float = 0.1
    steps: int = 1500
    batch: int = BATCH
    values: ValueLoss = "squared"
    soft: float = 0.0           # how soft folds are at the start (soften.py); only explanations need it


@dataclass(frozen=True)
class Trial:
    """One candidate: its plan and what it scored on the answers it did not see."""

    plan: Plan
    scores: Scores
    seconds: float


@dataclass(frozen=True)
class Taught:
    module: nn.Module           # the student, or the mean of several
    plan: Plan
    trials: tuple[Trial, ...]
    held_out: Scores | None     # of the chosen plan; None where nothing could be held out
    loss: float                 # joint loss at the end, mean of the last steps
    seconds: float
    notes: tuple[str, ...]
    members: tuple[nn.Module, ...] = ()     # those that it is the mean of


def default_plans(lesson: Lesson, steps: int | None, soft: float = 0.0) -> list[Plan]:
    """The grid. Values alone need more steps and have two losses to choose from. With few explained queries longer is
    not better: 1,200 against 400 steps from 10 queries lost a point or two of accuracy on most draws tried."""
    if lesson.explanations is not None:
        deep = lesson.smoothing is not None                         # many layers (deep.py) learn more slowly
        noisy = lesson.recipe.kind == "smoothgrad"                  # the target's draws and the student's
        T = steps or (700 if lesson.n <= BATCH else 2400 if deep else 1600 if noisy else 800)
        if deep:
            return [Plan(lr, 0.1, T, soft=soft) for lr in (6e-3, 3e-3)]
        return [Plan(lr, lam, T, soft=soft) for lr, lam in ((3e-3, 0.01), (3e-3, 0.1), (1e-3, 0.01))]
    T = steps or max(800, min(1500 if lesson.n <= 2000 else 3000, 12 * lesson.n))
    if lesson.probabilities is None:
        return [Plan(3e-3, 1.0, T, 2 * BATCH), Plan(1e-3, 1.0, T, 2 * BATCH)]
    return [Plan(3e-3, 1.0, T, 2 * BATCH, "squared"), Plan(3e-3, 1.0, T, 2 * BATCH, "cross_entropy"),
            Plan(1e-3, 1.0, T, 2 * BATCH, "squared")]


def teach(pupil: Pupil, lesson: Lesson, *, streams: Streams, steps: int | None = None,
          plans: Sequence[Plan] | None = None, committee: int | None = None, soft: float = 0.0,
          progress: Progress = silent) -> Taught:
    """Choose a plan and train pupil.module with it, in place, from the parameters it has, and the committee with it."""
    start_time = time.perf_counter()
    start = copy.deepcopy(pupil.module.state_dict())
    plans = list(plans) if plans is not None else default_plans(lesson, steps, soft)
    trials: list[Trial] = []
    plan, held_out, notes = plans[0], None, []
    if len(plans) > 1 and lesson.n >= FEWEST_TO_HOLD_OUT:
        plan, held_out = choose(pupil, lesson, plans, start, streams, trials, progress)
    elif len(plans) > 1:
        plan = default_of(plans)
        notes.append(f"With {lesson.n} answers none was held out: learning rate and lambda are the defaults.")
    pupil.module.load_state_dict(start)
    ends: list[tuple[Plan, int]] = []

    def train(one: Pupil, name: str) -> float:
        end, loss, retried = run(one, lesson, plan, streams=streams, name=name, progress=progress)
        ends.append((end, retried))
        return loss

    members = members_for(pupil.module, lesson.n if lesson.explanations is not None else None, committee)
    module = pupil.module
    averaged: list[nn.Module] = []
    if members > 1:
        module, loss, averaged = gather(pupil, train, streams, members)
    else:
        loss = train(pupil, "final")
    retried = sum(r for _, r in ends)
    plan = replace(plan, lr=min(end.lr for end, _ in ends))
    if retried:
        notes.append(f"Training blew up {retried} times and was started again; the learning rate ended at {plan.lr:g}.")
    return Taught(module, plan, tuple(trials), held_out, loss, time.perf_counter() - start_time, tuple(notes),
                  tuple(averaged))


def default_of(plans: Sequence[Plan]) -> Plan:
    """Where nothing can be held out: the first of the grid."""
    return plans[0]


def choose(pupil: Pupil, lesson: Lesson, plans: Sequence[Plan], start: dict[str, torch.Tensor], streams: Streams,
           trials: list[Trial], progress: Progress) -> tuple[Plan, Scores]:
    order = torch.randperm(lesson.n, generator=streams("held out"))
    held = max(1, min(lesson.n // 5, 500))
    unseen, seen = lesson.part(order[:held]), lesson.part(order[held:])

    def tried(plan: Plan, name: str) -> Trial:
        before = time.perf_counter()
        pupil.module.load_state_dict(start)
        run(pupil, seen, plan, streams=streams, name=name, progress=progress)
        with evaluating_all(pupil.module):
            scores = score_lesson(pupil, unseen, rng=streams("score"))
        trial = Trial(plan, scores, time.perf_counter() - before)
        trials.append(trial)
        return trial

    short = [tried(replace(p, steps=max(50, p.steps // TRIAL_SHARE)), f"trial {i + 1} of {len(plans)}")
             for i, p in enumerate(plans)]
    best = min(range(len(plans)), key=lambda i: rank_of(short[i].scores))
    if held < FEWEST_FOR_LENGTH:
        return plans[best], short[best].scores
    # Twice as long: if the answers it did not see get clearly worse, so would the whole length.
    longer = tried(replace(plans[best], steps=max(100, 2 * plans[best].steps // TRIAL_SHARE)), "length")
    if rank_of(longer.scores) <= 1.1 * rank_of(short[best].scores):
        return plans[best], longer.scores
    return replace(plans[best], steps=short[best].plan.steps), short[best].scores


def rank_of(scores: Scores) -> float:
    """With explanations the relative residuals; for values alone the cross-entropy, which both losses share."""
    no_explanations = scores.explanations != scores.explanations
    value = scores.cross_entropy if no_explanations and scores.cross_entropy == scores.cross_entropy else scores.total
    return value if math.isfinite(value) else math.inf


def run(pupil: Pupil, lesson: Lesson, plan: Plan, *, streams: Streams, name: str,
        progress: Progress = silent) -> tuple[Plan, float, int]:
    """Train in place; (the plan in the end, the loss, how often it had to start again)."""
    start = copy.deepcopy(pupil.module.state_dict())
    for attempt in range(RETRIES + 1):
        loss = descend(pupil, lesson, plan, streams, name, progress)
        if math.isfinite(loss):
            return plan, loss, attempt
        pupil.module.load_state_dict(start)
        plan = replace(plan, lr=plan.lr / 4)
    return plan, math.inf, RETRIES


def descend(pupil: Pupil, lesson: Lesson, plan: Plan, streams: Streams, name: str,
            progress: Progress) -> float:
    parameters = [p for p in pupil.module.parameters() if p.requires_grad]
    if not parameters:
        return 0.0
    optimiser = torch.optim.Adam(parameters, plan.lr, fused=True)
    batches, draws = streams(f"batches of {name}"), streams(f"draws of {name}")
    recent: list[float] = []
    last = time.perf_counter()
    folds = Softened()
    with torch.enable_grad(), learning(pupil, lesson):
        for i in range(plan.steps):
            for group in optimiser.param_groups:
                group["lr"] = plan.lr * rate(i / plan.steps)
            part = lesson if lesson.n <= plan.batch else \
                lesson.part(torch.randint(lesson.n, (plan.batch,), generator=batches))
            folds.tau = tau_at(plan.soft, i / plan.steps)
            with folds if folds.tau else contextlib.nullcontext():
                loss = joint_loss(pupil, part, lam=plan.lam, values=plan.values, rng=draws)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            if i >= plan.steps - 50 or i % 100 == 0:
                recent = [*recent[-49:], float(loss.detach())]
                if not math.isfinite(recent[-1]):
                    return math.inf
            now = time.perf_counter()
            if now - last > REPORT_SECONDS:
                last = now
                progress(name, {"done": i + 1, "total": plan.steps, "loss": float(loss.detach()), "lr": plan.lr,
                                "lambda": plan.lam})
    finite = all(bool(p.isfinite().all()) for p in parameters)
    return sum(recent) / len(recent) if finite else math.inf


def rate(t: float) -> float:
    """A tenth of the run to warm up, then half a cosine down."""
    return (t + 1e-3) / 0.101 if t < 0.1 else 0.5 * (1 + math.cos(math.pi * (t - 0.1) / 0.9))


@contextlib.contextmanager
def learning(pupil: Pupil, lesson: Lesson) -> Iterator[None]:
    """Modes for training. A gradient through batch statistics mixes the rows of a batch, so with explanations (and
    with few values) normalisation is measured once on the queries and then held; dropout is off."""
    module = pupil.module
    norms = [m for m in module.modules() if isinstance(m, NORMS)]
    modes = [(m, m.training) for m in module.modules()]
    few = lesson.explanations is not None or lesson.n < 256
    module.train()
    try:
        if norms and few:
            calibrate(pupil, lesson, norms)
        if few:
            module.eval()
        yield
    finally:
        for m, training in modes:
            m.training = training


def calibrate(pupil: Pupil, lesson: Lesson, norms: Sequence[nn.Module]) -> None:
    """Running statistics := those of the queries, for the student as it stands."""
    rows = lesson.x[:512]
    if len(rows) == 1:                  # one row has no variance per channel in the deepest layers
        return
    kept = [getattr(m, "momentum", None) for m in norms]
    for m in norms:
        m.momentum = None               # type: ignore[assignment]
        m.reset_running_stats()         # type: ignore[operator]
    with torch.no_grad():
        pupil(rows)
    for m, momentum in zip(norms, kept, strict=True):
        m.momentum = momentum           # type: ignore[assignment]


@contextlib.contextmanager
def evaluating_all(module: nn.Module) -> Iterator[None]:
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training
