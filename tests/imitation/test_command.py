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
from foldline.imitation.queries import (
    blended_rows,
    drawn_rows,
    gaussian_rows,
    graininess,
    placed,
    read_rows,
    smooth_rows,
    spread_rows,
    stretch_against,
)
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


def test_unlabelled_rows_and_the_committee_are_the_users_choice(tmp_path: Path) -> None:
    net = build("two-layer", input_shape=(20, 20), outputs=3, width=10, rng=fl.generator(0))
    fl.save(net, tmp_path / "target.safetensors")
    np.save(tmp_path / "rows.npy", torch.rand(210, 400, generator=fl.generator(1)).numpy())
    base = (f"weights:{tmp_path / 'target.safetensors'}", "--queries", str(tmp_path / "rows.npy"), "--count", "40",
            "--student", "two-layer", "--width", "8", "--steps", "10", "--json", "-")
    asked, unasked, alone = (json.loads(run(*base, *more)[1])["rows"][0]["message"]
                             for more in (("--committee", "2"), ("--committee", "2", "--no-unlabelled"), ()))
    assert "nlabelled pictures" in asked and "mean of 2" in unasked
    assert "nlabelled" not in unasked and "nlabelled" not in alone and "mean of" not in alone


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


@pytest.mark.parametrize("shape", [(6, 7), (5, 4, 3), (40,)])
def test_smooth_noise_is_standard_in_every_pixel_and_alike_in_neighbours(shape: tuple[int, ...]) -> None:
    z = smooth_rows(4000, shape, rng=fl.generator(0), mean=2.0, std=3.0)
    assert torch.allclose(z.mean(0), torch.tensor(2.0, dtype=torch.float64), atol=0.25)
    assert torch.allclose(z.std(0), torch.tensor(3.0, dtype=torch.float64), atol=0.2)
    pictures = ((z - 2) / 3).reshape(4000, *shape)
    line = pictures if len(shape) == 1 else pictures[:, 2]              # (n, W) or (n, W, C)
    line = line[..., 0] if len(shape) == 3 else line
    a, b = line[:, 1], line[:, 2]
    assert float((a * b).mean()) == pytest.approx(float(np.exp(-0.25)), abs=0.06)       # of length 1
    if len(shape) == 3:
        assert abs(float((pictures[:, 2, 1, 0] * pictures[:, 2, 1, 1]).mean())) < 0.06  # colours are independent
    assert torch.equal(smooth_rows(2, shape, rng=fl.generator(0), mean=2.0, std=3.0), z[:2])


def test_spread_rows_are_unlike_each_other() -> None:
    """Nine tenths of the rows lie in one heap; draws by distance visit the other five heaps all the same."""
    rng = fl.generator(0)
    heap = torch.cat([torch.zeros(900, dtype=torch.int64), torch.arange(100) % 5 + 1])
    x = 20 * torch.eye(6, dtype=torch.float64)[heap] + 0.1 * torch.randn(1000, 6, generator=rng, dtype=torch.float64)
    for seed in range(5):
        picked = spread_rows(x, 6, rng=fl.generator(seed))
        assert len(set(picked.argmax(1).tolist())) == 6
        assert torch.equal(spread_rows(x, 3, rng=fl.generator(seed)), picked[:3])
    assert len(spread_rows(x, 1000, rng=rng).unique(dim=0)) == 1000             # every row once
    same = torch.ones(4, 3, dtype=torch.float64)
    assert torch.equal(spread_rows(same, 4, rng=rng), same)                     # copies are rows too


def test_blends_are_halves_of_different_rows_and_nested() -> None:
    x = torch.eye(12, dtype=torch.float64) * 8
    bare = blended_rows(x, 6, rng=fl.generator(0), noise=0.0)
    assert torch.equal((bare == 4).sum(1), torch.full((6,), 2)) and torch.equal(bare.sum(0), torch.full((12,), 4.0))
    noisy = blended_rows(x, 6, rng=fl.generator(0))
    assert torch.equal(blended_rows(x, 2, rng=fl.generator(0)), noisy[:2])
    assert 0.3 < float((noisy - bare).std() / (0.65 * x.std())) < 1.7
    with pytest.raises(fl.errors.BadInput, match="14 different rows"):
        blended_rows(x, 7, rng=fl.generator(0))


def test_points_are_stretched_about_the_rows_mean_and_far_out_about_zero() -> None:
    rows = 2 + torch.randn(500, 4, generator=fl.generator(0), dtype=torch.float64)
    x, mean = rows[:3], rows.mean(0)
    student, line, deep = (build(kind, input_shape=(4,), outputs=2, rng=fl.generator(0), **more) for kind, more in
                           (("two-layer", {}), ("logistic", {}), ("mlp", {"widths": (4,) * 6})))
    assert stretch_against(0.1, rows, student) == 1.0 and stretch_against(1.0, torch.ones(3, 4), student) == 1.0
    deviation = float(rows.std())
    assert stretch_against(deviation, rows, student) == 1
    assert stretch_against(1000 * deviation, rows, student) == pytest.approx(5_000)
    assert stretch_against(8 * deviation, rows, line) == stretch_against(8 * deviation, rows, deep) == 1
    moved, scale = placed(x, rows, 3.0)
    assert torch.allclose(moved - mean, 3 * (x - mean)) and scale == 1
    assert placed(x, rows, 50.0) == (x, 50) and placed(x, rows, 1.0) == (x, 1)
    assert placed(x.float(), rows, 3.0)[0].dtype == torch.float32
    with pytest.raises(fl.errors.BadInput):
        placed(x, rows, 0.5)


