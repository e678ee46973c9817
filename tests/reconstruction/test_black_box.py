"""fl.reconstruct_from_span: the same images from gradients, SmoothGrad and values, without the weights."""

import dataclasses

import pytest
import torch
from planted import MNIST, mixture, mnist, network_of, planted, trained
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadInput
from foldline.oracles.explain import smoothgrad_oracle
from foldline.reconstruction.black_box import ends, signal_basis
from foldline.results import Status


@pytest.mark.parametrize("access", ["gradients", "smoothgrad"])
def test_a_trained_network_that_explains_itself_gives_its_training_set_away(access: str) -> None:
    v = trained()
    oracle = fl.gradient_oracle(v.module) if access == "gradients" else \
        smoothgrad_oracle(v.module, samples=10, rng=fl.generator(9))
    span = fl.recover_span(oracle, rng=fl.generator(2))
    found = fl.reconstruct_from_span(span, rng=fl.generator(1), image_shape=MNIST, mean=v.mean)
    score = fl.score_reconstruction(found.samples + v.mean, v.data.x, v.data.x_unseen, image_shape=MNIST)
    assert found.queries == oracle.used <= 20 + 20
    assert score.recovered >= 0.9 and score.unseen_above["0.9"] == 0
    assert found.status.ok and str(found.queries) in found.status.message


def test_the_mean_may_be_unknown() -> None:
    v = trained()
    span = fl.recover_span(fl.gradient_oracle(v.module), rng=fl.generator(2))
    found = fl.reconstruct_from_span(span, rng=fl.generator(1), image_shape=MNIST)
    # Centred rows, compared with centred rows.
    score = fl.score_reconstruction(found.samples, v.data.x - v.mean, v.data.x_unseen - v.mean)
    assert score.recovered >= 0.7
    assert "mean is not known" in " ".join(found.status.notes) and found.certificate.exact == 0


def test_values_alone_are_enough() -> None:
    network, mean, x, unseen = planted(8, h=40, noise=0.0)
    f = fl.value_oracle(network)
    span = fl.recover_span(f, rng=fl.generator(0))
    found = fl.reconstruct_from_span(span, rng=fl.generator(1), image_shape=MNIST, mean=mean)
    score = fl.score_reconstruction(found.samples + mean, x, unseen)
    assert score.recovered >= 0.85
    assert found.queries == f.used <= 1.1 * (8 + 20) * 785


def test_out_of_budget_the_best_so_far_is_unmixed_and_said_to_be() -> None:
    v = trained()
    span = fl.recover_span(fl.gradient_oracle(v.module, budget=12), rng=fl.generator(2))
    found = fl.reconstruct_from_span(span, rng=fl.generator(1), image_shape=MNIST, mean=v.mean)
    assert found.queries <= 12 and "incomplete (budget)" in " ".join(found.status.notes)
    assert not found.certificate.n_is_exact


def test_what_the_box_pins_in_an_incomplete_span_is_not_confirmed() -> None:
    x, _ = mnist(12)
    span = fl.recover_span(fl.gradient_oracle(network_of(mixture(x - x.mean(0)))), rng=fl.generator(0))
    whole, part = (fl.reconstruct_from_span(dataclasses.replace(span, status=status), rng=fl.generator(1),
                                            image_shape=MNIST, mean=x.mean(0))
                   for status in (span.status, Status("folds", ".")))
    assert whole.certificate.exact >= 6 and int(part.evidence["pinned"].sum()) >= 6
    assert part.certificate.exact == 0 == int(part.evidence["exact"].sum())
    assert "incomplete (folds)" in " ".join(part.status.notes) and "none of them" in " ".join(part.status.notes)


def constant(d: int = 784) -> nn.Sequential:
    network = network_of(torch.zeros(5, d + 1, dtype=torch.float64))
    return network


def linear(d: int = 784) -> Tensor:
    return torch.randn(1, d + 1, generator=fl.generator(0), dtype=torch.float64)


