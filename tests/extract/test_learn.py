"""Learning degenerate networks: hand-made ones whose answers are known, bad input, and the certificate's promise."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from learn_nets import D, bump, generic, joined, learn, make, relative
from torch import nn
from typer.testing import CliRunner

import foldline as fl
from foldline.cli.main import app
from foldline.errors import FoldlineError
from foldline.extract.learn_pieces import line_grid, search_lines


def folds_of(values: object, grid: np.ndarray, resolution: float = 1e-9) -> np.ndarray:
    pieces = search_lines(lambda line, t: (values(t), np.full(len(t), 1e-14)), grid[None, :],
                          resolution=resolution, far=1.0)
    return 0.5 * (pieces.stop[:-1] + pieces.start[1:])


@pytest.mark.parametrize("seed", range(6))
def test_folds_on_a_line_are_all_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true = np.sort(rng.uniform(-3, 3, 40))
    true[21] = true[20] + 2e-3
    jump = rng.standard_normal(40)
    jump[21] = -jump[20]                                            # a step

    found = folds_of(lambda t: np.maximum(t[:, None] - true, 0) @ jump, np.linspace(-4, 4, 30))
    assert len(found) == 40
    np.testing.assert_allclose(found, np.sort(true), atol=1e-7)


def test_a_tangle_is_one_fold() -> None:
    true = np.array([0.3, 0.3 + 1e-12])
    found = folds_of(lambda t: np.maximum(t[:, None] - true, 0).sum(1), np.linspace(-1, 1, 12), resolution=1e-7)
    assert len(found) == 1 and found[0] == pytest.approx(0.3, abs=1e-7)


def test_answers_worse_than_thought_do_not_run_away() -> None:
    rng = np.random.default_rng(0)
    asked = 0

    def values(line: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal asked
        asked += len(t)
        return np.abs(t) + 1e-6 * rng.standard_normal(len(t)), np.full(len(t), 1e-15)

    search_lines(values, line_grid(1, points=50)[None, :], resolution=1e-7, far=1.0)
    assert asked < 5_000


# Networks.


def test_without_hand_over_the_lines_find_everything_too() -> None:
    net = generic(24, 60, 1)
    found = learn(net, 60, hand_over=False)
    assert found.status.ok and not found.handed_over and found.units == 24
    assert relative(net, found.network, 60) < 1e-6


def test_more_units_than_inputs() -> None:
    net = generic(80, 6, 2)
    found = learn(net, 6)
    assert found.status.ok and relative(net, found.network, 6) < 1e-5


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6, 1e-9])
def test_clusters(gap: float) -> None:
    g = fl.generator(3)
    centres = generic(4, 8, 4)
    W = centres.W.repeat_interleave(4, 0) + gap * torch.randn(16, 8, generator=g, dtype=D)
    net = make(W, centres.b.repeat_interleave(4), torch.randn(16, generator=g, dtype=D))
    found = learn(net, 8)
    assert found.status.ok and relative(net, found.network, 8) < 1e-3
    if gap < 1e-5:
        assert found.units <= 4 + 4                                 # clusters became single folds


@pytest.mark.parametrize("kind", ["step", "opposite", "copy"])
def test_cancelling_pairs(kind: str) -> None:
    base = generic(8, 8, 5)
    W2, b2, a2 = {"step": (base.W, base.b + 1e-4, -base.A),
                  "opposite": (-base.W, -base.b + 1e-4, -base.A),
                  "copy": (base.W, base.b, -0.5 * base.A)}[kind]
    net = joined(base, make(W2, b2, a2))
    found = learn(net, 8)
    assert found.status.ok and relative(net, found.network, 8) < 1e-3
    if kind == "copy":
        assert found.units == 8


@pytest.mark.parametrize("d", [1, 10])
def test_bump_on_a_network(d: int) -> None:
    net = joined(generic(10, d, 6), bump(1e-2, d, height=4.0))
    without = relative(net, joined(generic(10, d, 6)), d)
    found = learn(net, d, seed=1)
    assert without > 0.02                                           # the bump matters
    assert found.status.ok and relative(net, found.network, d) < 1e-2


def test_bump_alone() -> None:
    net = bump(1e-2, 4)
    found = learn(net, 4, seed=2)
    assert found.status.ok and relative(net, found.network, 4, 200_000) < 1e-2


def test_several_outputs() -> None:
    net = generic(20, 8, 7, outputs=3)
    found = learn(net, 8)
    assert found.status.ok and found.network.out_features == 3 and relative(net, found.network, 8) < 1e-6
    lines = learn(net, 8, hand_over=False)
    assert lines.status.ok and relative(net, lines.network, 8) < 1e-6


def test_same_seed_same_network() -> None:
    net = generic(10, 5, 8)
    first, second = learn(net, 5, seed=4), learn(net, 5, seed=4)
    assert first.queries == second.queries and torch.equal(first.network.W, second.network.W)


# Bad input.


@pytest.mark.parametrize("value", [0.0, 3.7, -1e6 / 3])
def test_constants(value: float) -> None:
    found = learn(lambda x: torch.full((len(x), 1), value, dtype=D), 5)
    assert found.status.ok and found.units == 0
    y = found.network(torch.randn(10, 5, dtype=D, generator=fl.generator(0)))
    assert float((y - value).abs().max()) < 1e-12 * max(1, abs(value))


def test_linear() -> None:
    w = torch.tensor([[1.0], [-2.0], [0.5]], dtype=D)
    found = learn(lambda x: x @ w + 4, 3)
    assert found.status.ok and found.units == 0
    torch.testing.assert_close(found.network.P[0], w[:, 0], atol=1e-8, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_heavy_tailed_weights(seed: int) -> None:
    base = generic(24, 8, seed)
    size = 10 ** (-6 + 12 * torch.rand(24, generator=fl.generator(seed), dtype=D))
    net = make(base.W * size[:, None], base.b * size, base.A)
    found = learn(net, 8)
    assert found.status.ok and relative(net, found.network, 8) < 1e-3


def test_units_that_never_fire_do_not_matter_and_are_not_invented() -> None:
    base = generic(10, 6, 9)
    b = base.b.clone()
    b[:3], b[3:5] = -60.0, 50.0                                     # three never on, two always
    net = make(base.W, b, base.A)
    found = learn(net, 6)
    assert found.status.ok and found.units == 5 and relative(net, found.network, 6) < 1e-6
    silent = learn(make(base.W, torch.full((10,), -1e4, dtype=D), base.A), 6)
    assert silent.status.ok and silent.units == 0


@pytest.mark.parametrize(("noise", "reached"), [(1e-9, 1e-3), (1e-4, 1e-2), (1e-1, 0.05)])
def test_noise_degrades_and_never_diverges(noise: float, reached: float) -> None:
    net, g = generic(8, 5, 10), fl.generator(11)
    found = learn(lambda x: net(x) + noise * torch.randn(len(x), 1, generator=g, dtype=D), 5, budget=20_000)
    assert relative(net, found.network, 5) < reached
    if noise == 1e-1:
        assert found.status.code == "noise"
        assert "Known from the first" in " ".join(found.status.notes)


def test_float32_target() -> None:
    net = generic(10, 6, 12)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 1))
    with torch.no_grad():
        model[0].weight.copy_(net.W), model[0].bias.copy_(net.b), model[2].weight.copy_(net.A), model[2].bias.zero_()
    found = learn(model, 6)
    assert found.status.ok and relative(net, found.network, 6) < 1e-3


def test_budget_ends_first() -> None:
    net = generic(60, 8, 13)
    for budget in (0, 10, 200, 500):
        found = learn(net, 8, budget=budget)
        assert found.status.code == "budget" and not found.certificate.holds
        assert "not certified" in found.status.message
        assert budget < 200 or relative(net, found.network, 8) < 0.9    # better than nothing


def test_a_deep_network_is_not_certified() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        deep = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1)).double()
    found = learn(deep, 4, budget=8_000)
    assert found.status.code in ("unverified", "budget")
    assert "certified" in found.status.message or "may not be" in found.status.message


@pytest.mark.parametrize(("options", "says"), [
    ({"epsilon": 0.0}, "positive"), ({"epsilon": math.nan}, "positive"), ({"epsilon": 1e-16}, "float64"),
    ({"delta": 1.0}, "between 0 and 1"), ({"kurtosis": 0.5}, "kurtosis"), ({"resolution": 0.0}, "resolution"),
    ({"method": "magic"}, "practical")])
def test_mistakes_are_said_before_anything_is_asked(options: dict[str, object], says: str) -> None:
    f = fl.value_oracle(generic(3, 2, 0))
    with pytest.raises(ValueError, match=says):
        fl.learn_from_queries(f, rng=fl.generator(0), **options)
    assert f.used == 0


def test_a_box_is_refused() -> None:
    f = fl.value_oracle(generic(3, 2, 0), box=(0.0, 1.0))
    with pytest.raises(ValueError, match="box"):
        fl.learn_from_queries(f, rng=fl.generator(0))


def test_gradient_oracles_are_refused() -> None:
    with pytest.raises(ValueError, match="asks values"):
        fl.learn_from_queries(fl.gradient_oracle(generic(3, 2, 0)), rng=fl.generator(0))


# What the user sees.


def test_progress_history_and_json() -> None:
    seen: list[tuple[str, dict[str, float]]] = []
    net = joined(generic(6, 4, 14), generic(6, 4, 14))
    f = fl.value_oracle(net)
    found = fl.learn_from_queries(f, rng=fl.generator(0), hand_over=False,
                                  progress=lambda stage, numbers: seen.append((stage, dict(numbers))))
    assert {"look", "lines", "certificate"} <= {stage for stage, _ in seen}
    assert [rows for rows, _ in found.history] == sorted(rows for rows, _ in found.history)
    assert found.trace is not None and len(found.trace.folds) >= 6
    x = found.trace.value
    torch.testing.assert_close(x, found.trace.learnt, atol=1e-4 * float(x.abs().max()), rtol=0)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["status"]["ok"] and data["certificate"]["probes"] == found.certificate.probes


@pytest.mark.parametrize(("extra", "code"), [
    ([], 0), (["--budget", "40"], 3), (["--epsilon", "0"], 2), (["--method", "magic"], 2), (["--plot", "line.txt"], 2),
    (["--out", "no/such/folder/x.safetensors"], 2)])
def test_command(tmp_path: Path, extra: list[str], code: int) -> None:
    weights = tmp_path / "net.safetensors"
    fl.save(generic(5, 3, 15), weights)
    done = CliRunner().invoke(app, ["learn", f"weights:{weights}", *extra])
    # main() turns the error into its exit code; here it arrives as it was raised.
    assert (done.exception.exit_code if isinstance(done.exception, FoldlineError) else done.exit_code) == code
    assert code == 2 or "certificate" in done.stdout


def test_command_writes_network_plot_and_json(tmp_path: Path) -> None:
    net = generic(5, 3, 15)
    fl.save(net, tmp_path / "net.safetensors")
    done = subprocess.run([sys.executable, "-m", "foldline", "learn", "weights:net.safetensors", "--out",
                           "learnt.safetensors", "--plot", "line.svg", "--json", "-"], text=True, capture_output=True,
                          cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"]["ok"]                  # stdout is JSON and nothing else
    assert relative(net, fl.load(tmp_path / "learnt.safetensors"), 3) < 1e-6
    assert (tmp_path / "line.svg").read_text().lstrip().startswith("<?xml")
