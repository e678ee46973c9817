"""Explanations as gradient oracles: raw gradient, SmoothGrad, gradient x input, integrated gradients, captum's.

All four are one formula, M(x) * E_u[grad f_j(x + u)]:

    gradient               M = 1              u = 0
    smoothgrad             M = 1              u ~ N(0, sigma^2 I), the mean of `samples` draws made by the target
    gradient_x_input       M = x              u = 0
    integrated_gradients   M = x - baseline   u = (a - 1)(x - baseline), a by Gauss-Legendre on [0, 1]

A query is one point and is billed once, whatever the explanation costs the target inside. `output` says what is
explained: one output by number, "top" (the largest, what explanation APIs answer), or "all" (the whole Jacobian).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BadAnswer, BadInput, Refused
from foldline.oracles.explain_forms import Form, check_form, lose
from foldline.oracles.ledger import Ledger
from foldline.oracles.local import LocalSource, as_table, source_of
from foldline.oracles.protocols import Box, GradientOracle, Kind, Oracle, Source
from foldline.oracles.shapes import evaluating

Explain = Literal["gradient", "smoothgrad", "gradient_x_input", "integrated_gradients"]
Output = int | Literal["top", "all"]
Link = Literal["identity", "softmax", "log_softmax", "sigmoid"]
EXPLAINS: tuple[Explain, ...] = ("gradient", "smoothgrad", "gradient_x_input", "integrated_gradients")
ROWS_AT_ONCE = 2048             # rows per pass through the target: bounds memory, changes nothing else
DIRECT_FORMS: tuple[Form, ...] = ("signed", "normalised", "8bit")


@dataclass(frozen=True, eq=False)
class Recipe:
    """What is done to the gradient. sigma None: 0.15 of each query's own range, as Smilkov et al. advise for images."""

    kind: Explain = "gradient"
    samples: int = 50               # SmoothGrad: the paper takes 10; more than 50 changes little
    sigma: float | None = None
    steps: int = 50                 # integrated gradients: nodes of the rule
    baseline: float = 0.0
    rng: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.kind not in EXPLAINS:
            raise BadInput(f"There is no explanation {self.kind!r}; there are {', '.join(EXPLAINS)}.")
        if self.samples < 1 or self.steps < 1:
            raise BadInput(f"An explanation needs at least one sample and one step, not {self.samples} and "
                           f"{self.steps}.")
        if self.sigma is not None and not self.sigma >= 0:
            raise BadInput(f"sigma must be zero or more, not {self.sigma}.")
        if self.kind == "smoothgrad" and self.rng is None:
            raise BadInput("SmoothGrad draws noise: pass rng (fl.generator(seed) makes one).")

    def spread(self, x: Tensor) -> Tensor:
        """sigma of each row, (n, 1)"""
        if self.sigma is not None:
            return x.new_full((len(x), 1), self.sigma)
        return 0.15 * (x.amax(1, keepdim=True) - x.amin(1, keepdim=True))

    def factor(self, x: Tensor) -> Tensor | None:
        """M(x), (n, d), or None for 1"""
        if self.kind == "gradient_x_input":
            return x
        return x - self.baseline if self.kind == "integrated_gradients" else None


Pick = Callable[[Tensor, Tensor], Tensor]
"""pick(x (n, d), j (n,)) -> gradient of output j_i at x_i, (n, d)"""


