"""Model inversion, the baseline: inputs that maximise or minimise an output (`fl.invert`).

Paper 003 compares with it (Section 5.4, Figures 12 and 13): half of the starts are pushed up, half down, inside
the box. It finds class prototypes, not training rows; it is here to show that.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foldline.errors import BadInput
from foldline.randomness import Streams
from foldline.reconstruction.result import Leak, ReconstructionResult, best_first
from foldline.reconstruction.weights import Mean, checked_mean, checked_shape
from foldline.results import Progress, Provenance, Status, silent


def invert(network: nn.Module, *, rng: torch.Generator, m: int = 100, image_shape: tuple[int, ...] | None = None,
           mean: Mean = None, box: tuple[float, float] | None = (0.0, 1.0), lr: float = 0.1, sigma_x: float = 1e-2,
           steps: int = 500, progress: Progress = silent) -> ReconstructionResult:
    """m inputs, each pushed towards one class: output up or down (one output), or class i mod k (several)."""
    if m < 1 or steps < 1:
        raise BadInput(f"Inversion needs at least one start and one step, not m={m} and steps={steps}.")
    from foldline.oracles.local import LocalSource
    from foldline.oracles.shapes import evaluating
    streams = Streams(rng)
    source = LocalSource(network, "values")
    d = source.dim
    shape, notes = checked_shape(image_shape, d)
    offset, _ = checked_mean(mean, d)
    parameter = next(network.parameters(), None)
    dtype = parameter.dtype if parameter is not None else torch.float64
    x = (sigma_x * torch.randn(m, d, generator=streams("x"), dtype=torch.float64)).requires_grad_(True)
    optimiser = torch.optim.SGD([x], lr=lr, momentum=0.9)
    score = torch.zeros(m, dtype=torch.float64)
    with evaluating(network):
        for step in range(steps):
            optimiser.zero_grad()
            score = aim(source._forward(x.to(dtype)).double().reshape(m, -1))
            (x.grad,) = torch.autograd.grad(-score.sum(), x)
            optimiser.step()
            if box is not None:             # put back, not penalised: a penalty's curvature would bound the step
                with torch.no_grad():
                    x.copy_(torch.minimum(torch.maximum(x, box[0] - offset), box[1] - offset))
            if step % 20 == 0:
                progress("inverting", {"done": step, "total": steps, "score": float(score.detach().mean())})
    weights = score.detach() - score.detach().min()
    weights = weights / weights.max().clamp(min=1e-300)
    samples, weights, evidence = best_first(x.detach(), weights, {"score": score.detach()})
    return ReconstructionResult(
        status=Status("ok", "Prototypes that the network likes best; nothing says that they are training rows.",
                      tuple(notes)),
        queries=0, certificate=Leak(0, float("nan"), 1.0, 0, False),
        provenance=Provenance("invert", streams.seed, {"m": m, "lr": lr, "sigma_x": sigma_x, "steps": steps}),
        samples=samples, weights=weights, evidence=evidence, estimated_n=0,
        singular_values=torch.zeros(0, dtype=torch.float64), image_shape=shape)


def aim(z: Tensor) -> Tensor:
    """(m,) what each start maximises."""
    m, k = z.shape
    if k == 1:
        sign = torch.ones(m, dtype=z.dtype)
        sign[m // 2:] = -1
        return sign * z[:, 0]
    wanted = torch.arange(m) % k
    return torch.log_softmax(z, 1)[torch.arange(m), wanted]
