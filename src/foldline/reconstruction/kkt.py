"""The published loop (paper 003, Section 4 and Appendix B), faithfully.

minimise  |theta - (1/m) sum_i lambda_i y_i grad_theta f(x_i)|^2 + box penalty on x + 5 sum relu(lambda_min - lambda)^2

over m candidates x_i with fixed signs y_i, half of them +1, by SGD with momentum 0.9 and a learning rate each for x
and lambda. ReLU's derivative is smoothed to sigmoid(alpha z) in the backward pass only. Hyper-parameters: PRESETS has
the ones the authors published for n = 500; search.py draws from the paper's ranges.

Differs from the published code: no score against the training set while it runs; it stops when the loss has not
fallen by one per cent over a tenth of the epochs; a loop that diverges returns its best candidates and says so; and the
residual is taken through Gram matrices: a layer's gradients are outer products delta_i a_i^T, so

    |theta - G|^2 = |theta|^2 - 2 <theta, G> + |G|^2,   <W, G> = sum c_i delta_i . W a_i,
    |G|^2 = sum c_i c_j (delta_i . delta_j)(a_i . a_j),   c_i = lambda_i y_i / m,

which is the same number without ever writing G (of the size of theta) or differentiating twice: several times faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from foldline.errors import BadInput
from foldline.randomness import Streams
from foldline.results import Progress, silent

PRESETS: dict[str, dict[str, float]] = {
    "mnist-a": {"lr": 0.2821, "sigma_x": 1.742e-3, "lambda_min": 0.4153, "alpha": 19.21},
    "mnist-b": {"lr": 0.03052, "sigma_x": 3.498e-2, "lambda_min": 0.4471, "alpha": 149.9},
    "cifar10-a": {"lr": 0.5549, "sigma_x": 8.857e-4, "lambda_min": 0.4983, "alpha": 19.14},
    "cifar10-b": {"lr": 0.3462, "sigma_x": 4.474e-3, "lambda_min": 0.4936, "alpha": 21.68},
}


Theta = list[tuple[Tensor, Tensor | None]]      # weights and biases by layer

LOOK = 20               # epochs between looks at the clock and at the best so far


class Fit(NamedTuple):
    samples: Tensor         # (m, d)
    weights: Tensor         # (m,) multipliers
    residual: float         # of the stationarity, relative to the weights' norm
    note: str = ""


class SmoothedReLU(torch.autograd.Function):
    """max(0, z) forward, sigmoid(alpha z) backward; differentiable twice, since backward is made of plain ops."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.alpha = alpha
        return z.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return grads[0] * torch.sigmoid(ctx.alpha * z), None


