"""Algorithm 2 of Jayaram, Woodruff and Zhang, literally: span from a network thresholded at 1, smooth activations.

For i = 1 .. k: a Gaussian g with M((I - P_V) g) = 1 is scaled to x = a g just inside the boundary; along
u_i = 2^-N g_i - x / |x| the boundary is met at c_i; 1 / c_i is proportional to <grad, u_i>, so y^T B = b^T with
columns u_i of B and b_i = 1 / c_i gives the gradient of the projected network; it joins V.

The theorem's constants (N polynomial in everything, offsets of 2^-poly(N)) are below any floating point, so they are
arguments here: `shrink` is 2^-N, `offset` the distance of x from the boundary, relative. Their product decides: c_i
is known to eps / offset, and differs between directions by `shrink`; curvature adds an error of about offset / shrink.
Cost: (bisections + n bisections) rows per unit, about 53 (n + 1) k, and the restarts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.errors import BudgetExhausted
from foldline.oracles.protocols import LabelOracle
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, Status, silent
from foldline.span.result import SpanCertificate, SpanResult

TRIES = 1000            # Gaussians until one has label 1
RESTARTS = 20           # line 7: some |c_i| was too large


def recover_span_algorithm2(lb: LabelOracle, *, k: int, rng: torch.Generator, shrink: float = 2.0 ** -8,
                            offset: float = 1e-6, largest: float = 10.0, bits: int = 50,
                            progress: Progress = silent) -> SpanResult:
    """largest: a restart when some |c_i| exceeds this many offsets (the paper's 10 * 2^-N e0 / eta)."""
    streams, used, d = Streams(rng), lb.used, lb.dim
    draw = streams("gaussians")
    V = torch.zeros(0, d, dtype=torch.float64)
    points: list[Tensor] = []
    restarts, stopped = 0, ""
    try:
        while len(V) < k and not stopped:
            progress("algorithm 2", {"rank": len(V), "restarts": restarts})
            x = just_inside(lb, V, draw, offset, bits)
            if x is None:
                stopped = "one_class"
                break
            v = gradient_at(lb, V, x, draw, shrink, offset * largest * float(x.norm()), bits)
            if v is None:
                restarts += 1
                stopped = "restarts" if restarts >= RESTARTS else ""
                continue
            v = v - V.T @ (V @ v)
            V = torch.cat([V, (v / v.norm())[None]])
            points.append(x)
    except BudgetExhausted:
        stopped = "budget"
    r = len(V)
    advice = {"": "", "budget": "The budget ran out.",
              "one_class": f"{TRIES} Gaussian points away from what is known all have label 0.",
              "restarts": f"{restarts} restarts: the boundary was never where the step expected it."}[stopped]
    status = Status("ok", f"The {r} directions asked for were found.") if not stopped else \
        Status(stopped, f"{advice} {r} of the {k} directions asked for were found.")
    return SpanResult(
        status=status, queries=lb.used - used, provenance=Provenance(
            "recover_span_algorithm2", streams.seed, {"k": k, "shrink": shrink, "offset": offset, "bits": bits}),
        certificate=SpanCertificate(stable=0, fraction_bound=1.0, confidence=0.95, null_moves=0, null_change=0.0,
                                    gap=1.0, gap_confidence=0.0),
        basis=V, rank=r, upper_bound=d, singular_values=torch.ones(r, dtype=torch.float64), directions=V,
        noise_floor=offset / shrink, gradients=V, values=torch.zeros(r, dtype=torch.float64),
        points=torch.stack(points) if points else V, outputs=torch.zeros(r, dtype=torch.int64), link="label",
        ranks=torch.arange(1, r + 1))


def away(V: Tensor, x: Tensor) -> Tensor:
    """(I - P_V) x for rows x."""
    return x - (x @ V.T) @ V


def just_inside(lb: LabelOracle, V: Tensor, draw: torch.Generator, offset: float, bits: int) -> Tensor | None:
    """Lines 3 and 4: x = a g with the label 1 there and 0 a relative `offset` closer to the origin."""
    for _ in range(TRIES):
        g = away(V, torch.randn(1, lb.dim, generator=draw, dtype=torch.float64))
        if int(lb(g)[0]) == 1:
            break
    else:
        return None
    low, high = 0.0, 1.0
    for _ in range(bits):
        mid = 0.5 * (low + high)
        if int(lb(mid * g)[0]) == 1:
            high = mid
        else:
            low = mid
    return g[0] * (high * (1 + offset))


def gradient_at(lb: LabelOracle, V: Tensor, x: Tensor, draw: torch.Generator, shrink: float, largest: float,
                bits: int) -> Tensor | None:
    """Lines 5 to 9; None asks for a restart."""
    n = lb.dim
    g = torch.randn(n, n, generator=draw, dtype=torch.float64)
    u = g * shrink - x / x.norm()                                                   # (n, d)
    low = torch.zeros(n, dtype=torch.float64)
    high = torch.full((n,), largest, dtype=torch.float64)
    if bool((lb(away(V, x + high[:, None] * u)) == 1).any()):
        return None                                                                 # line 7
    for _ in range(bits):
        mid = 0.5 * (low + high)
        one = lb(away(V, x + mid[:, None] * u)) == 1
        low, high = torch.where(one, mid, low), torch.where(one, high, mid)
    c = 0.5 * (low + high)
    y: Tensor = torch.linalg.lstsq(u, (1 / c.clamp_min(1e-300))[:, None]).solution[:, 0]    # min |y^T B - b^T|
    return y