def explain(gradient: Pick, x: Tensor, j: Tensor, recipe: Recipe) -> Tensor:
    """The explanation of output j_i at x_i, from a function that differentiates."""
    if recipe.kind == "smoothgrad":
        sigma, total, left = recipe.spread(x), torch.zeros_like(x), recipe.samples
        while left:
            s = min(left, max(1, ROWS_AT_ONCE // len(x)))                           # draws in this pass
            noise = torch.randn((s, *x.shape), generator=recipe.rng, dtype=torch.float64).to(x)
            total += gradient((x + sigma * noise).flatten(0, 1), j.repeat(s)).reshape(s, *x.shape).sum(0)
            left -= s
        return total / recipe.samples
    if recipe.kind == "integrated_gradients":
        nodes, weights = np.polynomial.legendre.leggauss(recipe.steps)
        total = torch.zeros_like(x)
        for a, w in zip(0.5 * (nodes + 1), 0.5 * weights, strict=True):
            total += float(w) * gradient(recipe.baseline + float(a) * (x - recipe.baseline), j)
        return total * (x - recipe.baseline)
    g = gradient(x, j)
    return g * x if recipe.kind == "gradient_x_input" else g


class Explained:
    """A source of explanations: block (n, k + m d), the k values and then m explanations (m = k for "all", else 1).

    With `faced` the block is (n, 1 + d), the value and explanation of the one output: what a GradientOracle unpacks.
    """

    kind: Kind = "gradient"

    def __init__(self, target: Any, recipe: Recipe | Any, output: Output = 0, *, link: Link = "identity",
                 form: Form = "signed", faced: bool = False, dim: int | None = None,
                 input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> None:
        inner = target if isinstance(target, LocalSource) else \
            source_of(target, "values", dim=dim, input_shape=input_shape, box=box)
        if not isinstance(inner, LocalSource):
            raise Refused(f"{type(inner).__name__} cannot be differentiated here, so it cannot be explained here; if "
                          f"it answers gradients itself, fl.gradient_oracle opens them.")
        self.inner, self.recipe, self.output, self.link, self.form = inner, recipe, output, link, check_form(form)
        self.dim, self.dtype, self.box = inner.dim, inner.dtype, inner.box
        width = inner.width
        if width is None:
            raise BadInput("How many outputs the target has could not be told: a module, or a callable with an "
                           "`outputs` attribute, is needed to explain them.")
        self.outputs: int = width
        if isinstance(output, bool) or not (output in ("top", "all") or isinstance(output, int)):
            raise BadInput(f"output is a number, 'top' or 'all', not {output!r}.")
        if isinstance(output, int) and not 0 <= output < self.outputs:
            raise BadInput(f"output={output} was asked for, but the target has {self.outputs} outputs.")
        if faced and output == "all":
            raise BadInput("A gradient oracle answers one output: pass its number, or 'top'.")
        self.faced = faced
        self.explained = self.outputs if output == "all" else 1     # m
        self.width = 1 + self.dim if faced else self.outputs + self.explained * self.dim

    def answer(self, x: Tensor) -> Tensor:
        with evaluating(self.inner.module):
            parts = [self._part(part) for part in torch.split(x, max(1, ROWS_AT_ONCE // self.explained))]
        return torch.cat(parts)

    def _part(self, x: Tensor) -> Tensor:
        n, m = len(x), self.explained
        x = x.to(self.inner.device, self.dtype).detach()
        with torch.no_grad():
            values = self._values(x)                                # (n, k)
        if self.output == "all":
            j = torch.arange(m, device=x.device).repeat(n)          # (n m,)
        else:
            j = values.argmax(1) if self.output == "top" else torch.full((n,), int(self.output), device=x.device)
        e = self._explanations(x.repeat_interleave(m, 0), j)        # (n m, d)
        e = lose(e, self.form)
        if self.faced:
            values = values.gather(1, j[:, None])                   # (n, 1)
        return torch.cat([values, e.reshape(n, m * self.dim)], 1).detach().cpu()

    def _explanations(self, x: Tensor, j: Tensor) -> Tensor:
        if isinstance(self.recipe, Recipe):
            return explain(self._gradient, x, j, self.recipe)
        found: Tensor = self.recipe(self, x, j)
        return found

    def _values(self, x: Tensor) -> Tensor:
        return linked(as_table(self.inner._forward(x), len(x)), self.link)

    def _gradient(self, x: Tensor, j: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_(True)
            column = self._values(leaf).gather(1, j[:, None])       # (n, 1)
            if not column.requires_grad:                            # a constant function has no graph
                return torch.zeros_like(x)
            (found,) = torch.autograd.grad(column.sum(), leaf, allow_unused=True)
        return torch.zeros_like(x) if found is None else found


def linked(z: Tensor, link: Link) -> Tensor:
    if link == "softmax":
        return torch.softmax(z, 1)
    if link == "log_softmax":
        return torch.log_softmax(z, 1)
    return torch.sigmoid(z) if link == "sigmoid" else z


@dataclass(frozen=True, eq=False)
class Answers:
    """What explained queries returned. `of` says which output each explanation is about."""

    values: Tensor                  # (n, k)
    explanations: Tensor            # (n, m, d)
    of: Tensor                      # (n, m)


class ExplanationOracle(Oracle):
    """e(x) -> Answers: all values, and the explanations of one output, of the top one, or of all of them."""

    kind: Kind = "gradient"
    source: Source

    def __call__(self, x: Tensor) -> Answers:
        block = self._ask(x)
        inner = innermost(self.source)
        k, m, d = inner.outputs, inner.explained, self.dim
        values = block[:, :k]
        if inner.output == "all":
            of = torch.arange(k).expand(len(x), k)
        else:
            of = values.argmax(1, keepdim=True) if inner.output == "top" else torch.full((len(x), 1), inner.output)
        return Answers(values, block[:, k:].reshape(len(x), m, d), of)


def innermost(source: Any) -> Explained:
    while not isinstance(source, Explained):
        source = next((getattr(source, n) for n in ("source", "inner", "values") if hasattr(source, n)), None)
        if source is None:
            raise BadAnswer("The wrapped source of explanations does not say what it wraps.")
    return source


def explanations(target: Any, kind: Explain | Any = "gradient", output: Output = "all", *, samples: int = 50,
                 sigma: float | None = None, steps: int = 50, baseline: float = 0.0,
                 rng: torch.Generator | None = None, link: Link = "identity", form: Form = "signed",
                 budget: int | None = None, ledger: Ledger | None = None, dim: int | None = None,
                 input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> ExplanationOracle:
    """All values with the explanations of `output`, one row per point: what imitation asks. `kind` may be a captum
    attribution; `form` is what the API does to the numbers before it shows them (explain_forms.py)."""
    recipe = recipe_of(kind, samples, sigma, steps, baseline, rng)
    source = Explained(target, recipe, output, link=link, form=form, dim=dim, input_shape=input_shape, box=box)
    return ExplanationOracle(source, ledger, budget=budget)


def explanation_oracle(target: Any, kind: Explain | Any = "gradient", output: int | Literal["top"] = 0, *,
                       samples: int = 50, sigma: float | None = None, steps: int = 50, baseline: float = 0.0,
                       rng: torch.Generator | None = None, link: Link = "identity", form: Form = "signed",
                       budget: int | None = None, ledger: Ledger | None = None, dim: int | None = None,
                       input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> GradientOracle:
    """g(x) -> (y (n,), explanation (n, d)): any method that asks gradients may ask explanations instead.

    Forms that no longer lie along a gradient are refused: absolute values and clipped explanations leave the row space
    of the first layer. Imitation takes those too (`explanations`).
    """
    if form not in DIRECT_FORMS:
        raise Refused(f"A {check_form(form)!r} explanation is not a gradient up to scale: span and extraction would "
                      f"read directions that are not the network's. fl.imitate can still use it.")
    recipe = recipe_of(kind, samples, sigma, steps, baseline, rng)
    return GradientOracle(Explained(target, recipe, output, link=link, form=form, faced=True, dim=dim,
                                    input_shape=input_shape, box=box), ledger, budget=budget)


def smoothgrad_oracle(target: Any, output: int | Literal["top"] = 0, *, samples: int = 50, sigma: float | None = None,
                      rng: torch.Generator, budget: int | None = None, ledger: Ledger | None = None,
                      dim: int | None = None, input_shape: tuple[int, ...] | None = None,
                      box: Box | None = None) -> GradientOracle:
    """SmoothGrad: the mean gradient at `samples` points x + N(0, sigma^2), fresh noise at every call."""
    return explanation_oracle(target, "smoothgrad", output, samples=samples, sigma=sigma, rng=rng, budget=budget,
                              ledger=ledger, dim=dim, input_shape=input_shape, box=box)


def gradient_x_input_oracle(target: Any, output: int | Literal["top"] = 0, **options: Any) -> GradientOracle:
    return explanation_oracle(target, "gradient_x_input", output, **options)


def integrated_gradients_oracle(target: Any, output: int | Literal["top"] = 0, *, steps: int = 50,
                                baseline: float = 0.0, **options: Any) -> GradientOracle:
    return explanation_oracle(target, "integrated_gradients", output, steps=steps, baseline=baseline, **options)


def recipe_of(kind: Any, samples: int, sigma: float | None, steps: int, baseline: float,
              rng: torch.Generator | None) -> Any:
    if hasattr(kind, "attribute"):
        from foldline.oracles.captum_explain import CaptumRecipe
        return CaptumRecipe(kind)
    return kind if isinstance(kind, Recipe) or callable(kind) else Recipe(kind, samples, sigma, steps, baseline, rng)