def test_spans_that_say_nothing() -> None:
    zero = fl.recover_span(fl.gradient_oracle(constant()), rng=fl.generator(0))
    assert fl.reconstruct_from_span(zero, rng=fl.generator(0)).status.code == "no_gap"
    one = fl.recover_span(fl.gradient_oracle(network_of(linear().expand(4, -1))), rng=fl.generator(0))
    found = fl.reconstruct_from_span(one, rng=fl.generator(0))
    assert found.status.code == "condensed" and len(found.samples) == 0 and found.queries == one.queries
    full = torch.randn(60, 26, generator=fl.generator(1), dtype=torch.float64)
    every = fl.recover_span(fl.gradient_oracle(network_of(full)), rng=fl.generator(0))
    assert fl.reconstruct_from_span(every, rng=fl.generator(0)).status.code == "full_rank"


def test_wrong_shape_and_mean_are_refused() -> None:
    v = trained()
    span = fl.recover_span(fl.gradient_oracle(v.module), rng=fl.generator(2))
    with pytest.raises(BadInput, match="image_shape"):
        fl.reconstruct_from_span(span, rng=fl.generator(0), image_shape=(10, 10))
    with pytest.raises(BadInput, match="mean must be"):
        fl.reconstruct_from_span(span, rng=fl.generator(0), mean=torch.zeros(3))


def test_a_span_from_labels_is_taken_as_it_is() -> None:
    """Its singular values are all one: read as a noise tail they would leave nothing to unmix."""
    basis = torch.linalg.qr(torch.randn(60, 12, generator=fl.generator(0), dtype=torch.float64)).Q.T
    net = torch.nn.Sequential(torch.nn.Linear(60, 12, bias=False), torch.nn.Tanh(), torch.nn.Linear(12, 1)).double()
    span = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(0))
    made = dataclasses.replace(span.provenance, method="recover_span_from_labels")
    labelled = dataclasses.replace(
        span, basis=basis, directions=basis, rank=12, singular_values=torch.ones(12, dtype=torch.float64),
        status=Status("budget", "."), provenance=made)
    found, _ = signal_basis(labelled)
    assert torch.equal(found, basis)


def test_a_mean_without_edges_fixes_no_scale_and_the_box_does() -> None:
    x, unseen = mnist(12)
    net = network_of(mixture(x - 0.1307))
    span = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(0))
    found = fl.reconstruct_from_span(span, rng=fl.generator(1), image_shape=MNIST, mean=0.1307)
    score = fl.score_reconstruction(found.samples + 0.1307, x, unseen, image_shape=MNIST)
    assert score.recovered == 1.0 and score.above["0.99"] == 12 and found.estimated_n == 12
    assert len(found.samples) == 12                                 # the box begins near the mean: ink has one sign


def test_images_that_fit_the_box_in_either_sign_come_in_both() -> None:
    x, unseen = (0.25 + 0.5 * rows for rows in mnist(12))
    net = network_of(mixture(x - 0.5))
    span = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(0))
    found = fl.reconstruct_from_span(span, rng=fl.generator(1), image_shape=MNIST, mean=0.5)
    score = fl.score_reconstruction(found.samples + 0.5, x, unseen, image_shape=MNIST)
    assert score.above["0.9"] >= 10 and len(found.samples) >= 22 and found.estimated_n == 12
    assert "in both" in " ".join(found.status.notes) and found.certificate.exact <= 12


def test_a_spectrum_that_sinks_into_the_noise_counts_nothing() -> None:
    assert ends(torch.tensor([8.0, 5.0, 3.0, 2.0, 1e-5, 9e-6]), 4, 2e5)
    assert not ends(torch.tensor([8.0, 0.9, 0.08, 7e-3, 1e-3, 9e-4]), 4, 7.0)


def test_the_mean_of_other_digits_is_near_enough() -> None:
    x, unseen = mnist(40)
    others = mnist(200, seed=5)[0].mean(0)
    span = fl.recover_span(fl.gradient_oracle(network_of(mixture(x - x.mean(0)))), rng=fl.generator(0))
    found = fl.reconstruct_from_span(span, rng=fl.generator(1), image_shape=MNIST, mean=others)
    score = fl.score_reconstruction(found.samples + others, x, unseen, image_shape=MNIST)
    assert score.above["0.99"] >= 30 and "took its place" in " ".join(found.status.notes)       # 1 before it did
