"""How near a victim came to the KKT point of margin maximisation, and how its first layer's spectrum falls.

At a KKT point theta = sum_i lambda_i grad f_y(x_i), lambda >= 0, with lambda_i > 0 only on the margin (with several
classes: one term per row and wrong class, the gradient of the difference of the two outputs). Weight decay has the
same stationary points with lambda_i the derivative of the loss over the decay. For a linear layer the gradient of row
i is an outer product delta_i a_i^T, so the Gram matrix of all gradients is (delta_i . delta_j)(a_i . a_j): the
multipliers come from an NNLS of the size of the data, and no gradient is ever written out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foldline.errors import Refused
from foldline.victims.train import Victim

MOST_TERMS = 3000           # rows times wrong classes; the NNLS grows with its cube
ON_MARGIN = 1.05            # a row is on the margin up to 5 % above the smallest


@dataclass(frozen=True)
class KKTReport:
    residual: float                     # |theta - sum lambda grad| / |theta|, all layers together
    residual_per_layer: list[float]     # the same by layer, with the same multipliers
    active: int                         # multipliers above 1e-3 of the largest
    margin_min: float
    margin_median: float
    margin_max: float
    margin_spread: float                # (90 % quantile - smallest) / smallest; negative margins: not separated
    on_margin: int
    separated: bool
    gap_at: int                         # where the spectrum of [W1, b1] falls most
    gap_ratio: float                    # s[gap_at] / s[gap_at + 1]
    ratio_at_n: float                   # s[n] / s[n + 1]; nan where the layer has no n + 1 values
    start_edge: float                   # the largest singular value that the rest of the start can have; nan: unknown
    above_edge: int | None              # singular values that stand 2 % above it
    spectrum: list[float]               # around the gap and n: see spectrum_index
    spectrum_index: list[int]           # 1-based

    def to_dict(self) -> dict[str, Any]:
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def report_of(victim: Victim) -> dict[str, Any] | None:
    """The report as JSON, or None where the network is not a stack of linear layers or the data are too many."""
    try:
        edge = start_edge(victim.module, victim.info["recipe"], victim.info["steps"],
                          rounded_once=bool(victim.info.get("in_span")))
        return kkt_report(victim.module, victim.inputs, victim.data.y, edge=edge).to_dict()
    except Refused:
        return None


def start_edge(module: nn.Module, recipe: Mapping[str, Any], steps: int, *, rounded_once: bool = False) -> float:
    """The edge of the start's random matrix, std (sqrt(h) + sqrt(d + 1)), after the decay of its training.

    With SGD a weight that no gradient feeds shrinks by lr decay / (1 - momentum) a step, while every step rounds it
    by up to half a unit in the last place: the two balance at the rounding floor added here (rounded_once: only the
    last step rounds, see span_fit.py). Adam's steps know no such law, so nan there.
    """
    W, b = linear_layers(module)[0]
    h, d = W.shape
    std = recipe["first_layer_std"] if recipe["first_layer_std"] is not None else 1 / math.sqrt(3 * d)
    rate = recipe["lr"] * recipe["weight_decay"] / (1 - recipe["momentum"])
    if rate and recipe["optimiser"] != "sgd":
        return math.nan
    walk = 1 if rounded_once else min(steps, 1 / (2 * rate) if rate else steps)     # roundings that are still there
    unit = torch.finfo(getattr(torch, recipe["dtype"])).eps * float(W.square().mean().sqrt())
    noise = math.hypot(std * max(1 - rate, 0.0) ** steps, unit * math.sqrt(walk / 12))
    return float(noise * (math.sqrt(h) + math.sqrt(d + (b is not None))))


def kkt_report(module: nn.Module, x: Tensor, y: Tensor, *, edge: float = math.nan) -> KKTReport:
    """x (n, d) as the network saw it, y (n,) labels; edge as `start_edge` gives it."""
    layers = linear_layers(module)
    x = x.double()
    a, z = activations(layers, x)                       # per layer: inputs (n, in), pre-activations (n, out)
    rows, starts = output_differences(z[-1], y)         # (m,) which row, (m, k) d(margin)/d(outputs)
    if len(rows) > MOST_TERMS:
        raise Refused(f"The KKT report solves for one multiplier per row and wrong class: {len(rows)} are too many "
                      f"(at most {MOST_TERMS}).")
    G, r, parts = gram(layers, a, z, rows, starts)
    lam = nonnegative_multipliers(G, r)                 # (m,)
    sizes = [float(theta) for _, _, theta in parts]
    off = [max(float(theta - 2 * lam @ r_l + lam @ (G_l @ lam)), 0.0) for G_l, r_l, theta in parts]
    margins = (z[-1][rows] * starts).sum(1)             # (m,)
    margins = torch.full((len(x),), math.inf, dtype=margins.dtype).scatter_reduce(0, rows, margins, "amin")
    low, high = float(margins.min()), float(margins.max())
    s = first_layer_spectrum(layers[0])
    gap_at, gap_ratio = largest_gap(s)
    n = len(x)
    shown = sorted({k for c in (gap_at, n) for k in range(c - 2, c + 4)} | {1, 2, 3, len(s)})
    shown = [k for k in shown if 1 <= k <= len(s)]
    return KKTReport(
        residual=math.sqrt(sum(off) / max(sum(sizes), 1e-300)),
        residual_per_layer=[math.sqrt(o / max(t, 1e-300)) for o, t in zip(off, sizes, strict=True)],
        active=int((lam > 1e-3 * lam.max()).sum()), margin_min=low, margin_median=float(margins.median()),
        margin_max=high, margin_spread=(float(margins.quantile(0.9)) - low) / low if low > 0 else math.nan,
        on_margin=int((margins <= low * ON_MARGIN).sum()) if low > 0 else 0, separated=low > 0,
        gap_at=gap_at, gap_ratio=gap_ratio, ratio_at_n=float(s[n - 1] / s[n]) if 0 < n < len(s) else math.nan,
        start_edge=edge, above_edge=int((s > 1.02 * edge).sum()) if math.isfinite(edge) else None,
        spectrum=[float(s[k - 1]) for k in shown], spectrum_index=shown)


def linear_layers(module: nn.Module) -> list[tuple[Tensor, Tensor | None]]:
    """[(W, b)] of a Sequential of Linear layers with ReLU between them."""
    found = list(module.children()) if isinstance(module, nn.Sequential) else []
    good = len(found) % 2 == 1 and all(isinstance(m, nn.ReLU if i % 2 else nn.Linear) for i, m in enumerate(found))
    if not good:
        raise Refused("The KKT report needs linear layers with ReLU between them.")
    linear = [m for m in found if isinstance(m, nn.Linear)]
    return [(m.weight.detach().double(), None if m.bias is None else m.bias.detach().double()) for m in linear]


def activations(layers: list[tuple[Tensor, Tensor | None]], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    a, z = [], []
    for W, b in layers:
        a.append(x)
        z.append(x @ W.T if b is None else x @ W.T + b)
        x = torch.relu(z[-1])
    return a, z


def output_differences(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Every constraint of the margin problem: its row, and its weights on the outputs."""
    n, k = out.shape
    if k == 1:
        return torch.arange(n), (2 * y.double() - 1)[:, None]
    rows = torch.arange(n).repeat_interleave(k - 1)
    wrong = torch.stack([torch.cat([torch.arange(int(c)), torch.arange(int(c) + 1, k)]) for c in y]).reshape(-1)
    eye = torch.eye(k, dtype=out.dtype)
    return rows, eye[y[rows]] - eye[wrong]


