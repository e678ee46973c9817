"""foldline imitate as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import foldline as fl
from foldline.cli.main import app
from foldline.imitation.queries import drawn_rows, gaussian_rows, read_rows
from foldline.networks.presets import build
from foldline.reports.figures_imitate import imitation_curves


@pytest.fixture
def target(tmp_path: Path) -> str:
    net = build("logistic", input_shape=(4, 4), outputs=3, rng=fl.generator(0))
    fl.save(net, tmp_path / "target.safetensors")
    x = torch.rand(300, 16, generator=fl.generator(1))
    np.savez(tmp_path / "rows.npz", x=x.numpy(), y=net(x).detach().argmax(1).numpy())
    return f"weights:{tmp_path / 'target.safetensors'}"


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["imitate", *arguments])
    return found.exit_code, found.stdout


def test_one_query_of_a_linear_target_and_json_on_stdout(target: str, tmp_path: Path) -> None:
    rows = str(tmp_path / "rows.npz")
    code, out = run(target, "--student", "logistic", "--queries", rows, "--test", rows, "--count", "1", "--json", "-",
                    "--out", str(tmp_path / "student.safetensors"), "--figure", str(tmp_path / "curve.svg"))
    assert code == 0
    (row,) = json.loads(out)["rows"]
    assert row["agreement"] == 1.0 and row["accuracy"] == 1.0 and row["queries"] == 1 and row["solved"]
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")
    assert fl.load(tmp_path / "student.safetensors") is not None


def test_rows_of_a_run_are_not_computed_twice_and_belong_to_their_command(target: str, tmp_path: Path) -> None:
    base = (target, "--queries", str(tmp_path / "rows.npz"), "--count", "5", "--explain", "values", "--steps", "20",
            "--run", str(tmp_path / "run"), "--json", "-")
    first, again = (json.loads(run(*base, "--student", "logistic")[1])["rows"] for _ in range(2))
    assert first == again                                   # seconds too: read, not computed
    other = json.loads(run(*base, "--student", "two-layer", "--width", "8")[1])["rows"]
    assert other != first


def test_queries_come_from_where_they_are_wanted(tmp_path: Path) -> None:
    x = torch.arange(40.0).reshape(10, 4)
    few, more = (drawn_rows(x, n, rng=fl.generator(0)) for n in (3, 7))
    assert torch.equal(few, more[:3]) and len(set(more[:, 0].tolist())) == 7
    assert torch.equal(gaussian_rows(2, 5, rng=fl.generator(0)), gaussian_rows(6, 5, rng=fl.generator(0))[:2])
    np.save(tmp_path / "pixels.npy", np.full((2, 3, 3), 255, dtype=np.uint8))
    rows, labels = read_rows(tmp_path / "pixels.npy")
    assert rows.shape == (2, 9) and float(rows.max()) == 1.0 and labels is None
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    for bad in ("broken.npz", "absent.npz"):
        with pytest.raises(fl.errors.BadFile):
            read_rows(tmp_path / bad)
    with pytest.raises(fl.errors.BadInput):
        drawn_rows(x, 11, rng=fl.generator(0))


def test_the_figure_draws_the_papers_points_in() -> None:
    rows = [{"explain": "gradient", "n": 10, "accuracy": 0.96, "target_accuracy": 0.98},
            {"explain": None, "n": 10, "accuracy": 0.5, "target_accuracy": 0.98},
            {"explain": None, "n": 100, "status": "failed"}]
    series = {s.name: s for s in imitation_curves(rows, paper=("mnist", "conv", "data")).series}
    assert series["gradient"].y == [0.96] and series["values"].x == [10.0]
    assert series["paper, gradient"].x == [10.0] and series["paper, gradient"].y == [0.95]
