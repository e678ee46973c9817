"""The explanations that a foldline server answers, in the form that explained queries have in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from foldline.errors import BadSpec
from foldline.oracles.endpoint import EndpointSource, open_endpoint
from foldline.oracles.explain import Explained, Recipe
from foldline.oracles.protocols import Kind


class EndpointExplained(Explained):
    """Block (n, k + k d), as Explained with output="all"; the work is done on the other side."""

    kind: Kind = "gradient"

    def __init__(self, source: EndpointSource, recipe: Recipe) -> None:
        self.source, self.recipe = source, recipe
        self.output, self.link, self.form, self.faced = "all", "identity", "signed", False
        self.dim, self.dtype, self.box, self.width = source.dim, source.dtype, source.box, source.width
        self.outputs = self.explained = source.spec.outputs or 1

    def answer(self, x: Tensor) -> Tensor:
        return self.source.answer(x)

    def answer_parts(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        return self.source.answer_parts(x)

    @property
    def on_sent(self) -> Callable[[int], None]:
        return self.source.on_sent

    @on_sent.setter
    def on_sent(self, note: Callable[[int], None]) -> None:
        self.source.on_sent = note


def explained_endpoint(target: str, recipe: Recipe) -> EndpointExplained | None:
    """None where the target is not a foldline server, or does not explain."""
    if not target.startswith(("http://", "https://")):
        return None
    address = f"{target.partition('?')[0]}?method={recipe.kind}"
    try:
        return EndpointExplained(open_endpoint(address, "gradient", output="all"), recipe)
    except BadSpec:
        return None
