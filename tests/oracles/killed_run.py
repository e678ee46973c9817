"""The child that test_transcript.py kills: adaptive queries, each batch a function of the answer before."""

import hashlib
import os
import time
from pathlib import Path

import torch
from torch import Tensor

import foldline as fl

BATCHES, ROWS, DIM = 250, 7, 5


def search(folder: str, started: object = None) -> None:
    """Writes result.bin when it ends; the target itself logs every row it is asked."""
    torch.set_num_threads(1)
    log = os.open(f"{folder}/asked.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    W = torch.randn(3, DIM, generator=fl.generator(1), dtype=torch.float64)

    def target(x: Tensor) -> Tensor:
        os.write(log, b"".join(hashlib.blake2b(row.numpy().tobytes(), digest_size=16).digest() for row in x))
        time.sleep(0.003)
        return torch.tanh(x @ W.T)

    f = fl.value_oracle(target, dim=DIM, run=f"{folder}/run")
    rng = fl.generator(7)
    x = torch.zeros(ROWS, DIM, dtype=torch.float64)
    if started is not None:
        started.set()           # type: ignore[attr-defined]
    for _ in range(BATCHES):
        y = f(x)                                                    # (ROWS, 3)
        x = torch.randn(ROWS, DIM, generator=rng, dtype=torch.float64) + y.sum(1, keepdim=True)
    Path(f"{folder}/result.bin").write_bytes(f(x).numpy().tobytes() + f"{f.used}".encode())
