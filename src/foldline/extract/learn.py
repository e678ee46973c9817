"""Learn any one-hidden-layer ReLU network from values: close, cancelling, superfluous units and bumps included.

The practical form of paper 001 (the literal one is `worst_case`, method="theory"). One Gaussian line after another is
searched at all scales in the residual F - F'; the folds on it and the gradients of the pieces between give units
(Theorem 4.8's differences); Gaussian probes then say whether anything is left, and the next line goes through where
the residual is largest. So nothing is asked twice: a line costs what is still unknown. For well-separated networks the
first line finds every unit and this is exact extraction, about d + 8 rows a unit.

Differs from the paper: pieces are found, not enumerated; a piece's step for differences follows its length; units are
read off, so that regression (learn_polish) is needed only under noise; biases are taken at the origin, where the
paper's b_L is the intercept at the line's own origin.

epsilon is an L2 error under x ~ N(0, I), relative to the target's standard deviation (relative=False: absolute, as in
the paper, whose bound is epsilon squared on the squared error).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from foldline.errors import BadInput, BudgetExhausted, Refused
from foldline.extract.learn_result import LearnResult
from foldline.extract.learn_run import Run
from foldline.oracles.protocols import ValueOracle
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, silent

if TYPE_CHECKING:
    from foldline.extract.worst_case import Theory

SMALLEST_EPSILON = 64 * float(np.finfo(np.float64).eps)


def learn_from_queries(f: ValueOracle, epsilon: float = 1e-3, delta: float = 0.05, *, rng: torch.Generator,
                       method: Literal["practical", "theory"] = "practical", relative: bool = True,
                       kurtosis: float | None = None, resolution: float = 1e-7, max_lines: int = 400,
                       hand_over: bool = True, theory: Theory | None = None,
                       progress: Progress = silent) -> LearnResult:
    """Learn f within epsilon, with confidence 1 - delta.

    kurtosis: heaviest residual tails the certificate must cover (more is more probes); resolution: folds closer than
    this on a line, in units of sqrt(d), act as one; hand_over: try exact extraction first; theory: constants of the
    literal algorithm.
    """
    check_arguments(f, epsilon, delta, relative, kurtosis, resolution)
    if method == "theory":
        from foldline.extract.worst_case import Theory, learn_by_theory
        return learn_by_theory(f, epsilon, delta, rng=rng, theory=theory or Theory(), progress=progress)
    if method != "practical":
        raise BadInput(f'method is "practical" or "theory", not {method!r}.')
    before = rng.clone_state() if isinstance(rng, torch.Generator) else rng         # draws what extraction would draw
    streams = Streams(rng)
    parameters = {"epsilon": epsilon, "delta": delta, "relative": relative, "kurtosis": kurtosis,
                  "resolution": resolution, "max_lines": max_lines, "hand_over": hand_over}
    run = Run(f, epsilon, delta, relative, kurtosis, resolution, max_lines, before if hand_over else None,
              streams, progress)
    try:
        run.go()
    except BudgetExhausted:
        run.out_of_budget = True
    if run.out_of_budget and (run.ask.oracle.remaining or len(run.x)):
        run.refit(growing=True)                                     # the rows that are left, as a sample
    return run.result(Provenance("learn_from_queries", streams.seed, parameters))


def check_arguments(f: ValueOracle, epsilon: float, delta: float, relative: bool, kurtosis: float | None,
                    resolution: float) -> None:
    if not isinstance(f, ValueOracle):
        raise BadInput(f"learn_from_queries asks values: pass fl.value_oracle(target), not {type(f).__name__}.")
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise BadInput(f"epsilon is a positive error, not {epsilon!r}.")
    if not 0 < delta < 1:
        raise BadInput(f"delta is a probability between 0 and 1, not {delta!r}.")
    if kurtosis is not None and not kurtosis >= 1:
        raise BadInput(f"No distribution has a kurtosis below 1; {kurtosis!r} was asked for.")
    if not 0 < resolution < 1:
        raise BadInput(f"resolution is a width between 0 and 1, not {resolution!r}.")
    if relative and epsilon < SMALLEST_EPSILON:
        raise BadInput(f"epsilon={epsilon:.3g} is below what float64 answers can show: relative errors under "
                       f"{SMALLEST_EPSILON:.1e} are rounding. Nothing was asked.")
    if f.box is not None:
        raise Refused(f"The target answers only in the box [{f.box[0]}, {f.box[1]}], but the error is measured under "
                      f"Gaussian inputs, which leave it. Nothing was asked.")
