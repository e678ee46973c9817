"""Random search over the paper's ranges for the published loop (Appendix B), without the training set.

Learning rate and sigma_x log-uniform in [1e-5, 1] and [1e-6, 1], alpha uniform in [10, 500], lambda_min log-uniform in
[1e-4, 1]. The authors chose by the score against the training set; here the objective is what an attacker sees, the
stationarity residual that the loop ends with. Optuna draws and remembers: with a storage (SQLite) the search goes on
where it was stopped, and ends as if it had not been, since every trial's draws depend on its number alone.

The residual of a loop that diverged is no number: such a trial counts as failed and is not the best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foldline.errors import BadInput, Missing
from foldline.randomness import Streams, generator
from foldline.reconstruction.kkt import solve_kkt
from foldline.reconstruction.noise_edge import noise_edge
from foldline.reconstruction.published import relu_layers
from foldline.reconstruction.weights import Mean, checked_mean, first_layer
from foldline.results import Progress, silent

RANGES: dict[str, tuple[float, float, bool]] = {            # low, high, logarithmic
    "lr": (1e-5, 1.0, True), "sigma_x": (1e-6, 1.0, True), "alpha": (10.0, 500.0, False),
    "lambda_min": (1e-4, 1.0, True)}


@dataclass(frozen=True)
class Trial:
    number: int
    residual: float                 # nan: the loop diverged
    settings: dict[str, float]


@dataclass(frozen=True)
class Search:
    best: Trial | None              # None: every trial diverged
    trials: tuple[Trial, ...]       # by number, those of earlier sessions included


def search_kkt(network: nn.Module, *, trials: int, rng: torch.Generator, m: int | None = None, mean: Mean = None,
               box: tuple[float, float] | None = (0.0, 1.0), epochs: int = 50_000, seconds: float | None = None,
               storage: Path | None = None, progress: Progress = silent) -> Search:
    """Until `trials` are finished in all. m: candidates, default twice the visible rank; seconds: cap of one trial."""
    if trials < 1:
        raise BadInput(f"A search needs at least one trial, not {trials}.")
    streams = Streams(rng)
    layers = relu_layers(network)
    A, _ = first_layer(network)
    offset, _ = checked_mean(mean, A.shape[1] - 1)
    low, high = (box[0] - offset, box[1] - offset) if box is not None else (None, None)
    candidates = m if m is not None else max(2, 2 * noise_edge(A)[0].rank)
    study = open_study(storage, {"candidates": candidates, "epochs": epochs, "seed": streams.seed,
                                 "weights": float(A.norm())})
    while (number := len(finished(study))) < trials:
        drawn = ask(study, streams.integer(f"draw {number}") % 2**32)
        progress(f"trial {number + 1} of {trials}", {"done": number, "total": trials})
        fit = solve_kkt(layers, streams=Streams(generator(streams.integer(f"trial {number}"))), low=low, high=high,
                        m=candidates, epochs=epochs, seconds=seconds, **drawn.params)
        # Told as infinite, not as failed: a diverged trial is finished, and is not tried again.
        study.tell(drawn, math.inf if fit.note else fit.residual)
    return summary(study)


def open_study(storage: Path | None, about: dict[str, Any]) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise Missing("A search needs optuna: pip install 'foldline[search]'.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    where = None if storage is None else f"sqlite:///{storage.resolve()}"
    study = optuna.create_study(storage=where, study_name="kkt", load_if_exists=True)
    if study.user_attrs.get("about", about) != about:
        raise BadInput(f"{storage} belongs to another search (another network, seed, m or number of epochs).")
    study.set_user_attr("about", about)
    for trial in study.get_trials(deepcopy=False):
        if not trial.state.is_finished():                       # a session was killed in the middle of it
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def ask(study: Any, seed: int) -> Any:
    from optuna.samplers import RandomSampler
    # A sampler seeded once would draw the same trials again after a stop.
    study.sampler = RandomSampler(seed=seed)
    trial = study.ask()
    for name, (low, high, log) in RANGES.items():
        trial.suggest_float(name, low, high, log=log)
    return trial


def finished(study: Any) -> list[Any]:
    return [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]


def summary(study: Any) -> Search:
    trials = tuple(Trial(i, t.value if math.isfinite(t.value) else math.nan, dict(t.params))
                   for i, t in enumerate(finished(study)))
    good = [t for t in trials if not math.isnan(t.residual)]
    return Search(min(good, key=lambda t: t.residual) if good else None, trials)
