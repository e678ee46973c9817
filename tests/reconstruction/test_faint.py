"""Images under a start that was never forgotten: found, ranked, and said to explain the layer only where they do."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

import foldline as fl
from foldline.images import pictures
from foldline.reconstruction import faint
from foldline.reconstruction.faint import directions, joined, merged, prior, signals
from foldline.reconstruction.two_sided import signal_of
from foldline.victims.recipes import ADAMW, preset
from foldline.victims.train import Victim, train_victim

MNIST = (28, 28)


@cache
def trained(n: int, adam: bool = False, task: str = "binary") -> Victim:
    recipe = dataclasses.replace(ADAMW, steps=300) if adam else preset("standard-start").recipe
    plan = dataclasses.replace(preset("standard-start"), task=task, arguments={"widths": (400, 300), "biases": "all"})
    return train_victim(plan, rng=fl.generator(0), n=n, data_set="mnist5k", recipe=recipe, in_span=not adam)


def attacked(v: Victim, **known: object) -> fl.ReconstructionResult:
    return fl.reconstruct(v.module, rng=fl.generator(0), image_shape=MNIST, mean=v.mean, **known)   # type: ignore[arg-type]


def ncc(found: fl.ReconstructionResult, v: Victim) -> torch.Tensor:
    score = fl.score_reconstruction(found.samples + v.mean, v.data.x, v.data.x_unseen, image_shape=MNIST)
    assert score.unseen_above["0.8"] <= 1                                  # what chance gives
    return score.ncc


def test_few_images_come_back_from_under_the_start_best_first() -> None:
    v = trained(8)
    found = attacked(v)
    assert found.status.code == "faint" and "without them the layer is noise" in found.status.message
    assert int((ncc(found, v) > 0.85).sum()) >= 7
    first = dataclasses.replace(found, samples=found.samples[:8])           # the evidence knows which they are
    assert int((ncc(first, v) > 0.8).sum()) >= 7
    assert set(found.evidence) == {"found", "votes"} and found.queries == 0
    assert found.certificate.rank < 8                                       # the spectrum alone would not do
    blind = fl.reconstruct(v.module, rng=fl.generator(0), image_shape=MNIST)
    assert any("No mean was given" in note for note in blind.status.notes)


def test_several_classes_need_a_weaker_prior() -> None:
    v = trained(20, task="ten")
    found = attacked(v)
    assert found.status.code == "faint" and int((ncc(found, v) > 0.8).sum()) >= 17
    assert found.certificate.rank < 15


def test_after_adam_the_layer_is_not_explained_and_that_is_said() -> None:
    v = trained(12, adam=True)
    found = attacked(v)
    assert found.status.code == "faint" and "do not explain all of the layer" in found.status.message
    assert int((ncc(found, v) > 0.8).sum()) >= 6


def test_a_row_of_the_span_takes_the_place_of_the_image_that_it_looks_like_or_follows() -> None:
    rows = torch.randn(3, 50, generator=fl.generator(0), dtype=torch.float64)
    blurred = rows[:2] + 0.1 * torch.randn(2, 50, generator=fl.generator(1), dtype=torch.float64)
    assert torch.equal(joined(blurred, 3 * rows[1:]), torch.stack([blurred[0], 3 * rows[1], 3 * rows[2]]))
    assert torch.equal(joined(blurred, rows[:0]), blurred)


def test_tables_and_other_layers_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faint, "solve_faint", None)                         # would be called and fail
    v = trained(8)
    table = fl.reconstruct(v.module, rng=fl.generator(0), features=lambda rows: rows, mean=v.mean)
    assert table.status.code == "start_remains"
    tanh = torch.nn.Sequential(*(torch.nn.Tanh() if isinstance(m, torch.nn.ReLU) else m for m in v.module))
    assert attacked(dataclasses.replace(v, module=tanh)).status.code == "start_remains"


def test_signals_with_sharp_gates_are_those_of_back_propagation() -> None:
    v = trained(8)
    x = v.inputs.double()
    theta = [(m.weight.detach(), m.bias.detach()) for m in v.module if isinstance(m, torch.nn.Linear)]
    y = x / x.norm(dim=1, keepdim=True) * 3
    scale = 0.5 * float(x.norm(dim=1)[0])
    t = signals((y @ theta[0][0].double().T).float(), (y @ y.T).float(), scale, theta, torch.ones(8, 1), 1e6)
    exact = signal_of(v.module)((y / 3 * scale).float())[:, 0]
    assert torch.allclose(t.double(), exact / exact.norm(dim=1, keepdim=True), atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3), (3, 8, 8)])
def test_the_prior_is_made_of_orthogonal_waves_of_falling_power(shape: tuple[int, ...]) -> None:
    waves = prior(shape, 100.0)
    gram = waves @ waves.T
    assert torch.allclose(gram, gram.diagonal().diag(), atol=1e-9)
    assert float(gram.trace()) == pytest.approx(100.0 ** 2, rel=1e-9)       # nothing is too weak at this strength
    assert len(prior(shape, 1.0)) < len(waves) == torch.tensor(shape).prod()
    brightest = pictures(waves[gram.diagonal().argmax()][None], shape)
    assert float(brightest.std()) < 1e-9                                    # the constant, grey


def test_waves_of_large_pictures_are_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faint, "MOST", 10 * 64)
    all_of_them = prior((8, 8), 100.0)
    assert 5 <= len(all_of_them) <= 10 and float(all_of_them.norm(dim=1).min()) > 10     # the strongest


def test_directions_point_one_class_up_and_the_others_down() -> None:
    assert directions(1)[:2, 0].tolist() == [1.0, -1.0] and len(directions(1)) == faint.CANDIDATES
    assert torch.allclose(directions(4).sum(1), torch.zeros(len(directions(4))), atol=1e-6)
    assert directions(4)[:4].argmax(1).tolist() == [0, 1, 2, 3]


def test_merging_keeps_what_two_starts_share_and_drops_the_rest() -> None:
    a, b, c, d = torch.eye(4).double().repeat_interleave(4, 1)              # four unlike rows of 16
    noise = 0.01 * torch.randn(2, 3, 16, generator=fl.generator(0), dtype=torch.float64)
    ends = torch.stack([torch.stack([a, b, c]), torch.stack([a, b, d])]) + noise
    seen = merged(ends, torch.ones(3, 1), 2.0, 1.0)
    assert seen.found.tolist() == [2, 2] and seen.votes.tolist() == [2, 2]
    assert {int(image.argmax()) // 4 for image in seen.images} == {0, 1}
    assert torch.allclose(seen.images.norm(dim=1), torch.full((2,), 2.0, dtype=torch.float64))
    other = merged(ends, torch.tensor([[1.0], [-1.0], [1.0]]), 2.0, 1.0)    # what is shared but for the sign stays two
    assert len(other.images) == 2
    nothing = merged(torch.stack([torch.stack([a]), torch.stack([b])]), torch.ones(1, 1), 2.0, 1.0)
    assert len(nothing.images) == 0 and nothing.images.shape[1] == 16
