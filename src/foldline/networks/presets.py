"""Networks by name: logistic, two-layer, mlp, conv, vgg11, resnet18 and unet.

Rows are flattened as (H, W) or (H, W, C) everywhere in this project, and every network here takes them so; it also
takes the unflattened images, and the convolutional ones images with channels first. `.input_shape` says the shape and
`.preset` is {"name": ..., "arguments": ...}, all that is needed to build it again. Nothing draws from the global
seed: parameters come from `rng` with PyTorch's default distributions, and are zero without one (to be loaded into).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foldline.errors import BadInput
from foldline.networks.unet import unet

Shape = tuple[int, ...]
Start = Literal["default", "he"]
Biases = Literal["all", "hidden", "first", "none"]
VGG11 = (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0)         # multiples of the width, 0 is a max-pool


def build(name: str, *, input_shape: Sequence[int], outputs: int = 1, rng: torch.Generator | None = None,
          dtype: torch.dtype = torch.float32, start: Start = "default", **arguments: Any) -> nn.Module:
    """The network `name`; `width`, `widths`, `biases`, ... as its own function below takes them.

    start: "default" is PyTorch's; "he" keeps the size of the signal through ReLUs, which deep networks without batch
    normalisation need (vgg11 with norm=False), and starts residual branches at zero (resnet18).
    """
    if start not in ("default", "he"):
        raise BadInput(f"start must be 'default' or 'he', not {start!r}.")
    if name not in BUILDERS:
        raise BadInput(f"There is no network preset {name!r}; there are {', '.join(BUILDERS)}.")
    shape = tuple(int(s) for s in input_shape)
    if not shape or min(shape) < 1 or outputs < 1:
        raise BadInput(f"A network needs a positive input shape and number of outputs, not {shape} and {outputs}.")
    try:
        with torch.device("meta"):                      # built without drawing from the global seed
            module = BUILDERS[name](shape, outputs, **arguments)
    except TypeError as error:
        raise BadInput(f"The network preset {name!r} does not take these arguments: {error}.") from error
    module = module.to(dtype).to_empty(device="cpu")
    initialise(module, rng, start)
    module.input_shape = shape                          # type: ignore[assignment]
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items()}
    described = {"name": name, "arguments": {"input_shape": list(shape), "outputs": outputs, **plain}}
    module.preset = described                           # type: ignore[assignment]
    return module


def initialise(module: nn.Module, rng: torch.Generator | None, start: Start = "default") -> None:
    """PyTorch's default start, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases; zeros without an rng. He's
    is U(-sqrt(6/fan_in), sqrt(6/fan_in)) for weights, of variance 2/fan_in, and biases zero; residual branches then
    start silent, so that a ResNet starts as the few layers that its skips pass through."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            bound = 1 / math.sqrt(max(layer.weight[0].numel(), 1))
            fill_uniform(layer.weight, bound if start == "default" else math.sqrt(6) * bound, rng)
            if layer.bias is not None:
                fill_uniform(layer.bias, bound if start == "default" else 0.0, rng)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()                    # ones and zeros: draws nothing
    if start == "he":
        for layer in module.modules():
            if isinstance(layer, Residual):
                nn.init.zeros_(layer.norm2.weight)


def fill_uniform(p: Tensor, bound: float, rng: torch.Generator | None) -> None:
    # Drawn in float64 whatever the dtype, so that the same seed is the same start.
    with torch.no_grad():
        p.copy_(torch.zeros(()) if rng is None else
                (2 * torch.rand(p.shape, generator=rng, dtype=torch.float64) - 1) * bound)


class Dense(nn.Sequential):
    """Linear and ReLU layers on flat rows; images are flattened first, so the first layer is a Linear."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self:
            x = layer(x)
        return x


class Pictures(nn.Module):
    """A network on images (n, C, H, W) behind the project's rows."""

    def __init__(self, image_shape: Shape, body: nn.Module) -> None:
        super().__init__()
        self.image_shape = image_of(image_shape)        # (H, W, C)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        H, W, C = self.image_shape
        if x.ndim == 4 and x.shape[1:] == (C, H, W) and (C, H, W) != (H, W, C):
            images = x
        else:
            images = x.reshape(-1, H, W, C).permute(0, 3, 1, 2)             # (n, C, H, W)
        # Contiguous, since a second derivative through permuted convolutions is slower and no more exact.
        out: Tensor = self.body(images.contiguous())
        return out


