"""Two-sided unmixing: images on one side of the first layer, the units that hold them on the other.

Where training with weight decay has come to rest, [W, b] = A X~ with one column of A per training row,

    a_i = sum_o g_io ds_o(x_i)/dz,        z = W x + b the first layer's outputs, s_o the network's,

the signal that back-propagation sends to the units from x_i: nothing on those that x_i leaves off, and on the others a
known number times a multiplier. Measured on CIFAR-10, n = 100: zeros to 1e-5 of the column, the rest to 2 %. So rows M
of images and columns of A = C M^-1 (C, the layer in the span) are judged together: the images by the likelihood of
unmix.py, the columns by how far they are from the signal of their own image. One round is a Newton step on both,

    M <- (I + E)^-1 M,   (A^T W_i A + m H_i) e_i = A^T W_i (t_i - a_i) + m G_i       for every column e_i of E,

t_i the signal, W_i the Cauchy weights of the column's residuals, G and H the relative gradient and curvature of the
likelihood, m the number of features that count as independent. Neither side can do it alone: weak multipliers leave
their images free on one, and edges blur the others. CIFAR-10, n = 100 and 200, above NCC 0.99: 37 -> 96 and 26 -> 132.

Kept only if the columns come to fit: on a start that never decayed, a small start, or a wrong unmixing they do not. Of
images whose features became less sparse the old ones are kept: their multipliers are too small to tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foldline.networks.one_hidden import Network
from foldline.reconstruction.units import PIXELS
from foldline.reconstruction.unmix import Whitened, independence, scale_to, slopes

ROUNDS = 16
OFF, ON = 1e-4, 1.0     # widths of the Cauchy weights: zeros are exact, the rest only shows the way to them
BLURRED = 0.02          # fall in independence that an image may not have
FOLD = 0.02             # units nearer to their fold than this, relative to the median, are neither
SETTLED, PATIENCE = 0.97, 3     # rounds that leave more than this of the residual end it, so many in a row
UNRELATED = 0.8         # a first residual above this: the columns have nothing to do with the images (n = 500: 1.1)
FITS = 0.05             # residual above which nothing is believed (after training 0.0005 to 0.02, small starts 0.25)
OUTPUTS = 32            # outputs at most whose signals are asked for
UNITS = 8               # units per output at least, or signals would explain any column
ROOM = 1.5              # units per direction at least, or images could be turned until any column is explained
CHUNK = 16              # columns solved for at a time

Signal = Callable[[Tensor], Tensor]     # rows (m, d) that enter the first layer -> (m, k, h)


@dataclass(frozen=True, eq=False)
class TwoSided:
    M: Tensor           # (r, r) images in the basis
    residual: Tensor    # (r,) median distance of each column from its signal, relative to it


def signal_of(network: nn.Module) -> Signal:
    """ds_o/dz of every output o at rows that enter the first Linear layer; z is what that layer answers."""
    if isinstance(network, Network):
        return lambda rows: network.A * (rows @ network.W.T + network.b > 0).double()[:, None]
    layer = next(m for m in network.modules() if isinstance(m, nn.Linear))

    def signal(rows: Tensor) -> Tensor:
        z = nn.functional.linear(rows.to(layer.weight), layer.weight, layer.bias).detach().requires_grad_(True)
        modes = [(m, m.training) for m in network.modules()]
        hook = layer.register_forward_hook(lambda *_: z)            # whatever comes before the layer has no say
        try:
            network.eval()
            with torch.enable_grad():
                out = network(torch.zeros_like(rows, dtype=z.dtype)).reshape(len(rows), -1)
                s = [torch.autograd.grad(out[:, o].sum(), z, retain_graph=True)[0]
                     for o in range(min(out.shape[1], OUTPUTS))]
        finally:
            hook.remove()
            for module, mode in modes:
                module.training = mode
        return torch.stack(s, 1).double().cpu()

    return signal


def unmix_both(M: Tensor, C: Tensor, basis: Tensor, space: Whitened, back: Tensor, signal: Signal) -> TwoSided | None:
    """M (r, r): images in basis (r, d + 1), up to scale. C (h, r): the first layer in it. None where nothing fits.

    back (r, r): coordinates in the basis -> whitened coordinates. signal: of rows that enter the first layer.
    """
    if ROOM * len(M) > len(C):
        return None
    z, forth = space.z, torch.linalg.inv(back)
    m = PIXELS * (basis.shape[1] - 1)
    before, settled = independence((M @ back).float(), z), 0
    first: TwoSided | None = None
    best: TwoSided | None = None
    for _ in range(ROUNDS):
        rows = scale_to((M @ back).float(), z, 1.0, rounds=12 if first is None else 4)
        M = rows.double() @ forth
        size = M @ basis[:, -1]
        fit = fit_of(M, C, basis, signal)
        if fit is None:
            return None
        M, A, t, scale, residual = fit.M, fit.A, fit.t, fit.scale, fit.residual
        now = TwoSided(M, residual.abs().median(1).values)
        first = first or now
        if not left(first) < UNRELATED:
            return None
        settled = settled + 1 if best is not None and not left(now) < left(best) * SETTLED else 0
        best = now if best is None else min(best, now, key=left)
        if settled == PATIENCE:
            break
        Z = (M @ C.T).abs()
        spread = torch.where(t != 0, ON, OFF)
        weights = (FOLD * Z.median(1, keepdim=True).values < Z) / (spread ** 2 + residual ** 2) / scale ** 2
        G, H = (slope.double() for slope in slopes(rows @ z))
        ratio = size[:, None] / size                                # rows of the likelihood are scaled images
        E = solve_columns(A, weights, t, m * G * ratio, m * H * ratio ** 2)
        if E is None:
            break
        E = E * min(1.0, 0.5 / max(float((E * ratio).abs().max()), 1e-300))
        M, singular = torch.linalg.solve_ex(torch.eye(len(E), dtype=E.dtype) + E, M)
        if int(singular):
            break
    if first is None or best is None or not left(best) < FITS:
        return None
    sharp = independence((best.M @ back).float(), z) > before - BLURRED
    return TwoSided(torch.where(sharp[:, None], best.M, first.M), torch.where(sharp, best.residual, first.residual))


@dataclass(frozen=True, eq=False)
class Fit:
    M: Tensor           # (r, r) images in the basis, their bias coordinate 1
    A: Tensor           # (h, r) what each left in the units
    t: Tensor           # (r, h) what it should have left
    scale: Tensor       # (r, h) the size of its signal on every unit

    @property
    def residual(self) -> Tensor:
        """(r, h) relative to the signal."""
        return (self.A.T - self.t) / self.scale


def fit_of(M: Tensor, C: Tensor, basis: Tensor, signal: Signal) -> Fit | None:
    """How the columns of images M (r, r) compare with their signals; None where that cannot be asked."""
    size = M @ basis[:, -1]                                         # the bias coordinate is 1 in a training row
    if not bool((size.abs() > 1e-12 * M.norm(dim=1)).all()):
        return None
    M = M / size[:, None]
    Q, singular = torch.linalg.inv_ex(M)
    if int(singular):                                               # two candidates are one
        return None
    A = C @ Q                                                       # (h, r)
    s = signal(M @ basis[:, :-1])                                   # (r, k, h)
    if UNITS * s.shape[1] > len(C):
        return None
    return Fit(M, A, *targets(s, A.T))


def left(fit: TwoSided) -> float:
    return float(fit.residual.median())


def targets(s: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """(what each column should be (r, h), the size of its signal on every unit (r, h)). s (r, k, h), columns (r, h).

    The multipliers g (r, k) fit the column on the units that are on; with one output a median, which no stray unit
    moves. Units that are off have no signal to compare with: theirs is the usual one of that unit.
    """
    on = s.abs().amax(1) > 0                                        # (r, h)
    if s.shape[1] == 1:
        ratio = torch.where(on, columns / s[:, 0], torch.nan)
        g = ratio.nanmedian(1).values.nan_to_num()[:, None]         # (r, 1)
    else:
        g = torch.linalg.lstsq(s.transpose(1, 2), (columns * on)[:, :, None]).solution[:, :, 0]
    t = (g[:, :, None] * s).sum(1)                                  # (r, h)
    size = t.abs().median(1, keepdim=True).values.clamp(min=1e-300)
    size = torch.where(size > 1e-300, size, t.abs().mean(1, keepdim=True).clamp(min=1e-300))
    usual = (t.abs() / size).sum(0) / on.sum(0).clamp(min=1)        # (h,)
    scale = torch.where(on, t.abs(), usual * size)
    return t, scale.clamp(min=1e-6 * scale.amax(1, keepdim=True))


def solve_columns(A: Tensor, weights: Tensor, t: Tensor, G: Tensor, H: Tensor) -> Tensor | None:
    """E (r, r) of the module's equation, its diagonal zero; None where rounding leaves a system without a solution."""
    r = A.shape[1]
    right = (weights * (t - A.T)) @ A + G.T                         # (i, k)
    right.fill_diagonal_(0)
    E = torch.empty_like(right)
    for i in range(0, r, CHUNK):
        mine = torch.arange(i, min(i + CHUNK, r))
        X = A * weights[mine].sqrt()[:, :, None]                    # (chunk, h, r)
        gram = torch.bmm(X.transpose(1, 2), X)
        gram.diagonal(dim1=1, dim2=2).add_(H[:, mine].T)
        own = torch.arange(len(mine))
        gram[own, mine, :] = 0
        gram[own, :, mine] = 0
        gram[own, mine, mine] = 1
        L, failed = torch.linalg.cholesky_ex(gram)
        if bool(failed.any()):
            return None
        E[mine] = torch.cholesky_solve(right[mine][:, :, None], L)[:, :, 0]
    return E.T
