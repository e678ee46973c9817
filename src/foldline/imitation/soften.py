"""Softened ReLUs and max-pools, so that matching gradients can move the folds of a student.

The input gradient of a ReLU network depends on its weights twice: through their sizes, and through which units are on
and which pixel wins a pool. The second dependence is a step function, whose derivative is zero wherever it exists: a
double backward never sees that moving a fold would help. With

    relu(z) -> t softplus(z / t),     max(a, b) -> a + t softplus((b - a) / t) - t log 2,     t = tau * std(z),

it does; tau falls to zero in the course of training, so the student that is returned is the one that was given.
A max over 2 x 2 pixels is a tournament of three. Other windows and other activations stay as they are.

Off by default. Wide conv student of MNIST, hard -> tau 1, 3,000 labelled images apart from the test, one draw each:
100 points of N(0, I) 0.860 -> 0.907 (tau 2: 0.862); 10 of them 0.743 -> 0.863 and 0.701 -> 0.763; 100 blends 0.983 ->
0.985. On the test images: 100 points of N(0, I) 0.831 -> 0.938 (one draw), 10 of them 0.758 -> 0.768 (three draws; tau
2: 0.765; the rows of tau 1 also have every pixel counting alike). 100 blends of CIFAR-10: 0.5994 -> 0.5992.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

SHARE = 0.7                     # of the steps, after which nothing is soft any more
NOISE_SOFTNESS = 1.0            # tau for queries that are white noise
SMALLEST = 0.01                 # tau below which softening is left out
LOG2 = math.log(2)
RELUS = (F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)        # modules call the ones in F
POOLS = (F.max_pool2d, torch.max_pool2d)


class Softened(TorchFunctionMode):
    """Inside it, torch's own ReLUs and max-pools are soft by `tau`, in modules and in functions alike."""

    def __init__(self, tau: float = 0.0) -> None:
        super().__init__()
        self.tau = tau

    def __torch_function__(self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self.tau >= SMALLEST:
            if func in RELUS:
                return soft_relu(args[0], self.tau)
            if func in POOLS and halves(*args[1:], **kwargs):
                return soft_pool(args[0], self.tau, bool(kwargs.get("ceil_mode", args[5] if len(args) > 5 else False)))
        return func(*args, **kwargs)


def tau_at(tau: float, t: float) -> float:
    """Straight down from tau to zero at SHARE of the run, t in [0, 1)"""
    return tau * max(0.0, 1 - t / SHARE)


def width(z: Tensor, tau: float) -> Tensor:
    return (tau * z.detach().std(correction=0)).clamp_min(1e-12)


def soft_relu(z: Tensor, tau: float) -> Tensor:
    t = width(z, tau)
    return F.softplus(z / t) * t


def soft_max(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return a + t * (F.softplus((b - a) / t) - LOG2)              # equal ones stay as they are


def soft_pool(z: Tensor, tau: float, ceil_mode: bool) -> Tensor:
    """2 x 2 windows of z (..., H, W)"""
    t = width(z, tau)
    for axis in (-1, -2):
        odd = z.shape[axis] % 2
        if odd and ceil_mode:                                       # a lone pixel plays against itself
            z = torch.cat([z, z.narrow(axis, z.shape[axis] - 1, 1)], axis)
        elif odd:
            z = z.narrow(axis, 0, z.shape[axis] - 1)
        a, b = (z[..., i::2] if axis == -1 else z[..., i::2, :] for i in (0, 1))
        z = soft_max(a, b, t)
    return z


def halves(kernel_size: Any = None, stride: Any = None, padding: Any = 0, dilation: Any = 1,
           ceil_mode: bool = False, return_indices: bool = False) -> bool:
    """Whether a max-pool has windows of 2 x 2 side by side, and answers values only."""
    def all_are(size: Any, value: int) -> bool:
        return all(s == value for s in size) if isinstance(size, (tuple, list)) else size == value
    own_stride = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    plain = all_are(padding, 0) and all_are(dilation, 1) and not return_indices
    return plain and all_are(kernel_size, 2) and (own_stride or all_are(stride, 2))