def gram(layers: list[tuple[Tensor, Tensor | None]], a: list[Tensor], z: list[Tensor], rows: Tensor,
         starts: Tensor) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """G (m, m) of the constraints' gradients, r (m,) their products with theta, and both by layer with |theta|^2."""
    delta = starts                                      # (m, out)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for i in range(len(layers) - 1, -1, -1):
        W, b = layers[i]
        below = a[i][rows]                              # (m, in)
        inner = below @ below.T if b is None else below @ below.T + 1
        along = ((below @ W.T if b is None else below @ W.T + b) * delta).sum(1)
        theta = W.square().sum() if b is None else W.square().sum() + b.square().sum()
        parts.append(((delta @ delta.T) * inner, along, theta))
        if i:
            delta = (delta @ W) * (z[i - 1][rows] > 0)
    parts.reverse()
    return sum((p[0] for p in parts), torch.zeros(())), sum((p[1] for p in parts), torch.zeros(())), parts


def nonnegative_multipliers(G: Tensor, r: Tensor) -> Tensor:
    """argmin over lambda >= 0 of lambda G lambda - 2 lambda r, by NNLS on a square root of G."""
    from scipy.optimize import nnls
    values, vectors = np.linalg.eigh(G.numpy())
    root = np.sqrt(np.clip(values, 0, None))
    keep = values > values.max(initial=0.0) * len(values) * np.finfo(float).eps
    if not keep.any():
        return torch.zeros(len(r), dtype=torch.float64)
    A = root[keep, None] * vectors.T[keep]              # (rank, m): A^T A = G
    target = (vectors.T[keep] @ r.numpy()) / root[keep]
    lam, _ = nnls(A, target, maxiter=30 * len(r))
    return torch.from_numpy(lam)


def first_layer_spectrum(first: tuple[Tensor, Tensor | None]) -> Tensor:
    W, b = first
    s: Tensor = torch.linalg.svdvals(W if b is None else torch.cat([W, b[:, None]], 1))
    return s


def largest_gap(s: Tensor) -> tuple[int, float]:
    """(k, s_k / s_{k+1}) with the largest ratio, among singular values above rounding."""
    floor = s[0] * torch.finfo(s.dtype).eps * len(s)
    s = s.clamp_min(float(floor))
    if len(s) < 2:
        return len(s), math.nan
    ratios = s[:-1] / s[1:]
    k = int(ratios.argmax())
    return k + 1, float(ratios[k])