def solve_kkt(layers: list[nn.Linear], *, streams: Streams, low: Tensor | None, high: Tensor | None, m: int = 200,
              preset: str | None = None, lr: float = 0.2821, lambda_lr: float = 1e-4, sigma_x: float = 1.742e-3,
              alpha: float = 19.21, lambda_min: float = 0.4153, epochs: int = 50_000,
              seconds: float | None = None, progress: Progress = silent,
              watch: Callable[[int, Tensor], None] | None = None) -> Fit:
    """watch(epoch, x): sees the candidates every LOOK epochs, for pictures and benchmarks; it steers nothing."""
    if preset is not None:
        if preset not in PRESETS:
            raise BadInput(f"There is no preset {preset!r}; known are {', '.join(PRESETS)}.")
        given = PRESETS[preset]
        lr, sigma_x, lambda_min, alpha = given["lr"], given["sigma_x"], given["lambda_min"], given["alpha"]
    if m < 2:
        raise BadInput(f"The published loop needs at least two candidates, not {m}.")
    theta = theta_of(layers)
    d = layers[0].in_features
    x = (sigma_x * torch.randn(m, d, generator=streams("x"), dtype=torch.float64)).requires_grad_(True)
    lam = torch.rand(m, generator=streams("lambda"), dtype=torch.float64).requires_grad_(True)
    y = torch.ones(m, dtype=torch.float64)
    y[m // 2:] = -1
    optimiser = torch.optim.SGD([{"params": [x], "lr": lr}, {"params": [lam], "lr": lambda_lr}], momentum=0.9)
    size = squared_norm(theta)
    clock = deadline(seconds)
    watched, best, stationarity, note = math.inf, math.inf, math.inf, ""
    kept = x.detach().clone(), lam.detach().clone()
    for epoch in range(epochs):
        optimiser.zero_grad()
        stationary = residual(x, lam * y, theta, alpha)
        loss = stationary + 5 * (lambda_min - lam).clamp(min=0).square().sum()
        if low is not None and high is not None:
            loss = loss + (x - high).clamp(min=0).square().sum() + (low - x).clamp(min=0).square().sum()
        stationarity = float(stationary.detach())
        if not math.isfinite(float(loss.detach())):
            note = f"The loop diverged after {epoch} epochs: take smaller learning rates. These are its best."
            break
        if epoch % LOOK == 0 and stationarity < best:
            best, kept = stationarity, (x.detach().clone(), lam.detach().clone())
        loss.backward()
        optimiser.step()
        if epoch % max(1, epochs // 10) == 0:
            if not stationarity < 0.99 * watched:
                break
            watched = stationarity
        if epoch % LOOK == 0:
            if watch is not None:
                watch(epoch, x.detach())
            progress("kkt", {"done": epoch, "total": epochs, "residual": relative(stationarity, size)})
        if clock():                                                 # at m = 1,000 an epoch takes seconds
            break
    if not note and bool(x.isfinite().all() and lam.isfinite().all()):
        best, kept = stationarity, (x.detach(), lam.detach())
    return Fit(kept[0], kept[1].clamp(min=0), relative(best, size), note)


def linear_layers(network: nn.Module) -> list[nn.Linear] | None:
    """The linear layers of a network that is nothing but those with ReLU between them; None for any other."""
    modules = [m for m in network.modules() if not isinstance(m, nn.Sequential) and m is not network]
    modules = [m for m in modules if not isinstance(m, (nn.Flatten, nn.Identity, nn.Dropout))]
    linear = [m for m in modules if isinstance(m, nn.Linear)]
    fits = len(linear) * 2 - 1 == len(modules) and all(
        isinstance(m, nn.Linear if i % 2 == 0 else nn.ReLU) for i, m in enumerate(modules))
    return linear if fits else None


def theta_of(layers: list[nn.Linear]) -> Theta:
    return [(p.weight.detach().double().cpu(), p.bias.detach().double().cpu() if p.bias is not None else None)
            for p in layers]


def relative(stationarity: float, size: float) -> float:
    return math.sqrt(max(stationarity, 0.0) / size)                 # rounding of three large terms may leave it below 0


def squared_norm(theta: Theta) -> float:
    return float(sum(W.square().sum() + (0 if b is None else b.square().sum()) for W, b in theta))


def residual(x: Tensor, multipliers: Tensor, theta: Theta, alpha: float) -> Tensor:
    """|theta - (1/m) sum_i multiplier_i grad f(x_i)|^2 for rows x (m, d)"""
    inputs, gates, a = [], [], x
    along: list[Tensor] = []                                         # W a, without the bias
    for i, (W, b) in enumerate(theta):
        inputs.append(a)
        along.append(a @ W.T)
        z = along[-1] if b is None else along[-1] + b
        if i < len(theta) - 1:
            gates.append(torch.sigmoid(alpha * z))
            a = SmoothedReLU.apply(z, alpha)                         # type: ignore[no-untyped-call]
    delta = (multipliers / len(x))[:, None]                          # (m, 1), the multipliers carried along
    total = torch.full((), squared_norm(theta), dtype=torch.float64)
    for i in range(len(theta) - 1, -1, -1):
        W, b = theta[i]
        inner = inputs[i] @ inputs[i].T                              # (m, m)
        cross = (delta * along[i]).sum()
        if b is not None:
            inner, cross = inner + 1, cross + (delta @ b).sum()
        total = total - 2 * cross + ((delta @ delta.T) * inner).sum()
        if i:
            delta = (delta @ W) * gates[i - 1]
    return total


def deadline(seconds: float | None) -> Callable[[], bool]:
    import time
    end = None if seconds is None else time.monotonic() + seconds
    return lambda: end is not None and time.monotonic() > end
