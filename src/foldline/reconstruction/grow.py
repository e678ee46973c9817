"""Unmixing images and units together, a few directions at a time.

The layer is A M, images M (r, r) on the right and what each left in the units on the left; features of the images
are sparse (unmix.py), and so are differences of neighbouring rows of A (units.py). With Q = M^-1, z the images'
features and D the differences, both in whitened coordinates,

    minimise  sum_i mean log(1 + (f_i M z)_i^2) + weight sum_i mean log(1 + (e_i D Q)_i^2)  - logs of the scales

over M and the scales e and f of either side; the determinants of M and Q cancel but for the weight. Among 500 images
the search fails from a random start, not the objective, so it grows: D's principal directions come in the order of the
training rows' multipliers, the unmixing of the first r is a fair start for that of the first 1.1 r, and the rows that
are not in yet are weak. CIFAR-10 and MNIST, n = 500: 5 % and 1 % by features alone, 93 % and 80 % this way.

What ended in a mixture of several images is repaired: the least sparse components are unmixed among themselves from the
start, and that is kept if it lowers the whole.

The steps are relative, M <- (I + E)^-T M, by L-BFGS; its first metric is the curvature of the quadratics that touch the
logarithms from above, entry by entry, which exact zeros cannot make indefinite. Cost: no queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.reconstruction.unmix import fast_ica, towards_unit
from foldline.results import Progress, silent

FIRST, GROWTH, LEAST = 20, 1.1, 3       # directions at first, then so many times more, at least so many more
ROUNDS, LAST = 20, 150                  # rounds for each size, and for the whole
SHARES, REPAIRS, MENDING = (0.125, 0.25), 4, 40     # of the components that are repaired, how often, rounds after it
SEARCHING, MIXED = 60, (0.3, 0.1, 0.2)  # rounds of a search around known rows, and how much of them is added to a start
SAMPLE = 8000           # features of the images that are looked at
MEMORY = 20             # pairs of the quasi-Newton metric
FRESH = 5               # rounds between curvatures
FLAT = 0.05             # curvature at least
LONGEST = 0.5           # entry of a step at most, relative to the component that it moves
SLOPE = 1e-4            # share of the promised gain that a step must keep
ENOUGH = 2e-5           # gain per component and round below which a size is done
ROUNDED = 1e-8          # differences below this, relative to the largest, are rounding: such directions come together
SILENT = 1e-10          # components shorter than this, relative to the longest, are rounding
SCALING, RESCALING = 12, 2              # rounds for the scales: at first, and after a step


@dataclass(frozen=True, eq=False)
class Side:
    S: Tensor           # (a, N) float32 components, scaled
    f: Tensor           # (a, 1) float64 their scales


def grow(D: Tensor, z: Tensor, weight: float, *, rng: torch.Generator, progress: Progress = silent) -> Tensor | None:
    """M (r, r): images in whitened coordinates, unit rows; None where the differences do not reach all of them.

    D (N, r) differences of units and z (r, N') features of images, in these coordinates.
    """
    r = D.shape[1]
    z = z[:, torch.randperm(z.shape[1], generator=rng)[:SAMPLE]].float()
    _, s, M = torch.linalg.svd(D, full_matrices=False)
    if len(s) < r or float(s[-1]) <= SILENT * float(s[0]):
        return None
    Q, a = M.T.clone(), 0
    seen = int((s > ROUNDED * s[0]).sum())
    steps = sizes(seen) + [r] * (seen < r)                          # among rounding there is no order
    work = [ROUNDS * b * b for b in steps[:-1]] + [LAST * r * r] + [MENDING * r * r] * REPAIRS      # what each costs

    def tell(done: int) -> None:
        progress("growing", {"done": float(sum(work[:done])), "total": float(sum(work))})

    for done, b in enumerate(steps):
        M[a:b], Q[:, a:b] = block(D, z, M[a:b], Q[:, a:b], weight, rng)
        M[:b], Q[:, :b] = refine(D, z, M[:b], Q[:, :b], weight, LAST if b == r else ROUNDS)
        a = b
        tell(done + 1)
    M = mended(D, z, M, Q, weight, rng, lambda done: tell(len(steps) + done))
    unit: Tensor = M / M.norm(dim=1, keepdim=True)
    return unit


def sizes(r: int) -> list[int]:
    """Directions at each stage, the last one r."""
    found = [min(FIRST, r)]
    while found[-1] < r:
        found.append(min(r, max(found[-1] + LEAST, int(GROWTH * found[-1]))))
    return found


def mended(D: Tensor, z: Tensor, M: Tensor, Q: Tensor, weight: float, rng: torch.Generator,
           progress: Callable[[int], None]) -> Tensor:
    """M with its least sparse components unmixed anew as long as that helps; a share that did not is dropped."""
    shares = list(SHARES)
    loss, sparseness = judged(D, z, M, Q, weight)
    for done in range(REPAIRS):
        open_ones = int(sparseness.isfinite().sum())
        if not shares or open_ones < 2:
            break
        share = shares[done % len(shares)]
        worst = sparseness.argsort()[:min(max(2, round(share * len(M))), open_ones)]
        new_M, new_Q = M.clone(), Q.clone()
        new_M[worst], new_Q[:, worst] = block(D, z, M[worst], Q[:, worst], weight, rng)
        new_M, new_Q = refine(D, z, new_M, new_Q, weight, MENDING)
        new_loss, new_sparseness = judged(D, z, new_M, new_Q, weight)
        if loss - new_loss < MENDING * ENOUGH * len(M) * (1 + weight):
            shares.remove(share)
        if new_loss < loss:
            M, Q, loss, sparseness = new_M, new_Q, new_loss, new_sparseness
        progress(done + 1)
    return M


def judged(D: Tensor, z: Tensor, M: Tensor, Q: Tensor, weight: float) -> tuple[float, Tensor]:
    """(the objective, how sparse each component is (r,): of both sides at unit power; inf: left alone)"""
    left, right = (D @ Q).T, M @ z.double()
    power = [floored(side.square().mean(1).sqrt(), SILENT) for side in (left, right)]
    L, R = (rescaled((side / p[:, None]).float(), SCALING) for side, p in zip((left, right), power, strict=True))
    logdet = float(torch.linalg.slogdet(Q)[1])
    loss = weight * (float((surprise(L) + power[0].log()).sum()) - logdet)
    loss += float((surprise(R) + power[1].log()).sum()) + logdet
    # What is rounding on the left would mix with the rest in a repair, which does not see how small it is.
    seen = power[0] / Q.norm(dim=0)
    return loss, (-weight * surprise(L) - surprise(R)).masked_fill(seen < ROUNDED * seen.max(), torch.inf)


def block(D: Tensor, z: Tensor, M: Tensor, Q: Tensor, weight: float,
          rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """New directions M (m, r), Q (r, m) unmixed among themselves: by images, by units, and the better of the two."""
    left, right = (D @ Q).T, M @ z.double()                         # (m, N), (m, N')
    K = whitening(left)
    left, right = K @ left, torch.linalg.solve(K.T, right)
    K_right = whitening(right)
    by_units = fast_ica(left.float(), rng=rng).double()
    by_images = torch.linalg.inv(fast_ica((K_right @ right).float(), rng=rng).double() @ K_right).T
    C = min((descend(left.float(), right.float(), weight, ROUNDS, start) for start in (by_units, by_images)),
            key=lambda ended: ended[1])[0] @ K
    return torch.linalg.solve(C.T, M), Q @ C.T


def whitening(components: Tensor) -> Tensor:
    """K (m, m) with K components at unit second moment."""
    L, V = torch.linalg.eigh(components @ components.T / components.shape[1])
    K: Tensor = (V / floored(L, SILENT ** 2).sqrt()).T
    return K


def around(D: Tensor, z: Tensor, M: Tensor, free: Tensor, weight: float, draws: int, *,
           rng: torch.Generator) -> Tensor:
    """(draws * a, r) what the a rows of M (r, r) that are free (r,) bool may be, the others held as they are.

    From the rows themselves, from the free ones unmixed among each other, and from those plus some of the others.
    """
    z = z[:, torch.randperm(z.shape[1], generator=rng)[:SAMPLE]].float()
    M = M / M.norm(dim=1, keepdim=True)
    Q, open_rows, found = torch.linalg.inv(M), torch.nonzero(free).flatten(), []
    for draw in range(draws):
        start, inverse = M.clone(), Q
        if draw > 0 and len(open_rows) > 1:
            start[open_rows] = block(D, z, M[open_rows], Q[:, open_rows], weight, rng)[0]
        if draw > 1:
            some = MIXED[draw % len(MIXED)] * torch.randn(len(open_rows), len(M), generator=rng, dtype=M.dtype)
            start[open_rows] += some @ M
        if draw > 0:
            inverse, singular = torch.linalg.inv_ex(start)
            if int(singular):
                continue
        found.append(refine(D, z, start, inverse, weight, SEARCHING, free)[0][open_rows])
    return torch.cat(found)


def refine(D: Tensor, z: Tensor, M: Tensor, Q: Tensor, weight: float, rounds: int,
           free: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(M (a, r), Q (r, a)) at a lower value of the module's objective, in the span of these a; free: rows that move."""
    left = (D @ Q).T                                                # (a, N)
    size = floored(left.square().mean(1, keepdim=True).sqrt(), SILENT)
    C = descend((left / size).float(), (size * (M @ z.double())).float(), weight, rounds, free=free)[0] / size.T
    return torch.linalg.solve(C.T, M), Q @ C.T


def floored(sizes: Tensor, least: float) -> Tensor:
    """Sizes no smaller than `least` of the largest; 1 where all are nothing."""
    largest = float(sizes.max())
    return sizes.clamp(min=least * largest) if largest > 0 else torch.ones_like(sizes)


def descend(left: Tensor, right: Tensor, weight: float, rounds: int,
            start: Tensor | None = None, free: Tensor | None = None) -> tuple[Tensor, float]:
    """(C (a, a) that makes both C left and C^-T right sparse, the loss), from start or from both as they are.

    free (a,) bool: rows of the right side that move; the left side then moves along these alone.
    """
    C = torch.eye(len(left), dtype=torch.float64) if start is None else start
    L = rescaled(C.float() @ left, SCALING)
    R = rescaled(torch.linalg.inv(C).T.float() @ right, SCALING)
    loss = loss_of(L, R, weight, float(torch.linalg.slogdet(C)[1]))
    metric = Metric()
    H: Tensor | None = None
    for done in range(rounds):
        ratio_left, ratio_right = L.f / L.f.T, R.f / R.f.T
        G = weight * gradient(L.S) * ratio_left - (gradient(R.S) * ratio_right).T
        G.fill_diagonal_(0)                                         # sizes are the scales' business
        if free is not None:
            G[:, ~free] = 0
        if H is None or done % FRESH == 0:
            H = weight * curvature(L.S) * ratio_left ** 2 + (curvature(R.S) * ratio_right ** 2).T
        E = metric.step(G, H)
        slope = float((E * G).sum())
        longest = float(torch.maximum((E * ratio_left).abs(), (E.T * ratio_right).abs()).max())
        t = min(1.0, LONGEST / max(longest, 1e-300))
        for _ in range(8):
            trial = C + t * (E @ C)
            trial_logdet = float(torch.linalg.slogdet(trial)[1])
            inverse, singular = torch.linalg.inv_ex(trial)
            new_L = Side((L.f * trial).float() @ left, L.f)
            new_R = Side((R.f * inverse.T).float() @ right, R.f)
            if not int(singular) and loss_of(new_L, new_R, weight, trial_logdet) < loss + SLOPE * t * slope:
                break
            t *= 0.5
        else:
            if metric.empty():
                break
            metric.forget()
            continue
        metric.took(t * E, G)
        C, L, R = trial, rescaled(new_L.S, RESCALING, new_L.f), rescaled(new_R.S, RESCALING, new_R.f)
        before, loss = loss, loss_of(L, R, weight, trial_logdet)
        if before - loss < ENOUGH * len(C) * (1 + weight):
            break
    return C, loss


class Metric:
    """L-BFGS: what the last steps and the gradients before them say about curvature."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor, float]] = []
        self.last: tuple[Tensor, Tensor] | None = None              # step, gradient where it began

    def step(self, G: Tensor, H: Tensor) -> Tensor:
        """A direction of descent, its diagonal zero."""
        if self.last is not None:
            s, y = self.last[0], G - self.last[1]
            if float((s * y).sum()) > 1e-12:
                self.pairs = [*self.pairs, (s, y, 1 / float((s * y).sum()))][-MEMORY:]
        E = self.through(G, H)
        if float((E * G).sum()) >= 0:
            self.forget()
            E = self.through(G, H)
        return E

    def through(self, G: Tensor, H: Tensor) -> Tensor:
        d, shares = G.clone(), []
        for s, y, rho in reversed(self.pairs):
            shares.append(rho * float((s * d).sum()))
            d -= shares[-1] * y
        d = d / H
        for (s, y, rho), share in zip(self.pairs, reversed(shares), strict=True):
            d += (share - rho * float((y * d).sum())) * s
        return -d.fill_diagonal_(0)

    def took(self, step: Tensor, gradient_before: Tensor) -> None:
        self.last = step, gradient_before

    def empty(self) -> bool:
        return not self.pairs

    def forget(self) -> None:
        self.pairs, self.last = [], None


def rescaled(S: Tensor, rounds: int, f: Tensor | None = None) -> Side:
    """Components scaled so that E 2 s^2 / (1 + s^2) = 1: stationary in scale. f: the scales that S has already."""
    f = torch.ones(len(S), 1, dtype=torch.float64) if f is None else f
    for _ in range(rounds):
        factor = towards_unit(S)
        S, f = S * factor, f * factor.double()
    return Side(S, f)


def loss_of(L: Side, R: Side, weight: float, logdet: float) -> float:
    return weight * (float(surprise(L).sum()) - logdet) + float(surprise(R).sum()) + logdet


def surprise(side: Side) -> Tensor:
    """(a,) mean of minus the log-density of each component."""
    return (side.S * side.S).log1p_().mean(1).double() - side.f[:, 0].log()


def gradient(S: Tensor) -> Tensor:
    """(a, a) slope of mean log(1 + s_i^2) when component i moves along component j."""
    return (S * S).add_(1).reciprocal_().mul_(S).matmul(S.T).double() * (2 / S.shape[1])


def curvature(S: Tensor) -> Tensor:
    """(a, a) the same of the quadratic that touches the logarithm at s from above: never below zero."""
    S2 = S * S
    return ((S2 + 1).reciprocal_().matmul(S2.T).double() * (2 / S.shape[1])).clamp(min=FLAT)
