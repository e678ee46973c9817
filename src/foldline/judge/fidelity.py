"""How well a recovered function answers as the true one does, on inputs that neither saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.errors import BadInput


@dataclass(frozen=True)
class Fidelity:
    worst: float                # largest difference of any output
    mean: float                 # mean over inputs of the largest difference
    relative: float             # worst, over the spread of the true outputs
    agreement: float            # fraction of inputs with the same label
    inputs: int


def score_fidelity(found: Callable[[Tensor], Tensor], truth: Callable[[Tensor], Tensor], inputs: Tensor,
                   *, threshold: float = 0.0) -> Fidelity:
    """Both are called on `inputs` (n, d); a label is the largest output, or with one output: is it >= threshold?"""
    if inputs.ndim != 2 or len(inputs) == 0:
        raise BadInput(f"Fidelity needs inputs (n, d) with at least one row, not {tuple(inputs.shape)}.")
    with torch.no_grad():
        y, t = (answers(g, inputs) for g in (found, truth))              # (n, k)
    if y.shape != t.shape:
        raise BadInput(f"The two functions answer {tuple(y.shape)} and {tuple(t.shape)} to the same inputs.")
    off = (y - t).abs().amax(1)                                         # (n,)
    spread = float(t.amax() - t.amin())
    same = y.argmax(1) == t.argmax(1) if t.shape[1] > 1 else (y[:, 0] >= threshold) == (t[:, 0] >= threshold)
    return Fidelity(worst=float(off.max()), mean=float(off.mean()),
                    relative=float(off.max()) / spread if spread > 0 else float(off.max()),
                    agreement=float(same.double().mean()), inputs=len(inputs))


def answers(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Float64 answers; a module is called in its own dtype."""
    parameter = next(iter(function.parameters()), None) if isinstance(function, torch.nn.Module) else None
    y = function(x if parameter is None else x.to(parameter.dtype))
    return y.detach().double().reshape(len(x), -1)
