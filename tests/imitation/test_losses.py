"""The losses against slow and obvious twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.imitation.losses import Lesson, Pupil, form_loss, joint_loss, query_metric, score_lesson, value_loss
from foldline.imitation.spaces import convert, found_space
from foldline.oracles.explain import Recipe, explanations
from foldline.oracles.explain_forms import FORMS, lose

D, K = 18, 4


def net(seed: int, width: int = 10) -> nn.Sequential:
    m = nn.Sequential(nn.Linear(D, width), nn.ReLU(), nn.Linear(width, K)).double()
    rng = fl.generator(seed)
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64))
    return m


def rows(n: int = 6) -> Tensor:
    return torch.randn(n, D, generator=fl.generator(9), dtype=torch.float64)


def lesson(target: nn.Module, x: Tensor, recipe: Recipe | None = None, output: object = "all",
           form: str = "signed") -> Lesson:
    recipe = recipe or Recipe()
    a = explanations(target, recipe, output, form=form)(x)
    return Lesson(x, a.values, a.values.softmax(1), a.explanations, a.of, "logits", recipe, form,
                  float(a.values.square().sum(1).mean()), float(a.explanations.square().sum((1, 2)).mean()))


def jacobian(m: nn.Module, x: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(lambda t: m(t).sum(0), x).permute(1, 0, 2)        # (n, k, d)


def test_the_projected_loss_has_the_jacobian_distance_as_its_mean() -> None:
    target, student, x = net(0), net(1), rows()
    taught = lesson(target, x)
    pupil, rng = Pupil(student, "logits", "logits", None), fl.generator(0)
    drawn = torch.stack([joint_loss(pupil, taught, lam=0.0, values="squared", rng=rng).detach() for _ in range(1500)])
    J, Jt = jacobian(student, x), jacobian(target, x)
    exact = (J - Jt).square().sum((1, 2)).mean() / Jt.square().sum((1, 2)).mean()
    assert abs(float(drawn.mean() - exact)) < 4 * float(drawn.std()) / 1500**0.5


def test_the_gradient_of_the_loss_is_the_derivative_of_the_loss() -> None:
    """Double backward: finite differences of the loss in one weight."""
    target, student, x = net(0), net(1), rows()
    taught, pupil = lesson(target, x), Pupil(student, "logits", "logits", None)

    def loss() -> Tensor:
        return joint_loss(pupil, taught, lam=0.3, values="squared", rng=fl.generator(5))

    loss().backward()
    w = student[2].weight
    slope = float(w.grad[1, 3])
    w.data[1, 3] += 1e-6
    high = float(loss().detach())
    w.data[1, 3] -= 2e-6
    low = float(loss().detach())
    assert slope == pytest.approx((high - low) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("kind", ["smoothgrad", "integrated_gradients", "gradient_x_input"])
def test_a_student_that_is_the_target_has_no_loss_in_the_mean(kind: str) -> None:
    """Two independent draws make the distance of means unbiased; one draw would add its variance."""
    target, x = net(0), rows()
    recipe = Recipe(kind, samples=4000, sigma=1.0, steps=300, rng=fl.generator(1))
    taught = lesson(target, x, recipe)
    pupil, rng = Pupil(target, "logits", "logits", None), fl.generator(0)
    drawn = torch.stack([joint_loss(pupil, taught, lam=0.0, values="squared", rng=rng).detach() for _ in range(400)])
    assert abs(float(drawn.mean())) < max(4 * float(drawn.std()) / 400**0.5, 1e-9) + 2e-3


def test_top_explains_only_the_predicted_output() -> None:
    target, student, x = net(0), net(1), rows()
    taught = lesson(target, x, output="top")
    loss = joint_loss(Pupil(student, "logits", "logits", None), taught, lam=0.0, values="squared", rng=fl.generator(0))
    top = target(x).argmax(1)
    J, Jt = (jacobian(m, x)[torch.arange(len(x)), top] for m in (student, target))
    assert float(loss.detach()) == pytest.approx(float((J - Jt).square().sum(1).mean() / Jt.square().sum(1).mean()))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_matched_by_the_truth_and_not_by_another_network(form: str) -> None:
    target, x = net(0), torch.randn(40, D, generator=fl.generator(3), dtype=torch.float64)
    taught = lesson(target, x, form=form)
    same = score_lesson(Pupil(target, "logits", "logits", None), taught, rng=fl.generator(0)).explanations
    other = score_lesson(Pupil(net(1), "logits", "logits", None), taught, rng=fl.generator(0)).explanations
    assert same < 1e-4
    assert other > 0.1


def test_a_clipped_explanation_only_asks_for_more_than_the_bound() -> None:
    e = torch.randn(3, 300, generator=fl.generator(0), dtype=torch.float64)
    shown = lose(e, "clipped")
    some = Lesson(e, e, None, None, None, "logits", Recipe(), "clipped", 1.0, 1.0)
    assert float(form_loss(e, shown, some)) < 1e-20
    assert float(form_loss(e * 0.5, shown, some)) > 1.0


@pytest.mark.parametrize("end", ["log-probabilities", "probabilities"])
def test_spaces_carry_gradients_along(end: str) -> None:
    target, x = net(0), 0.3 * rows()
    link = {"log-probabilities": "log_softmax", "probabilities": "softmax"}[end]
    expected = explanations(target, link=link)(x)
    a = explanations(target)(x)
    values, e = convert(a.values, a.explanations, a.of, "logits", end)
    torch.testing.assert_close(values, expected.values)
    torch.testing.assert_close(e, expected.explanations)
    if end == "probabilities":
        back, e_back = convert(values, e, a.of, "probabilities", "log-probabilities")
        logs = explanations(target, link="log_softmax")(x)
        torch.testing.assert_close(back, logs.values)
        torch.testing.assert_close(e_back, logs.explanations)


def test_answers_are_recognised() -> None:
    z = net(0)(rows()).detach()
    assert found_space(z) == "logits"
    assert found_space(z.softmax(1)) == "probabilities"
    assert found_space(z.log_softmax(1)) == "log-probabilities"
    assert found_space(z[:, :1].sigmoid()) == "logits"         # one number cannot be told


def test_cross_entropy_is_the_papers() -> None:
    target, student, x = net(0), net(1), rows()
    taught = lesson(target, x)
    z = student(x).detach()
    expected = nn.functional.cross_entropy(z, target(x).detach().softmax(1))
    torch.testing.assert_close(value_loss(z, taught, "cross_entropy"), expected)


@pytest.mark.parametrize("n", [5, 10, 100])
def test_inputs_count_by_their_variance_only_where_it_differs_by_more_than_chance(n: int) -> None:
    noise = torch.randn(n, 784, generator=fl.generator(n), dtype=torch.float64)
    assert query_metric(noise) is None
    framed = noise.clone()
    framed[:, :400] = 0.0                                           # a margin that never moves
    metric = query_metric(framed)
    assert metric is not None and float(metric[:400].max()) < 0.5 * float(metric[400:].mean())
    assert abs(float(metric.square().mean()) - 1) < 1e-9
    assert query_metric(torch.zeros(n, 784)) is None
