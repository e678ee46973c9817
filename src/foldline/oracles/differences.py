"""A gradient source made of values: central differences, every value billed.

y_j(x + h e_j) - y_j(x - h e_j) over the step that the target's arithmetic really took. Cost: 1 + 2 d rows a gradient;
exact up to rounding wherever the target is linear within the step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.errors import BadInput
from foldline.oracles.protocols import Kind, Source

ROWS_AT_ONCE = 16_384


class Differences:
    kind: Kind = "gradient"

    def __init__(self, values: Source, output: int = 0, step: float = 1e-4) -> None:
        if values.kind != "values":
            raise BadInput(f"Differences are taken of values, not of {values.kind}.")
        if output < 0 or (values.width is not None and output >= values.width):
            raise BadInput(f"output={output} was asked for, but the target has {values.width} outputs.")
        if not step > 0:
            raise BadInput(f"A difference needs a positive step, not {step}.")
        self.values, self.output, self.step = values, output, step
        self.dim, self.dtype, self.box = values.dim, values.dtype, values.box
        self.width = 1 + self.dim
        self.cost = 1 + 2 * self.dim                                    # values per gradient: what the ledger charges

    def answer(self, x: Tensor) -> Tensor:
        per_part = max(1, ROWS_AT_ONCE // self.cost)
        return torch.cat([self._part(part) for part in torch.split(x, per_part)])

    def _part(self, x: Tensor) -> Tensor:
        n, d = x.shape
        x = x.to(self.dtype)
        E = self.step * torch.eye(d, dtype=self.dtype)                  # (d, d)
        right, left = x[:, None] + E, x[:, None] - E                    # (n, d, d)
        if self.box is not None:                                        # at a wall the difference is one-sided
            right, left = right.clamp(*self.box), left.clamp(*self.box)
        taken = (right.double() - left.double()).diagonal(dim1=1, dim2=2)   # (n, d): the step after rounding
        y = self.values.answer(torch.cat([x, right.reshape(-1, d), left.reshape(-1, d)]))[:, self.output].double()
        slope = (y[n:n + n * d] - y[n + n * d:]).reshape(n, d) / taken  # (n, d)
        return torch.cat([y[:n, None], slope], 1).to(self.dtype)
