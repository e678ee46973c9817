"""A fully connected network as plain float64 data: x -> W_L act(... act(W_1 x + b_1) ...) + b_L, behind a link."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from foldline.errors import Refused
from foldline.networks.one_hidden import Link, affine_of

Activation = Literal["relu", "tanh", "sigmoid"]
ACTIVATIONS: dict[Activation, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


@dataclass(frozen=True, eq=False)
class MLP:
    """weights[l] (n_l, n_{l-1}), biases[l] (n_l,); a callable target like any other."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: Activation = "relu"
    link: Link = "identity"

    def __post_init__(self) -> None:
        shapes = [tuple(W.shape) for W in self.weights]
        fits = all(len(s) == 2 for s in shapes) and all(a[0] == b[1] for a, b in pairwise(shapes))
        if not shapes or not fits or [tuple(b.shape) for b in self.biases] != [(s[0],) for s in shapes]:
            raise ValueError(f"An MLP needs weights (n_l, n_l-1) that fit each other and a bias (n_l,) for each, "
                             f"not {shapes} with {[tuple(b.shape) for b in self.biases]}.")
        object.__setattr__(self, "weights", tuple(W.detach().clone().double() for W in self.weights))
        object.__setattr__(self, "biases", tuple(b.detach().clone().double() for b in self.biases))

    @property
    def in_features(self) -> int:
        return self.weights[0].shape[1]

    @property
    def out_features(self) -> int:
        return len(self.biases[-1])

    def logits(self, x: Tensor) -> Tensor:
        act = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}[self.activation]
        x = x.double()                                                  # (n, d)
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = act(x @ W.T + b)                                        # (n, n_l)
        return x @ self.weights[-1].T + self.biases[-1]                 # (n, k)

    def __call__(self, x: Tensor) -> Tensor:
        z = self.logits(x)
        if self.link == "sigmoid":
            return torch.sigmoid(z)
        return torch.softmax(z, 1) if self.link == "softmax" else z

    def to_sequential(self) -> nn.Sequential:
        layers: list[nn.Module] = []
        for W, b in zip(self.weights, self.biases, strict=True):
            # skip_init: an initialisation would draw from the global generator only to be overwritten.
            layer: nn.Linear = nn.utils.skip_init(nn.Linear, W.shape[1], W.shape[0], dtype=torch.float64)
            with torch.no_grad():
                layer.weight.copy_(W)
                layer.bias.copy_(b)
            layers += [layer, ACTIVATIONS[self.activation]()]
        layers.pop()
        if self.link != "identity":
            layers.append(nn.Sigmoid() if self.link == "sigmoid" else nn.Softmax(1))
        return nn.Sequential(*layers)

    @classmethod
    def from_sequential(cls, module: nn.Sequential) -> MLP:
        """Linear layers with one kind of activation between them, and an optional final Sigmoid or Softmax."""
        layers = [m for m in module if not isinstance(m, (nn.Flatten, nn.Identity, nn.Dropout))]
        link: Link = "identity"
        # Linear at an even, an activation at an odd place: one layer too many at the end is the link.
        if len(layers) % 2 == 0 and layers and isinstance(layers[-1], (nn.Sigmoid, nn.Softmax)):
            link = "sigmoid" if isinstance(layers.pop(), nn.Sigmoid) else "softmax"
        dense = [m for m in layers[::2] if isinstance(m, nn.Linear)]
        between = {type(m) for m in layers[1::2]} or {nn.ReLU}
        names = [name for name, kind in ACTIVATIONS.items() if between == {kind}]
        if len(layers) % 2 == 0 or len(dense) != (len(layers) + 1) // 2 or not names:
            raise Refused(f"An MLP alternates Linear layers with one kind of activation ({', '.join(ACTIVATIONS)}), "
                          f"not {' '.join(type(m).__name__ for m in module)}.")
        affine = [affine_of(m) for m in dense]
        return cls(tuple(W for W, _ in affine), tuple(b for _, b in affine), names[0], link)
