"""The model behind the doors: its sources, opened once each, behind the defences that are switched on."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foldline.errors import Refused
from foldline.oracles.local import source_of
from foldline.oracles.protocols import Box, Kind, Source, checked_block, checked_queries
from foldline.serving.steady import Steady


@dataclass(frozen=True)
class Switches:
    """Every defence, off unless set."""

    decimals: int | None = None         # values and explanations rounded to so many decimals
    noise: float | None = None          # standard deviation of Gaussian noise on values and explanations
    top_label: bool = False             # only /label answers
    clip: float | None = None           # entries of explanations cut to [-clip, clip]
    bits: int | None = None             # explanations quantised to so many bits, each to its own scale
    smoothgrad: bool = False            # explanations are SmoothGrad whatever is asked for
    no_explanations: bool = False       # /explain does not answer
    query_budget: int | None = None     # rows per API key (or in all, without keys)
    seed: int = 0                       # of the noise

    def on(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if k != "seed" and v not in (None, False)}


class Victim:
    def __init__(self, target: Any, switches: Switches, *, threshold: float = 0.0, dim: int | None = None,
                 input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> None:
        self.target, self.switches, self.threshold = opened(target), switches, threshold
        self.shape: dict[str, Any] = {"dim": dim, "input_shape": input_shape, "box": box}
        self.lock = threading.Lock()            # one forward pass at a time: each uses all the cores there are
        self.sources: dict[tuple[Kind, int, str], Source] = {}
        bare = self.bare("labels", 0)
        self.dim, self.dtype, self.box = bare.dim, bare.dtype, bare.box
        self.answers: list[Kind] = ["labels"]
        self.outputs = 1
        if not switches.top_label:
            self.outputs = self.count_outputs()
            self.answers.append("values")
            if not switches.no_explanations and self.explains():
                self.answers.append("gradient")

    def count_outputs(self) -> int:
        values = self.bare("values", 0)
        if values.width is not None:
            return values.width
        middle = 0.5 * sum(self.box) if self.box is not None else 0.0       # a bare function does not say: ask it once
        return values.answer(torch.full((1, self.dim), middle, dtype=torch.float64)).shape[1]

    def explains(self) -> bool:
        """ONNX and scikit-learn files have no gradients; a target says so when it is opened."""
        try:
            self.bare("gradient", 0)
        except (Refused, ValueError):
            return False
        return True

    def bare(self, kind: Kind, output: int) -> Steady:
        source: Source = source_of(self.target, kind, output=output, threshold=self.threshold, **self.shape)
        return Steady(source)

    def ask(self, kind: Kind, x: Tensor, *, output: int = 0, method: str = "gradient") -> Tensor:
        """Checked rows to a checked block, whatever the model does."""
        with self.lock:
            key = (kind, output, method)
            if key not in self.sources:
                self.sources[key] = self.open(kind, output, method)
            source = self.sources[key]
            x = checked_queries(x, self.dim, self.box)
            with torch.no_grad():
                return checked_block(source.answer(x), len(x), source.width)

    def ask_all(self, x: Tensor, *, method: str = "gradient") -> Tensor:
        """The explanations of every output: (n, k, 1 + d), each with its value in front."""
        return torch.stack([self.ask("gradient", x, output=j, method=method) for j in range(self.outputs)], 1)

    def open(self, kind: Kind, output: int, method: str) -> Source:
        from foldline.serving.switching import defended, explained
        bare = self.bare(kind, output)
        if kind != "gradient":
            return defended(bare, self.switches)
        chosen = "smoothgrad" if self.switches.smoothgrad else method
        return defended(explained(bare, chosen, self.switches.seed), self.switches)


def opened(target: Any) -> Any:
    """A target string whose module is in reach is loaded once, not once for each kind and output."""
    if isinstance(target, str):
        from foldline.oracles.targets import target_module
        module = target_module(target)
        return target if module is None else module
    return target
