"""A one-hidden-layer ReLU network as data: f(x) = sum_i a_i relu(W_i x + b_i) + p.x + q, behind a link.

It is a torch module, so it can be asked, saved and attacked like any other target.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Link = Literal["identity", "sigmoid", "softmax"]


class Network(nn.Module):
    """W (h, d), b (h,), A (k, h), P (k, d), q (k,); answers (n, k) through `link`."""

    W: Tensor
    b: Tensor
    A: Tensor
    P: Tensor
    q: Tensor

    def __init__(self, W: Tensor, b: Tensor, A: Tensor, P: Tensor, q: Tensor, link: Link = "identity") -> None:
        super().__init__()
        q = q.reshape(-1)
        A, P = A.reshape(len(q), -1 if A.numel() else 0), P.reshape(len(q), -1)
        h, d, k = len(W), P.shape[1], len(q)
        if W.shape != (h, d) or b.shape != (h,) or A.shape != (k, h) or P.shape != (k, d):
            raise ValueError(f"A network needs W (h, d), b (h,), A (k, h), P (k, d) and q (k,), not {tuple(W.shape)}, "
                             f"{tuple(b.shape)}, {tuple(A.shape)}, {tuple(P.shape)} and {tuple(q.shape)}.")
        self.link: Link = link
        for name, value in (("W", W), ("b", b), ("A", A), ("P", P), ("q", q)):
            self.register_buffer(name, value.detach().clone().double())

    @property
    def in_features(self) -> int:
        return self.P.shape[1]

    @property
    def out_features(self) -> int:
        return len(self.q)

    def units(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(W, b, a, p, q); with one output a is (h,), p (d,) and q a scalar, else (k, h), (k, d) and (k,)."""
        if len(self.q) == 1:
            return self.W, self.b, self.A[0], self.P[0], self.q[0]
        return self.W, self.b, self.A, self.P, self.q

    def logits(self, x: Tensor) -> Tensor:
        x = x.to(self.W.dtype)
        hidden = torch.relu(x @ self.W.T + self.b)                   # (n, h)
        return hidden @ self.A.T + x @ self.P.T + self.q             # (n, k)

    def forward(self, x: Tensor) -> Tensor:
        z = self.logits(x)
        if self.link == "sigmoid":
            return torch.sigmoid(z)
        if self.link == "softmax":
            return torch.softmax(z, 1)
        return z


def from_sequential(module: nn.Sequential) -> Network | None:
    """The Network that equals Linear, Linear-ReLU-Linear (with a final Sigmoid or Softmax), or None."""
    layers = [m for m in module if not isinstance(m, (nn.Flatten, nn.Identity, nn.Dropout))]
    link: Link = "identity"
    if layers and isinstance(layers[-1], (nn.Sigmoid, nn.Softmax)):
        link = "sigmoid" if isinstance(layers.pop(), nn.Sigmoid) else "softmax"
    if len(layers) == 1 and isinstance(layers[0], nn.Linear):
        P, q = affine_of(layers[0])
        k, d = P.shape
        return Network(P.new_zeros(0, d), P.new_zeros(0), P.new_zeros(k, 0), P, q, link)
    if len(layers) == 3 and isinstance(layers[0], nn.Linear) and isinstance(layers[1], nn.ReLU) \
            and isinstance(layers[2], nn.Linear):
        W, b = affine_of(layers[0])
        A, q = affine_of(layers[2])
        return Network(W, b, A, W.new_zeros(len(A), W.shape[1]), q, link)
    return None


def affine_of(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    W = layer.weight.detach().double()
    return W, layer.bias.detach().double() if layer.bias is not None else W.new_zeros(len(W))
