"""Pen strokes that come with foldline: what they are, what was learnt of them, and when that is used."""

from typing import Any

import pytest
import torch
from planted import MNIST, mixture, mnist, network_of, planted
from torch import Tensor

import foldline as fl
from foldline.errors import BadInput
from foldline.reconstruction.separator import NOISE, worth_of
from foldline.reconstruction.strokes import FILE, known_strokes, look_drawn, pen_strokes, prior_for


def blobs(n: int, *, seed: int = 0) -> Tensor:
    """Smooth patches on black, no strokes: (n, 784) in [0, 1]"""
    from foldline.imitation.queries import smooth_rows
    field = smooth_rows(n, MNIST, rng=fl.generator(seed), length=2.5)
    return (0.6 * (field - field.quantile(0.7, dim=1, keepdim=True))).clamp(0, 1)


def test_strokes_are_thin_ink_on_an_empty_ground() -> None:
    state = torch.get_rng_state()
    rows = pen_strokes(700, MNIST, rng=fl.generator(0))             # more than are drawn at a time
    assert rows.shape == (700, 784) and float(rows.min()) == 0 and float(rows.max()) == 1
    assert torch.equal(rows[:200], pen_strokes(700, MNIST, rng=fl.generator(0))[:200])
    assert torch.equal(state, torch.get_rng_state())
    digits = mnist(300)[0]
    ink = [float((x > 0.5).double().mean()) for x in (rows, digits)]
    assert 0.7 < ink[0] / ink[1] < 1.4
    margin = rows.reshape(-1, 28, 28)[:, [0, -1]]
    assert float(rows.amax(1).min()) > 0.5 and float(margin.mean()) < 0.02


def test_other_sizes_scale_and_colours_are_refused() -> None:
    small, wide = pen_strokes(200, (8, 8), rng=fl.generator(0)), pen_strokes(200, (14, 28, 1), rng=fl.generator(0))
    assert small.shape == (200, 64) and wide.shape == (200, 392)
    left = (wide > 0.5).reshape(-1, 14, 28)[:, :, :5]
    assert 0.05 < float(small.mean()) < 0.25 and float(left.double().mean()) < 0.01
    with pytest.raises(BadInput, match="one channel"):
        pen_strokes(2, (8, 8, 3), rng=fl.generator(0))


def test_what_comes_with_foldline_never_saw_a_digit_and_takes_digits_apart() -> None:
    separator = known_strokes(MNIST)
    assert separator is not None and separator.drawn and separator.worth > 0.75
    x = mnist(400)[0].float()
    assert worth_of(separator.network, x, NOISE * float(x.std()), fl.generator(0)) > 0.6
    assert FILE.stat().st_size < 2_000_000


def test_it_is_for_pictures_of_its_size_only_and_can_be_put_aside() -> None:
    assert known_strokes((8, 8)) is None and known_strokes(None) is None and known_strokes((28, 28, 3)) is None
    rows = mnist(8)[0].float()
    answers = []
    for shape in (MNIST, (28, 28, 1), (1, 28, 28)):
        separator = known_strokes(shape)
        assert separator is not None and separator.image_shape == shape
        answers.append(separator.network(rows))
    assert torch.allclose(answers[0], answers[1], atol=1e-5) and torch.allclose(answers[0], answers[2], atol=1e-5)
    given, own = known_strokes(MNIST), prior_for(None, MNIST)
    assert prior_for(False, MNIST) is None and own is not None and own.unasked
    assert given is not None and prior_for(given, MNIST) is given and not given.unasked


def test_digits_look_drawn_and_other_pictures_do_not() -> None:
    separator = known_strokes(MNIST)
    assert separator is not None
    assert look_drawn(mnist(100)[0], separator) and look_drawn(pen_strokes(100, MNIST, rng=fl.generator(1)), separator)
    shuffled = torch.randperm(28, generator=fl.generator(0))
    columns = mnist(100)[0].reshape(-1, 28, 28)[:, :, shuffled].flatten(1)
    for other in (blobs(100), 1 - mnist(100)[0], torch.rand(100, 784, generator=fl.generator(0)), columns):
        assert not look_drawn(other[:60], separator)
    assert not look_drawn(torch.zeros(0, 784), separator)


def test_a_noisy_span_of_digits_gives_more_unasked() -> None:
    x, unseen = mnist(60)
    mean = x.mean(0)
    network = network_of(mixture(x - mean, 150, noise=0.35))
    known: dict[str, Any] = {"image_shape": MNIST, "mean": mean}
    plain, helped = (fl.reconstruct(network, rng=fl.generator(0), public=public, **known) for public in (False, None))
    scores = [fl.score_reconstruction(r.samples + mean, x, unseen, image_shape=MNIST) for r in (plain, helped)]
    assert scores[1].recovered > scores[0].recovered + 0.1 and scores[1].above["0.9"] > scores[0].above["0.9"] + 10
    assert any("pen strokes" in note for note in helped.status.notes) and "fit" in helped.evidence
    assert not any("pen strokes" in note for note in plain.status.notes)


def test_pictures_that_are_not_drawn_are_left_alone() -> None:
    x = blobs(30)
    mean = x.mean(0)
    network = network_of(mixture(x - mean, 100, noise=0.05))
    known: dict[str, Any] = {"image_shape": MNIST, "mean": mean}
    plain, asked = (fl.reconstruct(network, rng=fl.generator(0), public=public, **known) for public in (False, None))
    assert torch.equal(plain.samples, asked.samples)
    assert any("does not look drawn" in note for note in asked.status.notes)


def test_of_explanations_with_the_mean_known() -> None:
    network, mean, x, _ = planted(12, h=60, noise=0.02)
    span = fl.recover_span(fl.gradient_oracle(network), rng=fl.generator(0))
    blind = fl.reconstruct_from_span(span, rng=fl.generator(0), image_shape=MNIST)
    assert any("pen strokes can be used" in note for note in blind.status.notes)
    own = fl.reconstruct_from_span(span, rng=fl.generator(0), image_shape=MNIST, mean=mean, features=lambda rows: rows)
    assert not any("pen" in note for note in own.status.notes)      # whoever names features knows of no pictures
    assert float((x - mean).norm()) > 0
