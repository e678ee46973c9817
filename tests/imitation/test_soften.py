"""Softened folds: the hard network in the limit, and a gradient where the hard one has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import foldline as fl
from foldline.imitation.losses import Lesson, Pupil, joint_loss
from foldline.imitation.match import imitate
from foldline.imitation.optimise import Plan, default_plans
from foldline.imitation.soften import SHARE, Softened, halves, soft_pool, tau_at
from foldline.networks.presets import build
from foldline.oracles.explain import Recipe


def images(n: int = 3, side: int = 6, channels: int = 2) -> Tensor:
    return torch.randn(n, channels, side, side, generator=fl.generator(0), dtype=torch.float64)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("side", [4, 5])
def test_the_soft_pool_has_the_hard_one_as_its_limit(side: int, ceil_mode: bool) -> None:
    z = images(side=side)
    hard = F.max_pool2d(z, 2, ceil_mode=ceil_mode)
    soft = soft_pool(z, 1e-4, ceil_mode)
    assert soft.shape == hard.shape
    assert torch.allclose(soft, hard, atol=1e-3)
    assert float((soft_pool(z, 1.0, ceil_mode) - hard).abs().max()) > 0.05


def test_it_reaches_modules_and_functions_and_ends_with_the_block() -> None:
    z = images()
    layers = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    hard = layers(z)
    with Softened(1.0):
        soft = layers(z)
        assert torch.equal(F.max_pool2d(F.relu(z), 2), soft)
        assert torch.equal(F.relu(z.clone(), inplace=True), z.relu())
        assert torch.equal(F.max_pool2d(z, 3), torch.max_pool2d(z, 3))
    with Softened(0.0):
        assert torch.equal(layers(z), hard)
    assert not torch.allclose(soft, hard, atol=1e-2)
    assert torch.equal(layers(z), hard)


def test_only_windows_of_two_by_two_are_softened() -> None:
    assert halves(2) and halves((2, 2), (2, 2)) and halves(2, []) and halves(2, None, 0, 1, True)
    assert not (halves(3) or halves(2, 1) or halves(2, 2, 1) or halves(2, 2, 0, 2) or halves((2, 3)))


def test_the_gradient_loss_sees_a_fold_move_only_if_it_is_soft() -> None:
    """f = relu(x + b): the input gradient is a step in b, so l_G alone cannot teach b to the hard network."""
    student = nn.Sequential(nn.Linear(1, 1), nn.ReLU()).double()
    with torch.no_grad():
        student[0].weight.fill_(1.0)
        student[0].bias.fill_(-0.3)
    x = torch.tensor([[-1.0], [0.1], [1.0]], dtype=torch.float64)
    shown = (x > 0).double()[:, None]                               # the target's fold is at 0, the student's at 0.3
    taught = Lesson(x, F.relu(x), None, shown, torch.zeros(3, 1, dtype=torch.int64), "logits", Recipe(), "signed",
                    1.0, 1.0)
    pupil = Pupil(student, "logits", "logits", None)

    def slope(tau: float) -> float:
        student.zero_grad()
        with Softened(tau):
            loss = joint_loss(pupil, taught, lam=0.0, values="squared", rng=fl.generator(0))
        loss.backward()
        bias = student[0].bias.grad
        return 0.0 if bias is None else float(bias)

    assert slope(0.0) == 0.0
    assert slope(0.5) < -0.01                                       # a larger bias moves the fold towards 0


def test_softness_ends_before_training_does_and_the_student_is_the_one_that_was_given() -> None:
    assert tau_at(2.0, 0.0) == 2.0 and tau_at(2.0, SHARE) == 0.0 and tau_at(2.0, 0.99) == 0.0
    target = build("conv", input_shape=(8, 8), outputs=3, width=2, rng=fl.generator(1))
    student = build("conv", input_shape=(8, 8), outputs=3, width=2, rng=fl.generator(2))
    x = torch.randn(6, 64, generator=fl.generator(3))
    r = imitate(target, student, x, rng=fl.generator(0), plans=[Plan(steps=20, soft=1.0)])
    hard = imitate(target, student, x, rng=fl.generator(0), plans=[Plan(steps=20)])
    assert r.network is not None and hard.network is not None and r.plan is not None and r.plan.soft == 1.0
    assert [type(m) for m in r.network.modules()] == [type(m) for m in student.modules()]
    assert not torch.equal(r.network(x), hard.network(x))


def test_folds_are_softened_only_on_demand_and_values_never() -> None:
    def told(n: int, explained: bool) -> Lesson:
        e = torch.zeros(n, 1, 2) if explained else None
        return Lesson(torch.zeros(n, 2), torch.zeros(n, 1), None, e, torch.zeros(n, 1, dtype=torch.int64), "logits",
                      Recipe(), "signed", 1.0, 1.0)

    assert {p.soft for p in default_plans(told(10, True), None)} == {0.0}
    assert {p.soft for p in default_plans(told(100, True), None)} == {0.0}
    assert {p.soft for p in default_plans(told(10, True), None, 2.0)} == {2.0}
    assert {p.soft for p in default_plans(told(100, False), None, 2.0)} == {0.0}
    with pytest.raises(fl.errors.BadInput, match="soft must be"):
        imitate(nn.Linear(2, 1), nn.Linear(2, 1), torch.zeros(2, 2), rng=fl.generator(0), soft=-1.0)
