"""Training in the coordinates of the training rows' span: the same network up to rounding, for less.

With rows X = C Q^T (n, d), Q (d, r) orthonormal, the first layer sees W only through W Q, and its gradient is
delta^T C Q^T: it lies in the span. Gradient descent, momentum and weight decay are linear and the same in every
direction, so W Q follows the same training on C, and what lies outside the span is multiplied by a scalar: 1 without
decay, with decay the recurrence v <- momentum v + decay a, a <- a - lr v. Cost: r instead of d inputs, r <= n.

Not valid for Adam(W), whose step is taken coordinate by coordinate and so depends on the axes, nor for DP-SGD, whose
noise leaves the span: both are refused. In float32 the part outside the span is rounded once instead of at every step,
so its noise is lower than that of a network trained plainly; in float64 both agree.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from foldline.errors import Refused
from foldline.randomness import Streams
from foldline.results import Progress, silent
from foldline.victims.fit import Fit, fit, score
from foldline.victims.recipes import Recipe


def fit_in_span(module: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, *, streams: Streams,
                progress: Progress = silent, checkpoint: Path | None = None) -> Fit:
    """As `fit`: trains `module` in place. Its first layer must be the Linear one that takes the rows."""
    first = checked_first(module, recipe)
    C, Q = coordinates(x)                                               # (n, r), (d, r)
    W = first.weight.detach().double()                                  # (h, d)
    inside = W @ Q                                                      # (h, r)
    outside = W - inside @ Q.T
    small = copy.deepcopy(module)
    layer = nn.Linear(Q.shape[1], first.out_features, bias=False, dtype=x.dtype)
    with torch.no_grad():
        layer.weight.copy_(inside)
    # The bias is the same parameter in both coordinates; same place, so optimiser and checkpoint are as usual.
    layer.bias = small[0].bias                                          # type: ignore[index]
    small[0] = layer                                                    # type: ignore[operator]
    done = fit(small, C.to(x.dtype), y, recipe, streams=streams, progress=progress, checkpoint=checkpoint)
    with torch.no_grad():
        first.weight.copy_(layer.weight.double() @ Q.T + left_of_start(recipe, done.steps) * outside)
        trained = dict(small.named_parameters())
        for name, p in module.named_parameters():
            if p is not first.weight:
                p.copy_(trained[name])
    module.eval()
    loss, accuracy = score(module, x, y)
    return replace(done, loss=loss, accuracy=accuracy)


def checked_first(module: nn.Module, recipe: Recipe) -> nn.Linear:
    if recipe.optimiser not in ("sgd", "log-loss"):
        raise Refused(f"Training in the span is not {recipe.optimiser}'s: its steps depend on the axes and leave the "
                      f"span. Train plainly.")
    if recipe.noise_multiplier is not None:
        raise Refused("DP-SGD adds noise outside the span of the rows: train plainly.")
    first = module[0] if isinstance(module, nn.Sequential) and len(module) else None
    if not isinstance(first, nn.Linear):
        raise Refused("Training in the span needs a linear layer first.")
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()):
        raise Refused("Training in the span carries parameters only, no running statistics: train plainly.")
    return first


def coordinates(x: Tensor) -> tuple[Tensor, Tensor]:
    """(C (n, r), Q (d, r)) in float64 with x = C Q^T and Q orthonormal; r is the rank above rounding, at least 1."""
    rows = x.double()
    U, s, Vt = torch.linalg.svd(rows, full_matrices=False)
    floor = float(s[0]) * max(rows.shape) * torch.finfo(torch.float64).eps
    r = max(int((s > floor).sum()), 1)
    return U[:, :r] * s[:r], Vt[:r].T


def left_of_start(recipe: Recipe, steps: int) -> float:
    """What a weight that no gradient reaches is multiplied by in `steps` steps."""
    a, v = 1.0, 0.0
    if recipe.optimiser == "sgd" and recipe.weight_decay:
        for _ in range(steps):
            v = recipe.momentum * v + recipe.weight_decay * a
            a -= recipe.lr * v
    return a
