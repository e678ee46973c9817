"""Fewer units for the same function: merge close ones as far as an error allows (Lemmas 3.6 to 3.9)."""

from __future__ import annotations

import numpy as np
import torch

from foldline.extract.learn_model import Array, Model
from foldline.extract.structure import merge_close

CLOSENESS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-8)
SAMPLES = 4096


def merge_within(model: Model, error: float, rng: np.random.Generator) -> tuple[Model, tuple[tuple[int, ...], ...]]:
    """The coarsest merge that moves the function by at most `error` in L2, measured on our own Gaussian sample.

    No row is asked: both networks are known.
    """
    if model.h < 2:
        return model, ()
    x: Array = rng.standard_normal((SAMPLES, model.W.shape[1]))
    y = model(x)
    parts = [torch.from_numpy(v) for v in (model.W, model.b, model.A, model.P, model.q)]
    for Delta in CLOSENESS:
        merged = merge_close(*parts, Delta=Delta, alpha=Delta)
        if not merged.groups:
            continue
        W, b, A = merged.W.numpy(), merged.b.numpy(), merged.a.numpy()
        norm = np.linalg.norm(W, axis=1)
        new = Model.plain(W / norm[:, None], b / norm, A * norm, merged.p.numpy(), merged.q.numpy())
        if float(np.sqrt(np.square(new(x) - y).sum(1).mean())) <= error:
            return new, merged.groups
    return model, ()
