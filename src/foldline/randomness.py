"""Seeds and named streams: an extra draw in one stage never shifts another."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


class Streams:
    """One draw from `rng` at the start of a method; every stage then has a generator of its own.

    >>> s = Streams(rng); s("lines"); s("probes")
    """

    def __init__(self, rng: torch.Generator) -> None:
        if not isinstance(rng, torch.Generator):
            raise ValueError(f"rng must be a torch.Generator (fl.generator(seed) makes one), not {type(rng).__name__}.")
        self.root = int(torch.randint(2**62, (1,), generator=rng))
        self.seed = rng.initial_seed()

    def __call__(self, name: str) -> torch.Generator:
        return generator(self.integer(name))

    def integer(self, name: str) -> int:
        """A seed for libraries that want an int."""
        digest = hashlib.blake2b(f"{self.root}/{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % 2**63


def unit_rows(n: int, d: int, *, rng: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    u = torch.randn(n, d, generator=rng, dtype=dtype)               # (n, d)
    rows: Tensor = u / u.norm(dim=1, keepdim=True)
    return rows
