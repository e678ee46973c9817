"""min |Z v - y|^2 over |v| <= W (equation (7) of paper 001), exactly: by the secular equation of its dual.

Either the shortest least-squares solution lies in the ball, or the solution is v(t) = (Z'Z + t)^-1 Z'y for the one
t > 0 with |v(t)| = W. In the singular basis |v(t)| is a decreasing sum of simple fractions, so t is found by
bracketing; nothing is clipped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

Array = npt.NDArray[np.float64]


def solve_bounded_least_squares(Z: Array, y: Array, W: float) -> tuple[Array, float]:
    """(v, t): Z (n, p), y (n,), W > 0. t is the multiplier, 0 inside the ball."""
    if not W > 0:
        raise ValueError(f"The ball's radius must be positive, not {W!r}.")
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    beta = U.T @ y
    cut = max(Z.shape) * np.finfo(np.float64).eps * (s[0] if len(s) else 0.0)
    live = s > cut
    s, beta, Vt = s[live], beta[live], Vt[live]
    free = beta / s
    if np.linalg.norm(free) <= W:
        return free @ Vt, 0.0

    def gap(t: float) -> float:
        # 1 / |v| is nearly linear in t, which brackets well; |v| itself has poles at -s^2.
        return float(1.0 / np.linalg.norm(s * beta / (np.square(s) + t)) - 1.0 / W)

    high = float(np.linalg.norm(s * beta) / W)                      # |v(t)| <= |s beta| / t
    t = float(brentq(gap, 0.0, high, xtol=1e-300, rtol=4 * np.finfo(np.float64).eps, maxiter=500))
    return (s * beta / (np.square(s) + t)) @ Vt, t
