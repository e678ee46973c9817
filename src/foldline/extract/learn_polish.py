"""Regression over the units found: output weights by least squares, then every parameter by Gauss-Newton.

The last word under noise, where units read off single lines are rough: a Gaussian sample averages the noise away.
"""

from __future__ import annotations

import numpy as np

from foldline.extract.learn_model import Array, Model

MOST_PARAMETERS = 1500      # a dense Gauss-Newton step of n rows costs 2 n p^2 ...
MOST_WORK = 1e11            # ... and this is what all of them may cost together, about 20 s of one core
HELD_OUT = 5                # one row in five says when to stop
PROPOSALS, PER_ROUND, ROUNDS = 600, 4, 25


def polish(model: Model, x: Array, y: Array, *, floor: float, steps: int = 30) -> Model:
    """The best of the model, its linear refit and its Gauss-Newton iterates, by the error on held-out rows."""
    test = np.arange(len(x)) % HELD_OUT == 0
    xt, yt, xv, yv = x[~test], y[~test], x[test], y[test]

    def score(candidate: Model) -> float:
        return held_out_error(candidate, xv, yv)

    best, best_score = model, score(model)
    for candidate in (refit_linear(model, xt, yt, cut) for cut in (1e-10, 1e-6, 1e-3)):
        if score(candidate) < best_score:
            best, best_score = candidate, score(candidate)
    affine = refit_linear(Model.empty(x.shape[1], y.shape[1]), xt, yt, 1e-12)
    if score(affine) < best_score:
        best, best_score = affine, score(affine)
    h, d, m = best.h, x.shape[1], y.shape[1]
    if h == 0 or h * (d + 1 + m) + m * (d + 1) > MOST_PARAMETERS:
        return best
    size = h * (d + 1 + m) + m * (d + 1)
    rows = min(len(xt), max(6 * size, 2000))                        # more rows than this only cost time
    xt, yt = xt[:rows], yt[:rows]
    steps = int(np.clip(MOST_WORK / (2.0 * rows * m * size ** 2), 3, steps))
    current, damping = best, 1e-4
    for _ in range(steps):
        trial = gauss_newton_step(current, xt, yt, damping)
        if score(trial) < best_score:
            gain = 1 - score(trial) / best_score
            best, best_score, current, damping = trial, score(trial), trial, damping / 8
            if gain < 1e-3 or best_score <= 0.3 * floor:
                break
        else:
            damping *= 8
            if damping > 1e3:
                break
    return best


def held_out_error(model: Model, x: Array, y: Array) -> float:
    """A step that went astray may overflow: it scores infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        error = float(np.sqrt(np.square(y - model(x)).sum(1).mean()))
    return error if np.isfinite(error) else float("inf")


def grow(model: Model, x: Array, y: Array, *, floor: float, rng: np.random.Generator) -> Model:
    """Units for what lines could not resolve (heavy noise, a target that is no such network): those of many random
    ones that explain most of the residual, a few at a time, everything polished after each addition.
    """
    test = np.arange(len(x)) % HELD_OUT == 0

    def score(candidate: Model) -> float:
        return held_out_error(candidate, x[test], y[test])

    best, stale = polish(model, x, y, floor=floor, steps=8), 0
    for _ in range(ROUNDS):
        d, m = x.shape[1], y.shape[1]
        size = (best.h + PER_ROUND) * (d + 1 + m)
        if score(best) <= 0.8 * floor or stale >= 3 or size > min(MOST_PARAMETERS // 2, m * len(x) // 3):
            break
        trial = best.copy()
        W, b = proposals(trial, x[~test], y[~test], rng)
        trial.add(W, b, np.zeros((m, len(W))), np.zeros(len(W)))
        trial = polish(trial, x, y, floor=floor, steps=8)
        stale = 0 if score(trial) < 0.97 * score(best) else stale + 1
        if score(trial) < score(best):
            best = trial
    return best


def proposals(model: Model, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """(W, b) of the PER_ROUND random units most correlated with the residual, beside an affine function."""
    x, y = x[:4000], y[:4000]
    r = y - model(x)
    X1 = np.concatenate([x, np.ones((len(x), 1))], 1)
    basis = np.linalg.qr(X1)[0]
    r = r - basis @ (basis.T @ r)
    W = rng.standard_normal((PROPOSALS, x.shape[1]))
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    b = -(W * x[rng.choice(len(x), PROPOSALS)]).sum(1)              # through points of the sample
    Z = np.maximum(x @ W.T + b, 0.0)                                # (n, proposals)
    Z = Z - basis @ (basis.T @ Z)
    gain = np.square(Z.T @ r).sum(1) / (np.square(Z).sum(0) + 1e-12)
    order = np.argsort(-gain)[:PER_ROUND]
    return W[order], b[order]


def refit_linear(model: Model, x: Array, y: Array, cut: float) -> Model:
    """Output weights and the affine part by least squares; directions below `cut` of the largest are left alone."""
    Z = np.maximum(x @ model.W.T + model.b, 0.0)
    Phi = np.concatenate([Z, x, np.ones((len(x), 1))], 1)
    scale = np.sqrt(np.square(Phi).mean(0)) + 1e-300
    # Solve for the change, so that directions the data does not see keep the measured weights.
    change = np.linalg.lstsq(Phi / scale, y - model(x), rcond=cut)[0].T / scale         # (m, h + d + 1)
    new = model.copy()
    h, d = model.h, x.shape[1]
    new.A, new.P, new.q = model.A + change[:, :h], model.P + change[:, h:h + d], model.q + change[:, -1]
    return new


def gauss_newton_step(model: Model, x: Array, y: Array, damping: float) -> Model:
    n, d = x.shape
    h, m = model.h, y.shape[1]
    pre = x @ model.W.T + model.b                                   # (n, h)
    on = (pre > 0).astype(np.float64)
    Z = pre * on
    X1 = np.concatenate([x, np.ones((n, 1))], 1)                    # (n, d + 1)
    blocks = []
    for o in range(m):
        dW = (on * model.A[o])[:, :, None] * X1[:, None, :]         # (n, h, d + 1): w and b of each unit
        linear = np.zeros((n, m, h + d + 1))
        linear[:, o] = np.concatenate([Z, X1], 1)
        blocks.append(np.concatenate([dW.reshape(n, -1), linear.reshape(n, -1)], 1))
    J = np.concatenate(blocks)                                      # (m n, p)
    r = (y - model(x)).T.reshape(-1)
    H = J.T @ J
    D = np.diag(H) + 1e-12 * np.trace(H) / len(H)
    step = np.linalg.solve(H + np.diag(damping * D), J.T @ r)
    moved = step[:h * (d + 1)].reshape(h, d + 1)
    linear = step[h * (d + 1):].reshape(m, h + d + 1)
    W, b = model.W + moved[:, :d], model.b + moved[:, d]
    norm = np.linalg.norm(W, axis=1)
    new = model.copy()
    new.W, new.b = W / norm[:, None], b / norm
    new.A = (model.A + linear[:, :h]) * norm
    new.P, new.q = model.P + linear[:, h:h + d], model.q + linear[:, -1]
    return new
