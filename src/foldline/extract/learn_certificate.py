"""What fresh Gaussian probes say of a learnt network's squared error, and on what assumption.

For residuals r >= 0 with kurtosis E r^4 / (E r^2)^2 <= K, the mean of n squares falls short of E r^2 by a factor
1 - sqrt(2 K ln(1/delta) / n) at most with probability 1 - delta (the lower tail of a sum of non-negative variables
needs their second moments only). The probes' number fixes which K that covers: `kurtosis` = n / (8 ln(1/delta))
makes the factor 1/2. No number of probes excludes a residual that lives on less than about 3/n of the Gaussian's
mass; `fraction_bound` says how much mass that is, without any assumption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foldline.extract.learn_model import Array
from foldline.results import fraction_upper_bound

FACTOR = 2.0            # certified squared error over the probes' mean square


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
    upper = FACTOR * mean
    scale = sd if sd > 0 else 1.0
    limit = epsilon * scale if relative else epsilon
    off = int((~(np.sqrt(square) <= limit)).sum())
    return LearnCertificate(
        relative_error=math.sqrt(mean) / scale, bound=math.sqrt(upper) / scale,
        kurtosis=n / (2 * FACTOR ** 2 * math.log(1 / delta)), squared_error=mean, squared_error_bound=upper,
        standard_deviation=sd, worst=float(np.sqrt(square.max())) if n else float("nan"), probes=n, off=off,
        fraction_bound=fraction_upper_bound(off, n, 1 - delta) if n else 1.0, confidence=1 - delta,
        epsilon=epsilon, relative=relative, floor=noise / scale)


def probes_wanted(d: int, delta: float, kurtosis: float | None) -> int:
    """Probes for a kurtosis; by default 12000 / d^0.85, at least 256.

    A bump of width e carries about 0.4 e of the Gaussian whatever d is, but on a random line it looks sqrt(d) times
    wider: the lines take over what the probes leave.
    """
    if kurtosis is not None:
        return max(1, math.ceil(2 * FACTOR ** 2 * kurtosis * math.log(1 / delta)))
    return max(256, math.ceil(12000 / math.pow(d, 0.85)))
