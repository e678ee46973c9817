"""Algorithm 1 by post: points written down, asked elsewhere, answers read back; and the commands around it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import foldline as fl
from foldline.cli.main import app
from foldline.errors import BadFile, BadInput
from foldline.span.offline import list_points, read_points, read_rows, span_from_answers, write_points

from .nets import angle, deep_net


def test_gradients_by_post(tmp_path: Path) -> None:
    net = deep_net([40, 6, 9, 1], 0)
    write_points(tmp_path / "p.npz", list_points(20, 40, rng=fl.generator(0)), kind="gradients", step=1e-4)
    points, kind, step = read_points(tmp_path / "p.npz")
    y, g = fl.gradient_oracle(net)(points)
    np.save(tmp_path / "a.npy", torch.cat([y[:, None], g], 1).numpy())
    r = span_from_answers(points, read_rows(tmp_path / "a.npy"), kind=kind, step=step)
    assert r.status.ok and r.rank == 6 and angle(r.basis, net[0].weight) < 1e-8
    same = fl.recover_span(fl.gradient_oracle(net), method="gaussian", points=20, rng=fl.generator(0))
    assert torch.equal(same.points, points)                     # what would have been asked on line


def test_values_by_post() -> None:
    net = deep_net([40, 6, 9, 2], 0)
    points = list_points(20, 40, rng=fl.generator(0), kind="values")
    assert len(points) == 20 * (1 + 40 + 4)
    r = span_from_answers(points, fl.value_oracle(net)(points), kind="values")
    assert r.status.ok and r.rank == 6 and angle(r.basis, net[0].weight) < 1e-6


def test_answers_that_do_not_belong_are_refused(tmp_path: Path) -> None:
    points = list_points(5, 4, rng=fl.generator(0))
    with pytest.raises(BadInput, match="5 points were listed, but 4"):
        span_from_answers(points, torch.zeros(4, 5))
    with pytest.raises(BadInput, match="5 columns"):
        span_from_answers(points, torch.zeros(5, 7))
    with pytest.raises(BadInput, match="NaN"):
        span_from_answers(points, torch.full((5, 5), float("nan")))
    with pytest.raises(BadFile, match="no file"):
        read_rows(tmp_path / "missing.npy")
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(BadFile, match="cannot be read"):
        read_rows(tmp_path / "text.npy")


def test_the_command_from_gradients_to_an_obfuscated_gallery(tmp_path: Path) -> None:
    run = CliRunner().invoke
    span = run(app, ["span", "demo:digits", "--out", str(tmp_path / "span.npz"), "--json", str(tmp_path / "span.json")])
    assert span.exit_code == 0, span.output
    assert json.loads((tmp_path / "span.json").read_text())["rank"] == 32
    noise = run(app, ["obfuscate", "demo:digits", "--span", str(tmp_path / "span.npz"), "--count", "50", "--out",
                      str(tmp_path / "noise")])
    assert noise.exit_code == 0, noise.output
    found = json.loads((tmp_path / "noise" / "statistics.json").read_text())
    assert found["predictions_kept"] == 50 and found["largest_relative_change"] < 1e-6
    assert all(before == after for before, after in found["gallery"]) and "Pred" in found["gallery"][0][0]
    assert (tmp_path / "noise" / "gallery.png").read_bytes()[:4] == b"\x89PNG"


def test_the_command_out_of_budget_leaves_what_it_found() -> None:
    out = CliRunner().invoke(app, ["span", "demo:digits", "--budget", "10", "--json", "-"])
    assert out.exit_code == 3 and json.loads(out.stdout)["rank"] == 10


def test_the_command_by_post(tmp_path: Path) -> None:
    run = CliRunner().invoke
    points, answers = tmp_path / "p.npz", tmp_path / "a.npy"
    assert run(app, ["span", "--list", str(points), "--dim", "64", "--count", "45"]).exit_code == 0
    y, g = fl.gradient_oracle("demo:digits")(read_points(points)[0])
    np.save(answers, torch.cat([y[:, None], g], 1).numpy())
    out = run(app, ["span", "--points", str(points), "--answers", str(answers), "--json", "-"])
    assert out.exit_code == 0 and json.loads(out.stdout)["rank"] == 32
