"""Random search for the published loop's settings: the paper's ranges, no training set, resumable."""

from pathlib import Path

import pytest
import torch
from torch import nn

import foldline as fl
from foldline.errors import BadInput
from foldline.reconstruction.search import RANGES, Search, ask, open_study, search_kkt

pytest.importorskip("optuna")


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=fl.generator(0), dtype=torch.float64))
    return net


def run(trials: int, storage: Path | None = None, seed: int = 0) -> Search:
    return search_kkt(network(), trials=trials, rng=fl.generator(seed), m=4, box=None, epochs=30, storage=storage)


def test_draws_stay_in_the_papers_ranges_and_the_best_has_the_least_residual() -> None:
    found = run(6)
    assert len(found.trials) == 6 and found.best is not None
    for t in found.trials:
        assert all(low <= t.settings[name] <= high for name, (low, high, _) in RANGES.items())
    finite = [t.residual for t in found.trials if t.residual == t.residual]
    assert found.best.residual == min(finite)


def test_learning_rates_are_spread_over_the_decades() -> None:
    study = open_study(None, {})
    drawn = sorted(ask(study, seed).params["lr"] for seed in range(100))
    assert drawn[0] < 1e-4 and 10 ** -3.2 < drawn[50] < 10 ** -1.8 and drawn[-1] > 0.1


def test_a_stopped_search_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = run(4)
    run(2, tmp_path / "s.sqlite")
    resumed = run(4, tmp_path / "s.sqlite")
    assert [t.settings for t in resumed.trials] == [t.settings for t in whole.trials]
    assert [t.residual for t in resumed.trials] == pytest.approx([t.residual for t in whole.trials], nan_ok=True)
    assert run(3, tmp_path / "s.sqlite").trials == resumed.trials   # enough are there: nothing is run


def test_another_search_does_not_take_over_the_file(tmp_path: Path) -> None:
    run(1, tmp_path / "s.sqlite")
    with pytest.raises(BadInput, match="another search"):
        run(1, tmp_path / "s.sqlite", seed=1)
    with pytest.raises(BadInput, match="at least one trial"):
        run(0)
