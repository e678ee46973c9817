"""DP-SGD with opacus: per-sample clipping, Gaussian noise, Poisson batches, and the epsilon they buy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from foldline.errors import Missing, Refused
from foldline.randomness import Streams
from foldline.victims.recipes import Recipe


def private_step(module: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor, recipe: Recipe,
                 loss_of: Callable[[Tensor, Tensor], Tensor],
                 streams: Streams) -> tuple[Callable[[int], Tensor], Callable[[], None]]:
    """step(i): one DP-SGD step, and close(): takes opacus's hooks off the module again.

    Batch and noise come from streams named by i, so that a resumed run is the same.
    """
    if any(isinstance(m, nn.BatchNorm2d) for m in module.modules()):
        raise Refused("DP-SGD needs gradients per sample, which batch normalisation mixes: use a network without it.")
    opacus = import_opacus()
    n, batch = len(x), min(recipe.batch or len(x), len(x))
    watched = opacus["GradSampleModule"](module)
    private = opacus["DPOptimizer"](optimiser, noise_multiplier=recipe.noise_multiplier,
                                    max_grad_norm=recipe.clip_norm, expected_batch_size=batch)

    def step(i: int) -> Tensor:
        chosen = torch.rand(n, generator=streams(f"dp batch {i}")) < batch / n       # (n,)
        private.generator = streams(f"dp noise {i}")
        private.zero_grad()
        if not chosen.any():
            return x.new_zeros(())
        rows = x[chosen].requires_grad_(True)       # else torch warns that opacus's hooks see no input gradient
        loss = loss_of(watched(rows), y[chosen])
        loss.backward()
        private.step()
        return loss.detach()

    def close() -> None:
        watched.remove_hooks()
        for p in module.parameters():
            p.grad = None
            for name in ("grad_sample", "summed_grad", "_forward_counter"):
                if hasattr(p, name):
                    delattr(p, name)

    return step, close


def epsilon_of(recipe: Recipe, n: int, steps: int, delta: float) -> float:
    """The epsilon at `delta` of `steps` Poisson-sampled steps, by Renyi accounting."""
    opacus = import_opacus()
    accountant = opacus["RDPAccountant"]()
    accountant.history = [(recipe.noise_multiplier, min(recipe.batch or n, n) / n, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")             # opacus warns when the best order is the largest it tries
        return float(accountant.get_epsilon(delta))


def import_opacus() -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants import RDPAccountant
            from opacus.grad_sample import GradSampleModule
            from opacus.optimizers import DPOptimizer
    except ImportError as error:
        raise Missing("DP-SGD needs the package opacus: pip install 'foldline[dp]'.") from error
    return {"RDPAccountant": RDPAccountant, "GradSampleModule": GradSampleModule, "DPOptimizer": DPOptimizer}
