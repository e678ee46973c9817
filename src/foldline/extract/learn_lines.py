"""Units from one line: the folds on it, the gradients of the pieces between, and their differences.

Theorem 4.8's collection of neurons, from pieces that were found instead of a partition into tiny intervals. Works on
the residual F - F', so a line costs only what is still missing. Cost: the line's grid, about 4 to 8 values a fold,
and d values a piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foldline.extract.learn_model import DRAWS, EPS, Array, Asker, Model
from foldline.extract.learn_pieces import Index, Pieces, search_lines

ROOM = 300.0            # the step is a piece's radius over ROOM d: about 1 piece in 100 is then measured across a fold
RETRIES = 4
MOST_POINTS = 50_000    # on one line, and no more than an eighth of the rows that are left
FLAT = 1e-5             # a residual that rises less than this beside the line's steepest piece has vanished


@dataclass(frozen=True, eq=False)
class LineReport:
    origin: Array           # (d,)
    direction: Array        # (d,)
    pieces: Pieces
    found: int              # units added
    tangles: tuple[tuple[float, float], ...]    # stretches of the line narrower than the resolution, taken as one fold


def add_units_of_line(ask: Asker, model: Model, x0: Array, v: Array, grid: Array, *, mix: Array, resolution: float,
                      rng: np.random.Generator, loose: float = 1e-3) -> LineReport:
    """Search x0 + t v in the residual and add the units found to `model`. mix (m,): the outputs' combination that is
    searched. loose: units measured worse than this, relative to their size, are left for another line.
    """
    def values(line: Index, t: Array) -> tuple[Array, Array]:
        x = ask.points(x0 + t[:, None] * v)
        r = (ask(x) - model(x)) @ mix
        return r, ask.noise_at(x) + model.uncertainty(x)

    d = len(x0)
    left = ask.oracle.remaining
    most = MOST_POINTS if left is None else int(np.clip(left // 8, 1000, MOST_POINTS))
    pieces = search_lines(values, grid[None, :], resolution=resolution, far=float(np.sqrt(d)), max_points=most)
    if pieces.noise > 1 and model.h == 0:                           # later lines also see the model's own errors
        ask.eta = pieces.noise * max(ask.eta, 1e-300)
    if len(pieces.line) == 0:
        return LineReport(x0, v, pieces, 0, ())
    x = ask.points(x0 + pieces.middle[:, None] * v)
    G, y, error = measure_gradients(ask, model, x, v, pieces, mix=mix, rng=rng)
    # Keep them as gradients of F itself: the model will change.
    model.places.append(x)
    model.slopes.append(G + model.gradient(x))
    model.values.append(y + model(x))
    model.slope_errors.append(error + np.sqrt(np.square(model.error).sum()))
    shake = rng.standard_normal((DRAWS, len(pieces.line), d)) * (error / np.sqrt(d))[:, None]
    found, tangles = [], []
    for p in range(len(pieces.line) - 1):
        J = G[p + 1] - G[p]                                         # (m, d): rank one if a single unit folds here
        size = float(np.linalg.norm(J))
        e = float(error[p] + error[p + 1])
        t = crossing(pieces, p)
        here = x0 + t * v
        # The pieces' heights at the fold are that uncertain: a fold in the wrong place is a step beyond it.
        step = 2 * float((ask.noise_at(here[None]) + model.uncertainty(here[None]))[0])
        if not e + step < loose * size:
            continue
        w = np.linalg.svd(J, full_matrices=False)[2][0] if len(J) > 1 else J[0] / size
        w = w * (1.0 if w @ v >= 0 else -1.0)
        if pieces.start[p + 1] > pieces.stop[p]:
            tangles.append((float(pieces.stop[p]), float(pieces.start[p + 1])))
        moved = shake[:, p + 1] - shake[:, p]                       # (DRAWS, d): around a fold that stays in place
        shifted = step * rng.standard_normal(DRAWS) - moved @ here
        found.append((w, -float(w @ here), J @ w, e + step, np.concatenate([moved, shifted[:, None]], 1)))
    if found:
        model.add(np.stack([f[0] for f in found]), np.array([f[1] for f in found]),
                  np.stack([f[2] for f in found], 1), np.array([f[3] for f in found]),
                  np.stack([f[4] for f in found], 1))
    model.read_affine_part()
    return LineReport(x0, v, pieces, len(found), tuple(tangles))


def crossing(pieces: Pieces, p: int) -> float:
    """Where pieces p and p + 1 meet, from their whole lengths; inside the stretch that separates them."""
    low, high = float(pieces.stop[p]), float(pieces.start[p + 1])
    bend = float(pieces.slope[p] - pieces.slope[p + 1])
    if bend != 0:
        at_p = pieces.value[p] - pieces.slope[p] * pieces.middle[p]
        at_r = pieces.value[p + 1] - pieces.slope[p + 1] * pieces.middle[p + 1]
        t = float((at_r - at_p) / bend)
        slack = 1e-3 * min(float(pieces.stop[p] - pieces.start[p]), float(pieces.stop[p + 1] - pieces.start[p + 1]))
        if low - slack <= t <= high + slack:
            return t
    return 0.5 * (low + high)


def measure_gradients(ask: Asker, model: Model, x: Array, v: Array, pieces: Pieces, *, mix: Array,
                      rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """(G (n, m, d), y (n, m), error (n,)) of the residual at x (n, d), one point per piece.

    Forward differences along a random orthonormal basis. The slope along the line is known, so a step across a fold
    shows; sums of few directions then tell which steps crossed, and those are asked again, shorter. A piece where the
    residual is flat along the line gets one step in a random direction; if that is flat too, the gradient is zero.
    """
    n, d = x.shape
    out = np.maximum(np.abs(pieces.middle) / np.sqrt(d), 1.0)       # how far out, in units of the Gaussian's radius
    radius = np.minimum(pieces.radius, np.sqrt(d) * out)
    eta = ask.noise_at(x) + EPS * np.abs(pieces.value)              # the model's own error is smooth: it cancels
    y = (pieces.value / mix[0])[:, None] if len(mix) == 1 else ask(x) - model(x)
    scale = float(np.sqrt(np.mean(np.square(pieces.slope)) * d)) + 1e-300
    # Short pieces and far ones are few and measured worst (an error far out is a large offset at the origin): there a
    # larger share of the radius is worth more retries.
    room = ROOM * d * np.clip(radius / np.median(radius), 0.1, 1.0) * np.clip(3 / out, 0.1, 1.0)
    length = np.clip(2 * eta * np.sqrt(d) / (1e-9 * scale), radius / room, radius / (8 * np.sqrt(d)))   # (n,)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0] if d > 1 else np.ones((1, 1))                      # rows: steps

    def rises(piece: Index, step: Array) -> Array:
        """Rise of the residual from x[piece] along each row of `step` (n', d), per unit of length, as asked."""
        z = ask.points(x[piece] + step)
        size = np.linalg.norm(step, axis=1)
        along = ((z - x[piece]) * step).sum(1) / size               # the target's dtype may round the step
        out: Array = (ask(z) - model(z) - y[piece]) / along[:, None]
        return out

    slope_of = np.zeros((n, d, ask.m))                              # along each row of Q
    h = np.repeat(length[:, None], d, axis=1)                       # (n, d): the step each of them was asked with
    steepest = float(np.abs(pieces.slope).max())
    flat = (np.abs(pieces.slope) <= FLAT * steepest) & (model.h > 0) & (d > 1)
    todo = np.flatnonzero(flat)
    if len(todo):
        u = rng.standard_normal((len(todo), d))
        u *= (length[todo] / np.linalg.norm(u, axis=1))[:, None]
        still = np.abs(rises(todo, u)).max(1) <= FLAT * steepest + 16 * eta[todo] / length[todo]
        flat[todo[~still]] = False
    p, j = np.nonzero(np.broadcast_to(~flat[:, None], (n, d)))      # which (piece, direction) to ask
    for _ in range(RETRIES):
        if len(p) == 0:
            break
        slope_of[p, j] = rises(p, h[p, j, None] * Q[j])
        p, j = crossed(slope_of, h, Q, np.unique(p), rises, v=v, mix=mix, eta=eta, pieces=pieces, slack=4 * EPS * scale)
        h[p, j] /= 8
    G = np.einsum("njm,jd->nmd", slope_of, Q)
    error = 2 * np.linalg.norm(eta[:, None] / h, axis=1) + np.where(flat, FLAT * steepest, 0.0)
    if len(p):                                                      # still crossing after all retries
        off = np.abs(np.einsum("nmd,m,d->n", G, mix, v) - pieces.slope)
        bad = np.unique(p)
        error[bad] += off[bad]
    return G, y, error


def crossed(slope_of: Array, h: Array, Q: Array, measured: Index, rises: Callable[[Index, Array], Array], *, v: Array,
            mix: Array, eta: Array, pieces: Pieces, slack: float) -> tuple[Index, Index]:
    """(piece, direction) pairs to ask again: of the pieces whose slope along the line comes out wrong, the groups of
    about sqrt(d) directions whose sum does not predict a shorter step.
    """
    d = len(Q)
    off = np.abs(slope_of[measured] @ mix @ (Q @ v) - pieces.slope[measured])
    noise = 2 * np.linalg.norm((eta[:, None] / h)[measured] * (Q @ v), axis=1) + 2 * eta[measured] / h[measured].max(1)
    bad = measured[off > 8 * (noise + pieces.slope_error[measured] + slack)]
    if len(bad) == 0 or d < 12:
        return np.repeat(bad, d), np.tile(np.arange(d), len(bad))
    groups = np.array_split(np.arange(d), round(float(np.sqrt(d))))
    again_p, again_j = [], []
    for group in groups:
        u = Q[group].sum(0) / np.sqrt(len(group))
        step = h[bad][:, group].min(1) / 8
        rise = rises(bad, step[:, None] * u)                        # (bad, m)
        want = slope_of[bad][:, group].sum(1) / np.sqrt(len(group))
        tolerance = 8 * 2 * (eta[bad] / step + np.linalg.norm(eta[bad, None] / h[bad][:, group], axis=1)) + slack
        for piece in bad[np.abs(rise - want).max(1) > tolerance]:
            again_p += [piece] * len(group)
            again_j += group.tolist()
    if not again_p:                                                 # wrong, but nobody to blame: ask all again
        return np.repeat(bad, d), np.tile(np.arange(d), len(bad))
    return np.array(again_p, dtype=np.int64), np.array(again_j, dtype=np.int64)
