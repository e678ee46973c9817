"""Students of many layers: smoothing by a slow twin, the smoothed loss, the start, and who is left alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.imitation.deep import Smoothing, prepared, scale_start, smoothing_of
from foldline.imitation.losses import Lesson, Pupil, joint_loss
from foldline.imitation.optimise import Plan
from foldline.networks.presets import build
from foldline.oracles.explain import Recipe, explanations


def slow(image: Tensor, length: float) -> Tensor:
    """A Gaussian of `length` over an image (H, W), pixel by pixel"""
    out = torch.zeros_like(image)
    H, W = image.shape
    for i in range(H):
        for j in range(W):
            for a in range(H):
                for b in range(W):
                    far = (i - a) ** 2 + (j - b) ** 2
                    out[i, j] += image[a, b] * math.exp(-far / (2 * length**2)) / (2 * math.pi * length**2)
    return out


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 3), (3, 5, 6)])
def test_smoothing_is_the_slow_one(shape: tuple[int, ...]) -> None:
    g = torch.randn(2, 4, math.prod(shape), generator=fl.generator(0), dtype=torch.float64)
    found = smoothing_of(shape, 1.3, g)(g)
    images, answers = g[1, 2].reshape(shape), found[1, 2].reshape(shape)
    if shape == (5, 6):
        torch.testing.assert_close(answers, slow(images, 1.3))
    elif shape == (5, 6, 3):
        torch.testing.assert_close(answers[..., 1], slow(images[..., 1], 1.3))
    else:
        torch.testing.assert_close(answers[1], slow(images[1], 1.3))


def lesson_from(target: nn.Module, x: Tensor, explained: bool = True) -> Lesson:
    told = explanations(target)(x)
    e = told.explanations if explained else None
    size = 1.0 if e is None else float(e.square().sum((1, 2)).mean())
    return Lesson(x, told.values, told.values.softmax(1), e, told.of if explained else None, "logits", Recipe(),
                  "signed", float(told.values.square().sum(1).mean()), size)


def deep(seed: int, start: str = "he", norm: bool = False) -> nn.Module:
    return build("vgg11", input_shape=(8, 8, 3), outputs=2, width=2, norm=norm, rng=fl.generator(seed), start=start,
                 dtype=torch.float64).eval()


def rows(n: int) -> Tensor:
    return torch.rand(n, 192, generator=fl.generator(9), dtype=torch.float64)


def test_the_loss_is_that_of_smoothed_gradients() -> None:
    target, student, x = deep(0), deep(1), rows(3)
    lesson = prepared(Pupil(student, "logits", "logits", (8, 8, 3)), lesson_from(target, x))
    assert isinstance(lesson.smoothing, Smoothing)
    gap = explanations(student)(x).explanations - explanations(target)(x).explanations          # (n, k, d)
    size = lesson.smoothing(explanations(target)(x).explanations).square().sum()
    wanted = float(lesson.smoothing(gap).square().sum() / size)
    rng = fl.generator(2)
    pupil = Pupil(student, "logits", "logits", (8, 8, 3))
    draws = torch.tensor([float(joint_loss(pupil, lesson, lam=0.0, values="squared", rng=rng).detach())
                          for _ in range(200)])
    assert abs(float(draws.mean()) - wanted) < 5 * float(draws.std()) / math.sqrt(200) + 1e-9
    same = Pupil(target, "logits", "logits", (8, 8, 3))
    assert float(joint_loss(same, lesson, lam=1.0, values="squared", rng=rng).detach()) < 1e-20
    assert lesson.part(torch.tensor([0])).smoothing is lesson.smoothing


def spread(module: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float(module(x).std(0).mean())


def test_a_vanished_start_is_scaled_and_others_are_not() -> None:
    target, x = deep(0), rows(40)
    lesson = lesson_from(target, x, explained=False)
    vanished = deep(3, start="default")
    assert spread(vanished, x) < 1e-3 * spread(target, x)
    vanished.train()
    assert scale_start(Pupil(vanished, "logits", "logits", (8, 8, 3)), lesson)
    assert vanished.training
    vanished.eval()
    assert 0.3 < spread(vanished, x) / spread(target, x) <= 1.001
    assert all(not layer.bias.any() for layer in vanished.modules() if isinstance(layer, (nn.Linear, nn.Conv2d)))
    for other in (deep(4), deep(5, start="default", norm=True)):
        before = [p.clone() for p in other.parameters()]
        assert not scale_start(Pupil(other, "logits", "logits", (8, 8, 3)), lesson)
        assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


@pytest.mark.parametrize(("name", "arguments"), [
    ("conv", {"width": 2}), ("two-layer", {}), ("mlp", {"widths": (4,) * 6})])
def test_students_of_few_layers_or_without_convolutions_are_left_alone(name: str, arguments: dict[str, object]) -> None:
    student = build(name, input_shape=(8, 8, 3), outputs=2, rng=fl.generator(0), dtype=torch.float64, **arguments)
    before = [p.clone() for p in student.parameters()]
    lesson = lesson_from(deep(0), rows(6))
    found = prepared(Pupil(student, "logits", "logits", (8, 8, 3)), lesson)
    assert found is lesson
    if name != "mlp":
        assert all(torch.equal(a, b) for a, b in zip(before, student.parameters(), strict=True))


def test_imitate_prepares_deep_students() -> None:
    target, x = deep(0).float(), rows(12).float()
    student = build("vgg11", input_shape=(8, 8, 3), outputs=2, width=2, norm=False, rng=fl.generator(1))
    result = fl.imitate(target, student, x, rng=fl.generator(2), plans=[Plan(1e-4, 0.1, 5)])
    assert result.status.code == "ok" and result.explained == "gradient" and result.network is not None
    assert spread(student, x) < 1e-3 * spread(target, x) < spread(result.network, x)
