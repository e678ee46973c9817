"""Several students of the same few answers, averaged, and one student taught by the average.

With ten queries the answers fix little of a network, and what they leave open differs from student to student: the mean
of a few is nearer to the target than any of them. The committee can be asked for nothing, so the final student
matches its values and gradients at points between the queries (mixtures of two, plus noise of the queries' own size per
input) together with the target's own answers. 784-128-10 from 10 MNIST queries, one draw: members 0.911 to 0.926,
their mean 0.940, a fresh student of the mean 0.932. It does not help on every draw: with a wider student and
shorter training it lost 0.6 (784-1024-10) and 7 points (784-128-10) on the one draw tried, so it is off unless it is
asked for. No row of the target is asked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from foldline.imitation.losses import Lesson, Pupil, vector_jacobian
from foldline.networks.presets import initialise
from foldline.randomness import Streams

MOST_QUERIES = 64               # beyond that the answers themselves fix the student, and the price is not worth it
POINTS = 24                     # synthetic points per step
WEIGHT = 2.0                    # of the committee's word against the target's

Train = Callable[[Pupil, str], None]


def gather_committee(pupil: Pupil, train: Train, streams: Streams, members: int) -> list[Pupil]:
    """Members that differ in their start; `train(pupil, name)` teaches one in place."""
    found: list[Pupil] = []
    for i in range(members):
        module: nn.Module = copy.deepcopy(pupil.module)
        initialise(module, streams(f"start of member {i}"))
        member = Pupil(module, pupil.ends, pupil.space, pupil.input_shape)
        train(member, f"member {i + 1} of {members}")
        module.eval()
        found.append(member)
    return found


def committee_loss(members: list[Pupil], lesson: Lesson, lam: float) -> Callable[[Pupil, torch.Generator], Tensor]:
    """loss(pupil, rng): distance to the committee's mean, values and all gradients, at fresh points."""
    spread = lesson.x.std(0) if lesson.n > 1 else torch.full_like(lesson.x[0], float(lesson.x.std()))
    spread = (spread.square() + 0.1 * spread.square().mean()).sqrt()                    # (d,)
    scale = metric_scale(members, lesson)

    def loss(pupil: Pupil, rng: torch.Generator) -> Tensor:
        x = between(lesson.x, spread, rng)                                              # (p, d)
        v = (torch.randint(2, (len(x), lesson.values.shape[1]), generator=rng) * 2 - 1).to(x)
        z_mean, g_mean = mean_answer(members, x, v)
        leaf = x.detach().requires_grad_(True)
        z = pupil(leaf)
        gap = vector_jacobian(z, leaf, v) - g_mean
        if lesson.metric is not None:
            gap = gap * lesson.metric
        l_G = gap.square().sum(1).mean() / scale
        return WEIGHT * (l_G + lam * (z - z_mean).square().sum(1).mean() / lesson.value_scale)

    return loss


def between(x: Tensor, spread: Tensor, rng: torch.Generator) -> Tensor:
    i, j = torch.randint(len(x), (2, POINTS), generator=rng)
    a = torch.rand(POINTS, 1, generator=rng).to(x)
    size = 0.5 * torch.rand(POINTS, 1, generator=rng).to(x)
    return a * x[i] + (1 - a) * x[j] + size * spread * torch.randn(POINTS, x.shape[1], generator=rng).to(x)


def mean_answer(members: list[Pupil], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_(True)
    z = torch.stack([m(leaf) for m in members]).mean(0)                                 # (p, k)
    (g,) = torch.autograd.grad((z * v).sum(), leaf)
    return z.detach(), g


def metric_scale(members: list[Pupil], lesson: Lesson) -> float:
    """The size of the committee's gradients at the queries, as they are compared."""
    rng = torch.Generator().manual_seed(0)
    v = (torch.randint(2, lesson.values.shape, generator=rng) * 2 - 1).to(lesson.x)
    with torch.enable_grad():
        _, g = mean_answer(members, lesson.x, v)
    g = g if lesson.metric is None else g * lesson.metric
    return float(g.square().sum(1).mean()) or 1.0

