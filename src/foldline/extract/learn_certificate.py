"""What fresh Gaussian probes say of a learnt network's squared error, and on what assumption.

For residuals r >= 0 with kurtosis E r^4 / (E r^2)^2 <= K, two bounds hold, each with probability 1 - delta / 2:
- by the mean of n squares: it falls short of E r^2 by a factor 1 - sqrt(2 K ln(2/delta) / n) at most (the lower tail of
  a sum of non-negative variables needs their second moments only). K = n / (8 ln(2/delta)) makes the factor 1/2.
- by the largest: P(r^2 > c E r^2) >= (1 - c)^2 / K (Paley and Zygmund), so n probes all at or below c E r^2 have a
  probability of at most exp(-n (1 - c)^2 / K). With c = 1/100, E r^2 is at most 100 times the largest square, for
  K = 0.98 n / ln(2/delta): tails eight times heavier, for a network whose residuals are far below epsilon anyway.
No number of probes excludes a residual that lives on less than about 3/n of the Gaussian's mass; `fraction_bound`
says how much mass that is, without any assumption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foldline.extract.learn_model import Array
from foldline.results import fraction_upper_bound

FACTOR = 2.0            # certified squared error over the probes' mean square
SMALL = 0.1             # a network whose worst probe is this far below epsilon is certified by that probe


@dataclass(frozen=True)
class LearnCertificate:
    relative_error: float       # root mean square residual of the probes over the standard deviation
    bound: float                # relative error is at most this with `confidence`, for residuals up to `kurtosis`
    kurtosis: float             # the heaviest tails that the bound covers
    squared_error: float        # mean square residual, all outputs added
    squared_error_bound: float
    standard_deviation: float   # of the target under Gaussian x, all outputs together
    worst: float                # largest residual of a probe
    probes: int
    off: int                    # probes whose residual is larger than epsilon times the standard deviation
    fraction_bound: float       # Clopper-Pearson: at most this share of the Gaussian is off by more
    confidence: float
    epsilon: float              # what was asked for, as an L2 error in the units of `relative_error` if `relative`
    relative: bool
    floor: float                # answers' own noise over the standard deviation: nothing below it can be certified
    distribution: str = "x ~ N(0, I)"

    @property
    def holds(self) -> bool:
        reached = self.bound if self.relative else math.sqrt(self.squared_error_bound)
        return self.probes > 0 and reached <= self.epsilon


def certify(residual: Array, *, sd: float, epsilon: float, delta: float, relative: bool, noise: float
            ) -> LearnCertificate:
    """residual (n, m) on fresh probes. noise: the answers' own, in absolute units."""
    n = len(residual)
    square = np.square(residual).sum(1)                             # (n,)
    mean = float(square.mean()) if n else float("nan")
    scale = sd if sd > 0 else 1.0
    limit = epsilon * scale if relative else epsilon
    worst = float(np.sqrt(square.max())) if n else float("nan")
    by_worst = worst <= SMALL * limit
    upper = (worst / SMALL) ** 2 if by_worst else FACTOR * mean
    off = int((~(np.sqrt(square) <= limit)).sum())
    return LearnCertificate(
        relative_error=math.sqrt(mean) / scale, bound=math.sqrt(upper) / scale,
        kurtosis=n / probes_for(1.0, delta)[0 if by_worst else 1], squared_error=mean, squared_error_bound=upper,
        standard_deviation=sd, worst=worst, probes=n, off=off,
        fraction_bound=fraction_upper_bound(off, n, 1 - delta) if n else 1.0, confidence=1 - delta,
        epsilon=epsilon, relative=relative, floor=noise / scale)


def probes_for(kurtosis: float, delta: float) -> tuple[float, float]:
    """Probes that a bound by the largest residual needs, and one by their mean."""
    each = kurtosis * math.log(2 / delta)
    return each / (1 - SMALL ** 2) ** 2, 2 * FACTOR ** 2 * each


def probes_wanted(d: int, delta: float, kurtosis: float | None) -> tuple[int, int]:
    """Probes for a kurtosis, by the largest and by the mean; by default 12000 / d^0.85 for both, at least 256.

    A bump of width e carries about 0.4 e of the Gaussian whatever d is, but on a random line it looks sqrt(d) times
    wider: the lines take over what the probes leave.
    """
    if kurtosis is not None:
        few, many = probes_for(kurtosis, delta)
        return math.ceil(few), math.ceil(many)
    n = max(256, math.ceil(12000 / math.pow(d, 0.85)))
    return n, n
