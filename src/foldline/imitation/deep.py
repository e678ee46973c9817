"""Students of many layers: gradients are compared after smoothing, from a start that passes its signal on.

The input gradient of a deep ReLU network is mostly noise: of VGG-11's on CIFAR-10, three quarters of the energy is at
wavelengths below four pixels, where it predicts the network's own answers no further than a step of 0.03 per pixel
(pixels in [0, 1]); along the difference of two images it does so ten times as far. A student cannot learn the noise,
and what it can learn drowns in it: it shrinks its gradients to nothing (loss 0.99 of 1 after 600 steps from 100
queries). Both sides are therefore smoothed by a Gaussian of LENGTH pixels before they are compared: in the words of
losses.query_metric, (J - J').u is compared for the u by which pictures differ. The linear map g -> S g is one more
factor in the same loss, and costs two small products of matrices per step.

PyTorch's default start divides the signal by 2.4 in every layer, so that eleven of them without normalisation answer
the same to every row. Where that is so, one pass over the queries scales each layer to unit deviation of what leaves it
(Mishkin & Matas, "All you need is a good init"); a student that was trained or normalised is left as it is. No row is
asked for either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from foldline.imitation.committee import weighted
from foldline.imitation.losses import Lesson, Pupil

FEWEST_LAYERS = 6               # the conv preset has 4, VGG-11 has 11
LENGTH = 1.0                    # pixels
REACH = 6.0                     # lengths, beyond which the Gaussian is zero: 1e-8 of its peak
VANISHED = 0.01                 # of the target's deviation over the queries: the student answers all rows alike
ROWS = 128                      # that deviations are measured on


@dataclass(frozen=True, eq=False)
class Smoothing:
    """S g for rows g (..., d) that are pictures: a Gaussian along either axis, symmetric, nothing beyond the margin."""

    down: Tensor                # (H, H)
    along: Tensor               # (W C, W C), or (W, W) where channels come first
    shape: tuple[int, int, int]         # planes, H, W C

    def __call__(self, g: Tensor) -> Tensor:
        planes, H, W = self.shape
        images = g.reshape(-1, planes, H, W)
        return (self.down @ (images @ self.along)).reshape(g.shape)


def smoothing_of(shape: tuple[int, ...], length: float, like: Tensor) -> Smoothing:
    """For pictures (H, W), (H, W, C) or (C, H, W)"""
    first = len(shape) == 3 and shape[0] <= 4 < shape[2]
    H, W = shape[1:] if first else shape[:2]
    along = gaussian(W, length)
    if not first and len(shape) == 3:
        along = torch.kron(along, torch.eye(shape[2], dtype=along.dtype))
    return Smoothing(gaussian(H, length).to(like), along.to(like), (shape[0] if first else 1, H, len(along)))


def gaussian(n: int, length: float) -> Tensor:
    t = torch.arange(n, dtype=torch.float64) / length
    apart = (t[:, None] - t[None]).abs()
    # Cut off: what is left would be too small for float32's own range, and products with it cost ten times as much.
    return torch.exp(-apart.square() / 2) * (apart <= REACH) / (length * math.sqrt(2 * math.pi))


def prepared(pupil: Pupil, lesson: Lesson, *, length: float = LENGTH) -> Lesson:
    """The lesson as a student of pupil's depth is taught it; the student's start is scaled in place. Students of few
    layers, and what is no picture, are left as they are."""
    layers = weighted(pupil.module)
    if len(layers) < FEWEST_LAYERS:
        return lesson
    scale_start(pupil, lesson)
    shape = pupil.input_shape
    pictures = shape is not None and len(shape) in (2, 3) and any(isinstance(m, nn.Conv2d) for m in layers)
    if lesson.explanations is None or lesson.form != "signed" or not pictures:
        return lesson
    assert shape is not None
    smoothing = smoothing_of(shape, length, lesson.x)
    e = torch.cat([smoothing(part) for part in lesson.explanations.split(256)])
    spread = float(e.double().square().sum((1, 2)).mean())
    return replace(lesson, explanations=e, explanation_scale=spread or 1.0, smoothing=smoothing)


def scale_start(pupil: Pupil, lesson: Lesson) -> bool:
    """Unit deviation of what leaves every layer (the last: at most the target's), biases zero, where the student
    answers all rows alike."""
    module, x = pupil.module, lesson.x[:ROWS]
    if len(x) < 2 or any("Norm" in type(m).__name__ for m in module.modules()):
        return False
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    seen: set[nn.Module] = set()
    last = weighted(module)[-1]
    size = float(lesson.values[:ROWS].std(0).mean())

    def scale(layer: Any, _: Any, out: Tensor) -> Tensor:
        if layer in seen:
            return out
        seen.add(layer)
        plain = out if layer.bias is None else out - layer.bias.reshape(-1, *[1] * (out.ndim - 2))
        deviation = float(plain.std())
        if layer.bias is not None:
            layer.bias.zero_()
        if not (deviation > 0 and math.isfinite(deviation)):
            return plain
        deviation /= min(1.0, size or 1.0) if layer is last else 1.0
        layer.weight.div_(deviation)
        return plain / deviation

    try:
        with torch.no_grad():
            if float(pupil(x).std(0).mean()) > VANISHED * size:
                return False
            hooks = [layer.register_forward_hook(scale) for layer in weighted(module)]
            try:
                pupil(x)
            finally:
                for hook in hooks:
                    hook.remove()
    finally:
        for m, training in modes:
            m.training = training
    return True
