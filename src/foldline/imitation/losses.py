"""The losses of paper 000, Section 4, for all outputs at the price of one.

    l_M = cross-entropy to the target's probabilities, or the squared distance of values
    l_G = |e(x) - e_student(x)|^2, summed over the explained outputs
    l_J = l_G + lambda l_M

One vector-Jacobian product instead of one graph per output: for random signs v, E |v^T (J - J')|^2 = |J - J'|_F^2, so
each step draws v per row and differentiates v . f once, and then through it. SmoothGrad and integrated gradients are
means over points x + u (explain.py); the student is explained the same way at two independent draws, whose product
(g1 - e).(g2 - e) has the squared distance of the means as its expectation: two draws are enough, without bias.
Differs from the paper: both parts are divided by the size of the target's answers, so that lambda means the same for
every target; each input counts by its variance over the queries (query_metric); forms that lost sign, scale or
extremes are compared up to what they lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foldline.imitation.spaces import Space, student_in
from foldline.oracles.explain import Recipe
from foldline.oracles.explain_forms import Form
from foldline.oracles.local import as_table

ValueLoss = Literal["squared", "cross_entropy"]
SMOOTH_DRAWS = 2
BEYOND_CHANCE = 2.0             # noise gives 0.9 to 1.1, blends of MNIST 2.2 (5 rows) to 24 (100), CIFAR-10 0.8 to 1.2


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a student is taught, in the space of comparison; everything in the student's dtype."""

    x: Tensor                           # (n, d)
    values: Tensor                      # (n, k)
    probabilities: Tensor | None        # (n, k): what cross-entropy needs; None for regression
    explanations: Tensor | None         # (n, m, d)
    of: Tensor | None                   # (n, m)
    space: Space
    recipe: Recipe
    form: Form
    value_scale: float                  # mean |values|^2 per row
    explanation_scale: float            # mean |explanations|^2 per row, all explained outputs together
    metric: Tensor | None = None        # (d,): what explanations were multiplied by before they are compared
    smoothing: Callable[[Tensor], Tensor] | None = None     # what they were mapped by after that (deep.py)

    @property
    def n(self) -> int:
        return len(self.x)

    def part(self, rows: Tensor) -> Lesson:
        def pick(t: Tensor | None) -> Tensor | None:
            return None if t is None else t[rows]
        return Lesson(self.x[rows], self.values[rows], pick(self.probabilities), pick(self.explanations),
                      pick(self.of), self.space, self.recipe, self.form, self.value_scale, self.explanation_scale,
                      self.metric, self.smoothing)

    def factor(self) -> Tensor | None:
        """(n, d) or (d,): from the student's gradient to what its explanation is compared as."""
        shown = self.recipe.factor(self.x)
        if shown is None or self.metric is None:
            return self.metric if shown is None else shown
        return shown * self.metric


class Pupil:
    """The student behind flat rows, in the space of comparison."""

    def __init__(self, module: nn.Module, ends: Space, space: Space, input_shape: tuple[int, ...] | None) -> None:
        self.module, self.ends, self.space, self.input_shape = module, ends, space, input_shape

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, *self.input_shape) if self.input_shape else x
        return student_in(as_table(self.module(rows), len(x)), self.ends, self.space)

    def like(self, module: nn.Module) -> Pupil:
        """Another network read in the same way."""
        return Pupil(module, self.ends, self.space, self.input_shape)


def value_loss(z: Tensor, lesson: Lesson, kind: ValueLoss) -> Tensor:
    """l_M of outputs z (n, k)"""
    if kind == "cross_entropy" and lesson.probabilities is not None:
        logp = z.clamp_min(1e-30).log() if lesson.space == "probabilities" else z.log_softmax(1)
        return -(lesson.probabilities * logp).sum(1).mean()
    return (z - lesson.values).square().sum(1).mean() / lesson.value_scale


def joint_loss(pupil: Pupil, lesson: Lesson, *, lam: float, values: ValueLoss, rng: torch.Generator) -> Tensor:
    """An unbiased draw of l_J; l_M alone where nothing is explained."""
    if lesson.explanations is None or lesson.of is None:
        return value_loss(pupil(lesson.x), lesson, values)
    v, shown = projection(lesson, rng)                                      # (n, k), (n, d)
    if lesson.recipe.kind in ("gradient", "gradient_x_input"):
        x = lesson.x.detach().requires_grad_(True)
        z = pupil(x)
        g = scaled(vector_jacobian(z, x, v), lesson)
        l_G = form_loss(g, shown, lesson)
    else:
        draws = [scaled(vector_jacobian_at(pupil, lesson.x + offset(lesson, rng), v), lesson)
                 for _ in range(SMOOTH_DRAWS)]
        l_G = form_loss(draws[0], shown, lesson, draws[1])
        z = pupil(lesson.x)
    return l_G + lam * value_loss(z, lesson, values)