class Residual(nn.Module):
    """Two 3 x 3 convolutions with batch normalisation, added to their input (projected where the shape changes)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.norm1(self.conv1(x)))
        out: Tensor = F.relu(self.norm2(self.conv2(z)) + self.skip(x))
        return out


def image_of(shape: Shape) -> Shape:
    if len(shape) not in (2, 3):
        raise BadInput(f"A convolutional network needs images, input_shape (H, W) or (H, W, C), not {shape}.")
    return shape if len(shape) == 3 else (*shape, 1)


def positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise BadInput(f"{name} must be at least 1, not {value}.")


def logistic(shape: Shape, outputs: int) -> nn.Module:
    """One linear layer: logits of a (multinomial) logistic regression."""
    return Dense(nn.Linear(math.prod(shape), outputs))


def two_layer(shape: Shape, outputs: int, width: int = 128) -> nn.Module:
    return mlp(shape, outputs, (width,))


def mlp(shape: Shape, outputs: int, widths: Sequence[int] = (1000, 1000), biases: Biases = "all") -> nn.Module:
    """`biases`: all layers, all hidden layers, the first layer only (a homogeneous network), or none."""
    if biases not in ("all", "hidden", "first", "none"):
        raise BadInput(f"biases must be 'all', 'hidden', 'first' or 'none', not {biases!r}.")
    sizes = [math.prod(shape), *widths, outputs]
    positive(**{f"width {i}": w for i, w in enumerate(widths, 1)})
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        bias = biases == "all" or (biases == "hidden" and not last) or (biases == "first" and i == 0)
        layers += [nn.Linear(before, after, bias=bias)] + ([] if last else [nn.ReLU()])
    return Dense(*layers)


def conv(shape: Shape, outputs: int, width: int = 32, kernel: int = 3, hidden: int | None = None,
         padded: bool = True) -> nn.Module:
    """Two convolutions (width, 2 width), each with ReLU and max-pool, and two dense layers (`hidden`, else 4 width).

    padded: convolutions keep the size of a picture; without, each takes kernel - 1 pixels off.
    """
    hidden = 4 * width if hidden is None else hidden
    positive(width=width, kernel=kernel, hidden=hidden)
    H, W, C = image_of(shape)
    lost = 0 if padded else kernel - 1
    left = [((side - lost) // 2 - lost) // 2 for side in (H, W)]                # pixels behind the second pool
    if min(left) < 1 or kernel % 2 == 0:
        raise BadInput(f"The conv preset needs an odd kernel and images that leave a pixel behind two convolutions and "
                       f"pools, not {H} x {W} and {kernel}{'' if padded else ' without padding'}.")
    pad = kernel // 2 if padded else 0
    return Pictures(shape, nn.Sequential(
        nn.Conv2d(C, width, kernel, padding=pad), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel, padding=pad), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * left[0] * left[1], hidden), nn.ReLU(), nn.Linear(hidden, outputs)))


def vgg11(shape: Shape, outputs: int, width: int = 64, norm: bool = True) -> nn.Module:
    """Eight convolutions and three dense layers; width 64 is the published size. `norm` adds batch normalisation,
    which the published one does not have; without it, it needs start="he". Pools round up, so that 28 x 28 images pass
    too."""
    positive(width=width)
    _, _, C = image_of(shape)
    layers: list[nn.Module] = []
    channels = C
    for multiple in VGG11:
        if multiple == 0:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
            continue
        layers.append(nn.Conv2d(channels, multiple * width, 3, padding=1))
        layers += [nn.BatchNorm2d(multiple * width)] if norm else []
        layers.append(nn.ReLU())
        channels = multiple * width
    head = 8 * width
    return Pictures(shape, nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(head, head), nn.ReLU(), nn.Linear(head, head), nn.ReLU(), nn.Linear(head, outputs)))


def resnet18(shape: Shape, outputs: int, width: int = 64) -> nn.Module:
    """Four stages of two residual blocks; width 64 is the published size. The stem is one 3 x 3 convolution without
    a pool, as usual for images of 32 x 32."""
    positive(width=width)
    _, _, C = image_of(shape)
    layers: list[nn.Module] = [nn.Conv2d(C, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(4):
        for block in range(2):
            after = width * 2**stage
            layers.append(Residual(channels, after, stride=2 if stage and not block else 1))
            channels = after
    return Pictures(shape, nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)))


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic, "two-layer": two_layer, "mlp": mlp, "conv": conv, "vgg11": vgg11, "resnet18": resnet18,
    "unet": unet,
}