def test_noise_is_held_against_what_neighbouring_pixels_differ_by() -> None:
    noise = gaussian_rows(400, 64, rng=fl.generator(0), std=0.3)
    smooth = smooth_rows(400, (8, 8), rng=fl.generator(0), mean=0.5, std=0.3)
    columns = torch.linspace(0, 1, 8, dtype=torch.float64).repeat(8)[None]      # neighbours differ by 1/7 across only
    assert graininess(noise, None) == pytest.approx(0.3, rel=0.02)
    assert graininess(noise, (64,)) == graininess(noise, (8, 8))
    assert graininess(columns, (8, 8)) == pytest.approx((1 / 49 / 2 / 2) ** 0.5)
    assert graininess(smooth, (8, 8)) < 0.2                                     # its deviation is 0.3
    student = build("two-layer", input_shape=(8, 8), outputs=2, rng=fl.generator(0))
    assert stretch_against(0.3, smooth, student) > stretch_against(0.3, noise, student) == 1


def test_the_command_stretches_only_against_smoothgrad(target: str, tmp_path: Path) -> None:
    rows = str(tmp_path / "rows.npz")
    base = (target, "--student", "two-layer", "--queries", rows, "--test", rows, "--sigma", "9", "--samples", "2",
            "--explain", "gradient", "--explain", "smoothgrad", "--count", "2", "--steps", "5", "--json", "-")

    def factors(*more: str) -> list[float]:
        return [r["stretch"] for r in json.loads(run(*base, *more)[1])["rows"]]
    raw, smoothed = factors()
    assert raw == 1 and smoothed > 10
    assert factors("--student", "logistic") == [1, 1] and factors("--stretch", "2") == [2, 2]


def test_the_command_draws_the_papers_points_where_its_case_is_the_papers() -> None:
    from foldline.cli.imitate import paper_case
    assert paper_case("mnist", None, "conv") == ("mnist", "conv", "data")
    assert paper_case("gaussian", "mnist", "conv") == ("mnist", "conv", "gaussian")
    assert paper_case("smooth", "mnist", "conv") is None and paper_case("digits", None, "conv") is None


def test_noise_queries_and_blends_from_the_command(target: str, tmp_path: Path) -> None:
    rows = str(tmp_path / "rows.npz")
    for source in (("--queries", "smooth", "--std", "0.3", "--mean", "0.5"), ("--queries", rows, "--pick", "blend")):
        code, out = run(target, "--student", "logistic", *source, "--test", rows, "--count", "2", "--json", "-")
        assert code == 0 and json.loads(out)["rows"][0]["agreement"] == 1.0
    found = CliRunner().invoke(app, ["imitate", target, "--queries", "gaussian", "--pick", "best"])
    assert found.exit_code != 0


@pytest.mark.parametrize(("options", "said"), [
    (("--student", "two-layer", "--hidden", "8"), "--hidden is for --student conv only"),
    (("--student", "logistic", "--width", "8"), "has no --width"),
    (("--student", "twolayer", "--hidden", "8"), "no network preset 'twolayer'"),
    (("--student", "torch:torch.nn:Identity", "--width", "8"), "--width cannot change torch:torch.nn:Identity"),
])
def test_a_size_that_the_student_does_not_have_is_one_sentence(target: str, tmp_path: Path, options: tuple[str, ...],
                                                               said: str) -> None:
    found = CliRunner().invoke(app, ["imitate", target, "--queries", str(tmp_path / "rows.npz"), *options])
    # The error may be raised through the runner or printed by the command's own handler.
    shown = f"{found.output} {found.exception}"
    assert found.exit_code != 0
    assert said in " ".join(shown.split()) and "TypeError" not in shown and "unexpected keyword" not in shown


def test_the_figure_draws_the_papers_points_in() -> None:
    rows = [{"explain": "gradient", "n": 10, "accuracy": 0.96, "target_accuracy": 0.98},
            {"explain": None, "n": 10, "accuracy": 0.5, "target_accuracy": 0.98},
            {"explain": None, "n": 100, "status": "failed"}]
    series = {s.name: s for s in imitation_curves(rows, paper=("mnist", "conv", "data")).series}
    assert series["gradient"].y == [0.96] and series["values"].x == [10.0]
    assert series["paper, gradient"].x == [10.0] and series["paper, gradient"].y == [0.95]
