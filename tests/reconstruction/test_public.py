"""What public pictures of the kind teach: a network that takes mixtures apart, and candidates moved by it."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import MNIST, mixture, mnist, network_of, planted
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadFile, BadInput
from foldline.reconstruction.basis import Rows
from foldline.reconstruction.by_public import by_public
from foldline.reconstruction.peel import ncc
from foldline.reconstruction.separator import (
    Separator,
    load_separator,
    mixtures,
    save_separator,
    standardised,
    train_separator,
)
from foldline.results import silent
from foldline.victims.datasets import load_dataset

DIGITS = (8, 8)


@cache
def digits() -> tuple[Tensor, Tensor, Tensor]:
    """(16 training digits, as many unseen ones, public ones: all the others)"""
    x = load_dataset("digits").x
    x = x[torch.randperm(len(x), generator=fl.generator(5))]
    return x[:16], x[16:32], x[32:]


@cache
def taught() -> Separator:
    return train_separator(digits()[2], DIGITS, rng=fl.generator(0), steps=1000, widths=(16, 24, 32))


class Nearest(nn.Module):
    """A separator that cannot be wrong: it answers the picture of a list that is most like the row."""

    def __init__(self, pictures: Tensor) -> None:
        super().__init__()
        self.pictures = standardised(pictures.float())

    def forward(self, rows: Tensor) -> Tensor:
        return self.pictures[(rows @ self.pictures.T).argmax(1)]


def rows_at(rows: Tensor, exact: Tensor | None = None) -> Rows:
    exact = torch.zeros(len(rows)) if exact is None else exact
    return Rows(rows, torch.rand(len(rows), generator=fl.generator(0)), {"exact": exact.double()}, int(exact.sum()),
                len(rows), [])


def oracle(pictures: Tensor, worth: float = 0.9) -> Separator:
    return Separator(Nearest(pictures), MNIST, pictures.mean(0), worth)


def test_public_digits_teach_and_noise_does_not() -> None:
    assert taught().worth > 0.45
    noise = torch.rand(600, 64, generator=fl.generator(0), dtype=torch.float64)
    nothing = train_separator(noise, DIGITS, rng=fl.generator(0), steps=100, widths=(8, 8, 8))
    assert nothing.worth < 0.15


def test_a_mixture_leads_with_the_picture_that_is_asked_for() -> None:
    x, y = mixtures(digits()[2].float(), 200, 0.05, fl.generator(0))
    alike = (x * y).mean(1)
    assert x.shape == y.shape == (200, 64) and float(alike.median()) > 0.7 and float(alike.min()) < 0.6


def test_the_same_seed_teaches_the_same_and_touches_no_global_seed() -> None:
    state = torch.get_rng_state()
    one, two = (train_separator(digits()[2], DIGITS, rng=fl.generator(3), steps=5, widths=(4, 4, 4)) for _ in range(2))
    assert one.worth == two.worth and torch.equal(state, torch.get_rng_state())


def test_more_images_than_directions_are_found_and_all_in_place() -> None:
    x = mnist(24)[0]
    A = mixture(x, 120)[:, :-1]
    span = torch.linalg.svd(A, full_matrices=False)[2][:20]         # 20 of 24 directions
    start = mixture(x, 60, seed=1)[:, :-1]
    P = torch.linalg.qr(span.T)[0].T
    found = by_public(rows_at(start @ P.T @ P), P, None, torch.zeros(784), None, oracle(x), progress=silent)
    projected = x @ P.T @ P
    assert len(found.rows) > len(P)
    assert int((ncc(projected, found.rows).amax(1) > 0.999).sum()) > len(P)
    assert float(found.evidence["fit"].min()) > 0.5 and "public images" in found.notes[-1]


def test_gauge_and_offset_put_pixels_back() -> None:
    x = mnist(12)[0]
    mean, low, high = x.mean(0), -1.0, 1.0
    shown = 2 * x - 1                                               # in the box [-1, 1]
    offset = 2 * mean - 1
    mixed = torch.randn(12, 12, generator=fl.generator(0), dtype=torch.float64)
    raw, gauge = mixed @ (shown - low), mixed.sum(1)
    start = 0.8 * shown + 0.2 * shown.roll(1, 0) - offset
    found = by_public(rows_at(start), raw, gauge, offset, (low, high), oracle(x), progress=silent)
    assert float(torch.cdist(shown, found.rows + offset).amin(1).max()) < 1e-2


def test_exact_rows_stay_and_come_first() -> None:
    x = mnist(12)[0]
    P = torch.linalg.qr(x.T)[0].T
    start = x.clone()
    start[1:] += 0.5 * x.roll(2, 0)[1:]
    exact = torch.arange(12) == 0
    found = by_public(rows_at(start, exact), P, None, torch.zeros(784), (0.0, 1.0), oracle(x), progress=silent)
    first = torch.nonzero((found.rows == x[0]).all(1)).flatten()
    assert len(first) == 1 and float(found.weights[first[0]]) >= 0.9
    assert float(found.weights[found.evidence["exact"] > 0].min()) >= 0.9


def test_what_is_worth_too_little_changes_nothing_and_says_so() -> None:
    x = mnist(12)[0]
    before = rows_at(x)
    found = by_public(before, x, None, torch.zeros(784), None, oracle(x, worth=0.2), progress=silent)
    assert torch.equal(found.rows, before.rows) and "20%" in found.notes[-1]


def test_noisy_span_of_digits_gives_more_with_public_ones() -> None:
    x, unseen, _ = digits()
    mean = x.mean(0)
    network = network_of(mixture(x - mean, 120, noise=0.05))
    known: dict[str, Any] = {"image_shape": DIGITS, "mean": mean}
    scores = []
    for public in (None, taught()):
        found = fl.reconstruct(network, rng=fl.generator(0), public=public, **known)
        scores.append(fl.score_reconstruction(found.samples + mean, x, unseen))
    plain, helped = scores
    assert plain.above["0.8"] < 4 and helped.above["0.8"] > 10
    assert helped.recovered > plain.recovered + 0.2             # though what looks like digits is like unseen ones too
    assert len(found.evidence["fit"]) == len(found.samples) == len(found.weights) >= len(x)
    assert any("public images" in note for note in found.status.notes)


def test_explanations_too_and_without_a_mean_it_says_what_to_do() -> None:
    network, mean, x, _ = planted(10, h=60)
    span = fl.recover_span(fl.gradient_oracle(network), rng=fl.generator(0))
    found = fl.reconstruct_from_span(span, rng=fl.generator(0), image_shape=MNIST, mean=mean, public=oracle(x))
    assert float(ncc(x, found.samples + mean).amax(1).min()) > 0.99 and "fit" in found.evidence
    blind = fl.reconstruct_from_span(span, rng=fl.generator(0), image_shape=MNIST, public=oracle(x))
    assert any("mean=" in note for note in blind.status.notes)


def test_it_is_kept_in_a_file(tmp_path: Path) -> None:
    save_separator(taught(), tmp_path / "s.safetensors")
    again = load_separator(tmp_path / "s.safetensors")
    rows = standardised(digits()[1].float())
    assert again.worth == taught().worth and again.image_shape == DIGITS and torch.equal(again.mean, taught().mean)
    assert torch.allclose(again.network(rows), taught().network(rows), atol=1e-5)
    fl.save(nn.Sequential(nn.Linear(3, 2)), tmp_path / "other.safetensors")
    with pytest.raises(BadFile, match="not a separator"):
        load_separator(tmp_path / "other.safetensors")


@pytest.mark.parametrize(("public", "says"), [
    (torch.rand(600, 63), "rows of 64"), (torch.rand(100, 64), "at least 200"),
    (torch.full((600, 64), float("nan")), "finite"), (torch.ones(600, 64), "not all alike")])
def test_public_images_that_teach_nothing_are_refused(public: Tensor, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        train_separator(public, DIGITS, rng=fl.generator(0), steps=2)


def test_a_separator_of_other_pictures_is_refused() -> None:
    network, mean, *_ = planted(10, h=60)
    with pytest.raises(BadInput, match=r"\(8, 8\)"):
        fl.reconstruct(network, rng=fl.generator(0), image_shape=MNIST, mean=mean, public=taught())
    with pytest.raises(BadInput, match="train_separator"):
        fl.reconstruct(network, rng=fl.generator(0), image_shape=MNIST, mean=mean, public=mean)
    with pytest.raises(BadInput, match="method='unmix'"):
        fl.reconstruct(network, rng=fl.generator(0), image_shape=MNIST, mean=mean, method="kkt", public=taught())


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    network, mean, _, _ = planted(10, h=60)
    fl.save(network, tmp_path / "victim.safetensors")
    (tmp_path / "victim.json").write_text(json.dumps({"mean": mean.tolist(), "image_shape": [28, 28]}))
    return tmp_path


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    from foldline.cli.main import main
    monkeypatch.setattr(sys, "argv", ["foldline", "reconstruct", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    try:
        main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_the_command_learns_once_and_takes_up_what_it_kept(victim: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    from foldline.cli import reconstruct_public

    def shorter(*arguments: Any, **options: Any) -> Separator:
        return train_separator(*arguments, **options, steps=2, widths=(4, 4, 4))

    monkeypatch.setattr(reconstruct_public, "train_separator", shorter)
    np.save(victim / "public.npy", (255 * mnist(600, seed=9)[0]).round().to(torch.uint8).numpy())
    out, weights = victim / "out", victim / "victim.safetensors"
    assert command(monkeypatch, weights, "--out", out, "--public", victim / "public.npy", "--json", victim / "r") == 0
    said = capsys.readouterr().err
    assert "600 public images taught" in said and "--public" in said
    assert any("not used" in note for note in json.loads((victim / "r").read_text())["status"]["notes"])
    kept = out / "separator.safetensors"
    assert 0 < float(load_separator(kept).mean.max()) <= 1
    monkeypatch.setattr(reconstruct_public, "train_separator", None)
    assert command(monkeypatch, weights, "--out", out, "--public", kept) == 0
    (victim / "victim.json").unlink()
    capsys.readouterr()
    assert command(monkeypatch, weights, "--out", out, "--access", "gradients", "--public", kept) == 0
    assert "public images takes its place" in capsys.readouterr().err


def test_the_command_draws_strokes_at_the_size_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    from foldline.cli import reconstruct_public

    def shorter(*arguments: Any, **options: Any) -> Separator:
        return train_separator(*arguments, **options, steps=2, widths=(4, 4, 4))

    monkeypatch.setattr(reconstruct_public, "train_separator", shorter)
    monkeypatch.setattr(reconstruct_public, "DRAWN", 300)
    x = digits()[0]
    fl.save(network_of(mixture(x - x.mean(0), 60)), tmp_path / "v.safetensors")
    asked = (tmp_path / "v.safetensors", "--out", tmp_path / "out", "--public")
    assert command(monkeypatch, *asked, "strokes") == 2 and "--image-shape" in capsys.readouterr().err
    assert command(monkeypatch, *asked, "strokes", "--image-shape", "8x8") == 0
    assert "300 drawings of pen strokes taught" in capsys.readouterr().err
    assert load_separator(tmp_path / "out" / "separator.safetensors").drawn


def test_the_command_can_do_without_strokes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = mnist(30)
    mean = x.mean(0)
    fl.save(network_of(mixture(x - mean, 100, noise=0.1)), tmp_path / "v.safetensors")
    np.save(tmp_path / "mean.npy", mean.numpy())
    said = {}
    for public in ("none", "strokes", None):
        more = () if public is None else ("--public", public)
        assert command(monkeypatch, tmp_path / "v.safetensors", "--out", tmp_path / "out", "--image-shape", "28x28",
                       "--mean", tmp_path / "mean.npy", "--json", tmp_path / "r.json", *more) == 0
        said[public] = " ".join(json.loads((tmp_path / "r.json").read_text())["status"]["notes"])
    assert "pen strokes" not in said["none"] and "pen strokes" in said["strokes"] and "pen strokes" in said[None]


@pytest.mark.parametrize(("arguments", "says"), [
    (("--public", "nothing.npy"), "there is no file nothing.npy"),
    (("--public", "digits", "--method", "kkt"), "belongs to --method unmix")])
def test_the_command_refuses_what_it_cannot_use(arguments: tuple[str, ...], says: str, victim: Path,
                                                monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, victim / "victim.safetensors", "--out", victim / "out", *arguments) == 2
    assert says in " ".join(capsys.readouterr().err.split()) and not (victim / "out").exists()
