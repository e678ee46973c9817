"""Explanations as gradient oracles: hand-known answers, captum as a second opinion, and what lossy forms may do."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadInput, BudgetExhausted, Refused
from foldline.oracles.captum_explain import CaptumRecipe
from foldline.oracles.explain import (
    ExplanationOracle,
    explanation_oracle,
    explanations,
    gradient_x_input_oracle,
    integrated_gradients_oracle,
    smoothgrad_oracle,
)
from foldline.oracles.explain_forms import FORMS, found_form, lose


def small(seed: int = 0, d: int = 20, k: int = 4) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(d, 12), nn.ReLU(), nn.Linear(12, k)).double()
    rng = fl.generator(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64))
    return net


def rows(n: int, d: int = 20, seed: int = 1) -> Tensor:
    return torch.randn(n, d, generator=fl.generator(seed), dtype=torch.float64)


def test_the_whole_jacobian_costs_one_row_per_point() -> None:
    net, x = small(), rows(5)
    e = explanations(net, budget=5)
    answers = e(x)
    expected = torch.autograd.functional.jacobian(lambda t: net(t).sum(0), x).permute(1, 0, 2)       # (n, k, d)
    torch.testing.assert_close(answers.explanations, expected)
    torch.testing.assert_close(answers.values, net(x).detach())
    assert e.used == 5
    with pytest.raises(BudgetExhausted):
        e(x[:1])


def test_top_explains_the_predicted_output() -> None:
    net, x = small(), rows(30)
    y, g = explanation_oracle(net, output="top")(x)
    values = net(x).detach()
    assert len(set(values.argmax(1).tolist())) > 1
    torch.testing.assert_close(y, values.max(1).values)
    for j in range(4):
        mine = values.argmax(1) == j
        if mine.any():
            torch.testing.assert_close(g[mine], fl.gradient_oracle(net, output=j)(x[mine])[1])


def test_smoothgrad_of_a_linear_model_is_its_gradient_whatever_the_noise() -> None:
    net = nn.Linear(20, 3).double()
    nn.init.ones_(net.weight)
    _, g = smoothgrad_oracle(net, 1, samples=4, sigma=1000.0, rng=fl.generator(3))(rows(6))
    torch.testing.assert_close(g, net.weight[1].detach().expand(6, 20))


def test_smoothgrad_has_the_mean_of_the_smoothed_network() -> None:
    # E[step(x + sigma z)] = Phi(x / sigma) for one unit.
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU()).double()
    nn.init.ones_(net[0].weight)
    x = torch.tensor([[-1.0], [0.0], [0.5]], dtype=torch.float64)
    _, g = smoothgrad_oracle(net, samples=20_000, sigma=1.0, rng=fl.generator(0))(x)
    expected = torch.distributions.Normal(0.0, 1.0).cdf(x)
    assert float((g - expected).abs().max()) < 5 * 0.5 / 20_000**0.5


def test_smoothgrad_draws_fresh_noise_and_needs_an_rng() -> None:
    g = smoothgrad_oracle(small(), samples=2, sigma=1.0, rng=fl.generator(0))
    x = rows(4)
    assert not torch.equal(g(x)[1], g(x)[1])
    with pytest.raises(BadInput, match="rng"):
        explanation_oracle(small(), "smoothgrad")


def test_integrated_gradients_sum_to_the_difference_of_values() -> None:
    net, x = small(), rows(6)
    y, e = integrated_gradients_oracle(net, 2, steps=400, baseline=0.1)(x)
    at_baseline = net(torch.full((1, 20), 0.1, dtype=torch.float64)).detach()[0, 2]
    assert float((e.sum(1) - (y - at_baseline)).abs().max()) < 0.02 * float(y.abs().max())


@pytest.mark.parametrize("name", ["Saliency", "InputXGradient", "IntegratedGradients"])
def test_ours_agree_with_captum(name: str) -> None:
    attr = pytest.importorskip("captum.attr")
    net, x = small(), rows(7)
    options = {"Saliency": {"abs": False}, "IntegratedGradients": {"n_steps": 50}}.get(name, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                 # captum speaks of the gradient it asks for
        theirs = explanations(net, CaptumRecipe(getattr(attr, name)(net), **options))(x)
    kind = {"Saliency": "gradient", "InputXGradient": "gradient_x_input"}.get(name, "integrated_gradients")
    ours = explanations(net, kind)(x)
    torch.testing.assert_close(ours.explanations, theirs.explanations)


def test_smoothgrad_agrees_with_captum_in_the_mean() -> None:
    attr = pytest.importorskip("captum.attr")
    net, x = small(), rows(3)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)                            # captum knows only the global seed
        tunnel = CaptumRecipe(attr.NoiseTunnel(attr.Saliency(net)), nt_samples=4000, stdevs=0.5, abs=False)
        theirs = explanations(net, tunnel)(x).explanations
    ours = explanations(net, "smoothgrad", samples=4000, sigma=0.5, rng=fl.generator(0))(x).explanations
    scale = explanations(net)(x).explanations.abs().max()
    assert float((ours - theirs).abs().max() / scale) < 0.1
    assert tunnel.twin == "smoothgrad"


def test_captum_without_a_counterpart_is_asked_but_not_taught() -> None:
    attr = pytest.importorskip("captum.attr")
    with pytest.raises(Refused, match="no counterpart"):
        _ = CaptumRecipe(attr.GuidedBackprop(small())).twin


def test_captum_saliency_loses_the_sign_by_default_and_that_is_seen() -> None:
    attr = pytest.importorskip("captum.attr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = explanations(small(), attr.Saliency(small()))(rows(5))
    assert found_form(answers.explanations.reshape(-1, 20)) == "absolute"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_off_its_answers(form: str) -> None:
    g = torch.randn(12, 784, generator=fl.generator(0), dtype=torch.float64)
    assert found_form(lose(g, form)) == form


@pytest.mark.parametrize("form", ["absolute", "clipped", "image"])
def test_forms_that_leave_the_gradient_are_refused_as_gradient_oracles(form: str) -> None:
    with pytest.raises(Refused, match="gradient up to scale"):
        explanation_oracle(small(), form=form)
    assert isinstance(explanations(small(), form=form), ExplanationOracle)


def test_normalised_explanations_keep_the_span() -> None:
    net, x = small(), rows(30)
    g = explanation_oracle(net, output=1, form="normalised")(x)[1]
    W = net[0].weight.detach()                          # (12, 20)
    residual = g - g @ torch.linalg.pinv(W) @ W
    assert float(residual.abs().max()) < 1e-10
    assert float((g.abs().amax(1) - 1).abs().max()) < 1e-12


def test_behind_a_softmax_the_probabilities_are_explained() -> None:
    net, x = small(), rows(4)
    answers = explanations(net, link="softmax")(x)
    assert float((answers.values.sum(1) - 1).abs().max()) < 1e-12
    assert float(answers.explanations.sum(1).abs().max()) < 1e-9      # probabilities sum to one, so gradients to zero


@pytest.mark.parametrize("bad", [{"output": 9}, {"output": "every"}, {"output": True}, {"kind": "shap"},
                                 {"samples": 0}, {"sigma": -1.0}, {"form": "lost"}])
def test_wrong_options_are_sentences(bad: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        explanations(small(), **bad)


def test_gradient_x_input_is_that() -> None:
    net, x = small(), rows(4)
    torch.testing.assert_close(gradient_x_input_oracle(net, 3)(x)[1], x * fl.gradient_oracle(net, output=3)(x)[1])


def test_a_constant_target_has_zero_explanations() -> None:
    class Constant(nn.Module):
        in_features, out_features = 4, 2

        def forward(self, x: Tensor) -> Tensor:
            return torch.ones(len(x), 2, dtype=x.dtype)

    assert float(explanations(Constant(), "integrated_gradients")(rows(3, 4)).explanations.abs().max()) == 0.0
