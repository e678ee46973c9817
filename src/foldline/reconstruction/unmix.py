"""Unmixing a span: the training images are its independent components.

Whitened features z (r, N) of the basis are mixed by an unknown matrix. Two stages find it:

1. FastICA with g(s) = s exp(-s^2 / 2), symmetric: robust from a random start, but it forces the components to be
   uncorrelated, and the edge maps of real images are not quite.
2. Maximum likelihood under a Cauchy density without that constraint,
       minimise  -log |det C| + sum_i mean log(1 + (C z)_i^2),
   by relative quasi-Newton steps. The determinant keeps components apart; the heavy tail rewards exact zeros. On
   CIFAR-10, n = 100, stage 1 alone gives 87 images above NCC 0.9 and stage 2 makes it 100.

`fixed` rows of C (images that are already exact) stay as they are while the rest moves around them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FAST_ROUNDS = 400
LIKELIHOOD_ROUNDS = 25
SAMPLE = 30             # features per component in the first rounds


@dataclass(frozen=True, eq=False)
class Whitened:
    K: Tensor            # (q, r) float64: z = K features
    z: Tensor            # (q, N) float32, unit covariance
    K_inverse: Tensor    # (r, q)


def whiten(features: Tensor) -> Whitened:
    """Features (r, N) to unit second moment; directions without any power are dropped (q <= r)."""
    N = features.shape[1]
    L, V = torch.linalg.eigh(features @ features.T / N)
    kept = 1e-12 * L.max().clamp(min=1e-300) < L
    L, V = L[kept], V[:, kept]
    K = (V / L.sqrt()).T
    return Whitened(K, (K @ features).float(), V * L.sqrt())


def fast_ica(z: Tensor, *, rng: torch.Generator, rounds: int = FAST_ROUNDS, tolerance: float = 1e-4) -> Tensor:
    """Orthogonal C (q, q) float32 with independent rows of C z.

    The first rounds see a sample of the features: they need the direction, not the last digit.
    """
    q, N = z.shape
    C = orthogonal(torch.randn(q, q, generator=rng, dtype=z.dtype))
    few = max(SAMPLE * q, 4000)
    if 2 * few < N:
        chosen = torch.randperm(N, generator=rng)[:few]
        C = fixed_point(C, z[:, chosen], rounds // 2, 30 * tolerance)
    return fixed_point(C, z, rounds, tolerance)


def fixed_point(C: Tensor, z: Tensor, rounds: int, tolerance: float) -> Tensor:
    N = z.shape[1]
    for _ in range(rounds):
        s = C @ z                                                   # (q, N)
        e = torch.exp(-0.5 * s * s)
        slope = ((1 - s * s) * e).mean(1, keepdim=True)             # E g'(s)
        new = orthogonal((s * e) @ z.T / N - slope * C)
        moved = float((1 - (new * C).sum(1).abs()).max())
        C = new
        if moved < tolerance:
            break
    return C


def orthogonal(C: Tensor) -> Tensor:
    """(C C^T)^(-1/2) C: the nearest orthogonal matrix."""
    L, V = torch.linalg.eigh(C @ C.T)
    near: Tensor = (V / L.clamp(min=1e-12).sqrt()) @ (V.T @ C)
    return near


def likelihood(C: Tensor, z: Tensor, *, fixed: Tensor | None = None, rounds: int = LIKELIHOOD_ROUNDS) -> Tensor:
    """C (q, q) moved to a local optimum of the Cauchy likelihood; rows where `fixed` is True keep their direction."""
    C = cauchy_scale(C.float(), z)
    N = z.shape[1]
    eye = torch.eye(len(C), dtype=C.dtype)
    loss, s = cauchy_loss(C, z)
    for _ in range(rounds):
        w = 1 / (1 + s * s)
        G = (2 * s * w) @ s.T / N - eye                             # relative gradient
        curvature = (2 * (1 - s * s) * w * w).mean(1)               # E psi'
        # Row i moves along row j with curvature E psi'(s_i) E s_j^2; exact zeros make it large, so no row overshoots.
        D = -G / (curvature[:, None] * s.square().mean(1)).clamp(min=0.05)
        D.diagonal().copy_(-G.diagonal() / 2)
        if fixed is not None:
            D[fixed] = 0
        step = min(1.0, 0.3 / max(float(D.abs().max()), 1e-12))
        for _ in range(8):
            trial = C + step * (D @ C)
            trial_loss, trial_s = cauchy_loss(trial, z)
            if trial_loss < loss:
                break
            step *= 0.4
        else:
            break
        gained, C, loss, s = loss - trial_loss, trial, trial_loss, trial_s
        if gained < 1e-4:
            break
    return C


def cauchy_loss(C: Tensor, z: Tensor) -> tuple[float, Tensor]:
    s = C @ z
    _, logdet = torch.linalg.slogdet(C.double())
    return float(torch.log1p(s * s).mean(1).double().sum() - logdet), s


def cauchy_scale(C: Tensor, z: Tensor) -> Tensor:
    """Rows scaled so that E 2 s^2 / (1 + s^2) = 1: stationary in scale."""
    s = C @ z
    for _ in range(12):
        power = (2 * s * s / (1 + s * s)).mean(1, keepdim=True)
        factor = power.clamp(0.1, 10).pow(-0.7)
        s, C = s * factor, C * factor
    return C


def independence(C: Tensor, z: Tensor) -> Tensor:
    """(q,) how far each component is from Gaussian: E log cosh-like gap, positive for sparse components."""
    s = C.float() @ z
    s = s / s.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)
    gap: Tensor = (torch.exp(-0.5 * s * s).mean(1) - 2**-0.5).double()
    return gap
