"""A captum attribution as the target's explanation.

The attribution object is the target's own (built around its module); here it is only called, row by row of a batch,
with the output it is asked about. `twin` names the formula of explain.py that a student must follow to be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foldline.errors import BadAnswer, Refused

if TYPE_CHECKING:
    from foldline.oracles.explain import Explain, Explained

TWINS: dict[str, Explain] = {"Saliency": "gradient", "InputXGradient": "gradient_x_input",
                             "IntegratedGradients": "integrated_gradients", "NoiseTunnel": "smoothgrad"}


class CaptumRecipe:
    """Calls attribution.attribute(inputs, target=j, **options); options are what its caller would pass."""

    def __init__(self, attribution: Any, **options: Any) -> None:
        if not hasattr(attribution, "attribute"):
            raise Refused(f"A captum attribution has a method `attribute`; {type(attribution).__name__} has none.")
        self.attribution, self.options = attribution, options

    @property
    def twin(self) -> Explain:
        name = type(self.attribution).__name__
        if name == "NoiseTunnel":
            inner = type(self.attribution.attribution_method).__name__
            if inner != "Saliency":
                raise Refused(f"A student is not taught NoiseTunnel over {inner}; only over Saliency (SmoothGrad).")
        if name not in TWINS:
            raise Refused(f"captum's {name} has no counterpart a student can be trained to match; there are "
                          f"{', '.join(TWINS)}. Its numbers can still be asked through explanation_oracle.")
        return TWINS[name]

    def __call__(self, source: Explained, x: Tensor, j: Tensor) -> Tensor:
        shape = source.inner.input_shape
        rows = x.reshape(-1, *shape) if shape else x
        with torch.enable_grad():
            e = self.attribution.attribute(rows.detach().clone().requires_grad_(True), target=j, **self.options)
        if not isinstance(e, Tensor) or e.numel() != x.numel():
            raise BadAnswer(f"captum's {type(self.attribution).__name__} answered something else than one number per "
                            f"input: it cannot stand for a gradient.")
        return e.detach().reshape(x.shape).to(x)