def projection(lesson: Lesson, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cotangents v (n, k) and the explanations seen through them (n, d).

    Random signs over all explained outputs; forms that are not linear in the gradient get one output per row instead.
    """
    assert lesson.explanations is not None and lesson.of is not None
    n, m, _ = lesson.explanations.shape
    if lesson.form == "signed":
        w = torch.randint(2, (n, m), generator=rng).to(lesson.x) * 2 - 1        # (n, m)
    else:
        w = F.one_hot(torch.randint(m, (n,), generator=rng), m).to(lesson.x)
    v = torch.zeros_like(lesson.values).scatter_add_(1, lesson.of, w)           # (n, k)
    return v, torch.einsum("nm,nmd->nd", w, lesson.explanations)


def vector_jacobian(z: Tensor, x: Tensor, v: Tensor) -> Tensor:
    (g,) = torch.autograd.grad((z * v).sum(), x, create_graph=True)
    return g


def vector_jacobian_at(pupil: Pupil, points: Tensor, v: Tensor) -> Tensor:
    x = points.detach().requires_grad_(True)
    return vector_jacobian(pupil(x), x, v)


def offset(lesson: Lesson, rng: torch.Generator) -> Tensor:
    """One draw of u (n, d) as the recipe has it"""
    if lesson.recipe.kind == "smoothgrad":
        return lesson.recipe.spread(lesson.x) * torch.randn(lesson.x.shape, generator=rng).to(lesson.x)
    a = torch.rand((lesson.n, 1), generator=rng).to(lesson.x)
    return (a - 1) * (lesson.x - lesson.recipe.baseline)


def scaled(g: Tensor, lesson: Lesson) -> Tensor:
    factor = lesson.factor()
    g = g if factor is None else g * factor
    return g if lesson.smoothing is None else lesson.smoothing(g)


def query_metric(x: Tensor) -> Tensor | None:
    """(d,): the root of each input's variance over the queries, floored at a tenth of the mean, of mean square 1.

    A gradient's error matters by how far inputs move: f is wrong at x + u by (J - J').u. Inputs that never vary (the
    margin of a picture) carry gradients that are left over from the target's start and would be learned for nothing.
    None where variances differ no more than those of n draws do by chance: n noise images then count alike everywhere.
    """
    if len(x) < 5:
        return None
    variance = x.double().var(0)
    by_chance = 2 / (len(x) - 1) * float(variance.mean()) ** 2              # var(s^2) of n normal draws
    if float(variance.var(correction=0)) < BEYOND_CHANCE * by_chance:
        return None
    weight = variance + 0.1 * variance.mean()
    if not float(weight.mean()) > 0:
        return None
    return (weight / weight.mean()).sqrt().to(x)


def form_loss(g: Tensor, e: Tensor, lesson: Lesson, g2: Tensor | None = None) -> Tensor:
    """Squared distance of the student's explanation g (n, d) to what was shown, e, up to what the form lost."""
    scale = lesson.explanation_scale
    if lesson.form == "signed":
        return ((g - e) * ((g if g2 is None else g2) - e)).sum(1).mean() / scale
    g = g if g2 is None else 0.5 * (g + g2)
    return FORM_DISTANCES[lesson.form](g, e, scale)


def by_direction(g: Tensor, e: Tensor, scale: float) -> Tensor:
    return (F.normalize(g, dim=1) - F.normalize(e, dim=1)).square().sum(1).mean()


def by_picture(g: Tensor, e: Tensor, scale: float) -> Tensor:
    return by_direction(g - g.mean(1, keepdim=True), e - e.mean(1, keepdim=True), scale)


def by_size(g: Tensor, e: Tensor, scale: float) -> Tensor:
    return (g.abs() - e).square().sum(1).mean() / scale


def below_clip(g: Tensor, e: Tensor, scale: float) -> Tensor:
    """At the bound only the inequality is known."""
    bound = e.abs().amax(1, keepdim=True)                                       # (n, 1)
    high, low = e >= bound, e <= -bound
    gap = torch.where(high, F.relu(e - g), torch.where(low, F.relu(g - e), g - e))
    return gap.square().sum(1).mean() / scale


FORM_DISTANCES: dict[Form, Callable[[Tensor, Tensor, float], Tensor]] = {
    "normalised": by_direction, "8bit": by_direction, "image": by_picture, "absolute": by_size, "clipped": below_clip,
}


@dataclass(frozen=True)
class Scores:
    """How far a student is from answers it did (or did not) see; relative, so 1 is what answering zero gives."""

    explanations: float                 # nan where nothing is explained
    values: float
    cross_entropy: float                # nan for regression
    agreement: float

    @property
    def total(self) -> float:
        """What choices are made by: smaller is better."""
        e = 0.0 if self.explanations != self.explanations else self.explanations
        return e + self.values


def score_lesson(pupil: Pupil, lesson: Lesson, *, rng: torch.Generator, projections: int = 4) -> Scores:
    """On held-out answers: a few projections of every explanation, the same for every candidate with the same rng."""
    with torch.no_grad():
        z = pupil(lesson.x)
        values = float((z - lesson.values).square().sum(1).mean()) / lesson.value_scale
        ce = float(value_loss(z, lesson, "cross_entropy")) if lesson.probabilities is not None else float("nan")
        agreement = float((z.argmax(1) == lesson.values.argmax(1)).float().mean())
    if lesson.explanations is None:
        return Scores(float("nan"), values, ce, agreement)
    with torch.enable_grad():
        total = sum(float(joint_loss(pupil, lesson, lam=0.0, values="squared", rng=rng).detach())
                    for _ in range(projections))
    return Scores(total / projections, values, ce, agreement)
