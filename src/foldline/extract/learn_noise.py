"""How far the answers are from an exactly piecewise-linear function: rounding, float32, decimals, added noise."""

from __future__ import annotations

import numpy as np

from foldline.extract.learn_model import Array, Asker

MICRO_LINES, MICRO_POINTS = 4, 4
ALIKE = 0.05                # of 1,000 draws of equal noise, 980 have no stretch smaller than this, over their mean
STEPS = (1e-6, 1e-3)        # a fold inside the shorter stretch is rare, decimals show on the longer one


def measure_noise(ask: Asker, x: Array, known: Array, rng: np.random.Generator) -> float:
    """Typical error of one answer, from short stretches of line at x (n, d), where F should be linear. 32 rows.

    known (n, m): answers already there, which also show decimals.
    """
    d = x.shape[1]
    t = np.arange(MICRO_POINTS) - (MICRO_POINTS - 1) / 2            # (points,)
    basis = np.stack([np.ones_like(t), t], 1)
    sizes, seen = [], []
    for step in STEPS:
        v = rng.standard_normal((MICRO_LINES, d))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        z = x[:MICRO_LINES, None, :] + step * t[None, :, None] * v[:, None, :]
        y = ask(ask.points(z.reshape(-1, d))).reshape(MICRO_LINES, MICRO_POINTS, -1)
        seen.append(y.reshape(-1, y.shape[2]))
        rest = [block - basis @ np.linalg.lstsq(basis, block, rcond=None)[0] for block in y]
        sizes.append([float(np.sqrt(np.square(r).sum() / (MICRO_POINTS - 2))) for r in rest])
    # The worst stretch, since rounding may be absent where nothing is active; the smaller of the two lengths, since a
    # fold inflates one of them and noise both. Noise that is the same everywhere is better known from all stretches:
    # the worst of four would be taken for twice as large as it is.
    each = np.array(sizes).reshape(-1)
    pooled = float(np.sqrt(np.square(each).mean()))
    alike = pooled > 0 and each.min() > ALIKE * pooled
    answers = np.concatenate([*seen, known])
    return max(1.2 * pooled if alike else 1.5 * min(max(s) for s in sizes), decimal_step(answers))


def decimal_step(y: Array) -> float:
    """Half of 10^-k if every answer has at most k <= 9 decimals, else 0."""
    for k in range(10):
        scaled = y * 10.0 ** k
        whole = np.rint(scaled)
        if np.abs(scaled).max() < 2.0 ** 50 and bool((np.abs(scaled - whole) <= 1e-12 * (1 + np.abs(scaled))).all()):
            # A function that takes few values is not a rounded one.
            return 0.5 * 10.0 ** -k if len(np.unique(whole)) >= 6 else 0.0
    return 0.0
