"""Sources over sources that change no answer: the plain relay, a memory of what was asked, and patience.

A wrapper hands on what it does not change, as properties, so that what the inner source learns late (its width)
is seen through any number of wrappers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from foldline.errors import BadAnswer, BadInput, TargetError
from foldline.oracles.protocols import InFront, Kind, Source
from foldline.oracles.rowkeys import DIGEST, row_digests


class Relay(InFront):
    """Hands everything on; the base of every wrapper."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def kind(self) -> Kind:
        return self.source.kind

    @property
    def width(self) -> int | None:
        return self.source.width

    def answer(self, x: Tensor) -> Tensor:
        return self.source.answer(x)


class Cached(Relay):
    """Asks each distinct row once and remembers its answer; the ledger above still counts every row."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.memory: dict[bytes, Tensor] = {}
        self.asked = 0

    def answer(self, x: Tensor) -> Tensor:
        digests = row_digests(x, self.dtype)
        keys = [digests[i:i + DIGEST] for i in range(0, len(digests), DIGEST)]
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self.memory}
        new = sorted(first.values())
        if new:
            block = self.source.answer(x[new])
            if not isinstance(block, Tensor) or block.ndim != 2 or len(block) != len(new):
                raise BadAnswer(f"The target did not answer one row for each of {len(new)} rows.")
            self.asked += len(new)
            self.memory.update((keys[i], row) for i, row in zip(new, block, strict=True))
        return torch.stack([self.memory[key] for key in keys])


class Retried(Relay):
    """Asks again, after a growing pause, when the target fails; a refused or malformed query is not repeated."""

    def __init__(self, source: Source, times: int = 3, pause: float = 0.5,
                 sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(source)
        if times < 0 or pause < 0:
            raise BadInput(f"Retries need times >= 0 and pause >= 0, not {times} and {pause}.")
        self.times, self.pause, self.sleep = times, pause, sleep
        self.retries = 0

    def answer(self, x: Tensor) -> Tensor:
        for attempt in range(self.times + 1):
            try:
                return self.source.answer(x)
            except BadAnswer:
                raise
            except (TargetError, OSError) as error:
                if attempt == self.times:
                    raise TargetError(f"The target still failed after {self.times} retries: {error}") from error
                self.retries += 1
                self.sleep(self.pause * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")


def retried(source: Source, times: int = 3, pause: float = 0.5) -> Retried:
    return Retried(source, times, pause)
