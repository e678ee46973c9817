"""fl.reconstruct: planted spans come back as images, symmetries change nothing, and bad input is named."""

from typing import Any

import pytest
import torch
from planted import MNIST, mixture, mnist, network_of, planted, trained
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadInput, Refused
from foldline.reconstruction.evidence import untied
from foldline.reconstruction.weights import first_layer
from foldline.victims.datasets import load_dataset


def nccs(samples: Tensor, rows: Tensor) -> Tensor:
    from foldline.judge.reconstruction import matched
    return matched(samples, rows)[0]


@pytest.mark.parametrize(("n", "noise"), [(10, 0.0), (20, 1e-6), (25, 1e-3)])
def test_planted_images_come_back(n: int, noise: float) -> None:
    network, mean, x, unseen = planted(n, noise=noise)
    found = fl.reconstruct(network, rng=fl.generator(0), image_shape=MNIST, mean=mean)
    score = fl.score_reconstruction(found.samples + mean, x, unseen, image_shape=MNIST)
    assert found.status.ok and found.estimated_n == n == found.certificate.rank
    assert score.recovered == 1.0
    assert score.above["0.99"] >= n - 2
    assert found.queries == 0 and found.provenance.method == "reconstruct"
    assert float((found.samples + mean - x[:1]).abs().mean()) < 1       # rows of pixels, not only directions
    assert found.weights.tolist() == sorted(found.weights.tolist(), reverse=True)
    assert all(len(v) == len(found.samples) for v in found.evidence.values())
    exact = found.evidence["exact"] > 0
    best = (found.samples + mean)[exact]
    assert float(nccs(best, x).topk(int(exact.sum())).values.min()) > 0.99      # what it calls exact is


def test_a_trained_network_gives_its_training_set_away() -> None:
    v = trained()
    found = fl.reconstruct(v.module, rng=fl.generator(1), image_shape=MNIST, mean=v.mean)
    score = fl.score_reconstruction(found.samples + v.mean, v.data.x, v.data.x_unseen, image_shape=MNIST)
    assert score.recovered == 1.0 and score.above["0.99"] >= 18 and score.unseen_above["0.9"] == 0
    assert found.estimated_n == 20 and found.certificate.n_is_exact
    # Training points leave units inactive that never learned from them; other digits do not fit the column space.
    assert float(found.evidence["inactive"].median()) < 0.25


@pytest.mark.parametrize("seed", [0, 1])
def test_order_and_scale_of_the_units_do_not_matter(seed: int) -> None:
    network, mean, x, _ = planted(12, noise=0.0)
    A, _ = first_layer(network)
    rng = fl.generator(seed)
    scale = 0.5 + 2 * torch.rand(len(A), 1, generator=rng, dtype=torch.float64)
    other = network_of((scale * A)[torch.randperm(len(A), generator=rng)])
    one, two = (fl.reconstruct(f, rng=fl.generator(3), image_shape=MNIST, mean=mean) for f in (network, other))
    assert float(nccs(one.samples + mean, two.samples + mean).min()) > 0.999
    assert float(nccs(two.samples + mean, x).min()) > 0.999


def test_the_same_seed_gives_the_same_rows() -> None:
    network, mean, _, _ = planted(12)
    one, two = (fl.reconstruct(network, rng=fl.generator(5), image_shape=MNIST, mean=mean) for _ in range(2))
    assert torch.equal(one.samples, two.samples) and torch.equal(one.weights, two.weights)


def test_fl_networks_and_raw_pixels_without_a_mean() -> None:
    x, _ = mnist(12)
    A = mixture(x, noise=1e-7)
    h = len(A)
    network = fl.Network(A[:, :-1], A[:, -1], torch.ones(1, h, dtype=torch.float64),
                         torch.zeros(1, 784, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    found = fl.reconstruct(network, rng=fl.generator(0))
    assert float(nccs(found.samples, x).min()) > 0.99
    said = " ".join(found.status.notes)
    assert "(28, 28)" in said and "raw pixels" in said                  # both assumptions are printed


def test_without_bias_the_shape_comes_back_but_not_the_scale() -> None:
    x, unseen = mnist(12)
    found = fl.reconstruct(network_of(mixture(x), bias=False), rng=fl.generator(0), image_shape=MNIST)
    assert found.status.ok and found.estimated_n == 12
    assert fl.score_reconstruction(found.samples, x, unseen).recovered >= 0.9


def test_an_unknown_box_is_not_snapped_to() -> None:
    network, mean, x, unseen = planted(12)
    found = fl.reconstruct(network, rng=fl.generator(0), image_shape=MNIST, mean=mean, box=None)
    assert found.certificate.exact == 0
    assert fl.score_reconstruction(found.samples + mean, x, unseen).recovered >= 0.8
    stretched = network_of(mixture(255 * (x - mean), noise=1e-7))       # another range, told
    found = fl.reconstruct(stretched, rng=fl.generator(0), image_shape=MNIST, mean=255 * mean, box=(0.0, 255.0))
    assert float(nccs(found.samples + 255 * mean, x).min()) > 0.99
    assert 200 < float((found.samples + 255 * mean).amax()) < 300


def test_another_contrast_is_plugged_in() -> None:
    """Tabular rows, sparse in themselves: the default for rows that are no image, or any function of the caller's."""
    rng = fl.generator(0)
    rows = torch.randn(6, 2000, generator=rng, dtype=torch.float64) ** 3
    asked = []

    def features(basis: Tensor) -> Tensor:
        asked.append(basis.shape)
        return 2 * basis                                                # linear in each row

    network = network_of(mixture(rows, 60))
    for given in (features, None):
        found = fl.reconstruct(network, rng=fl.generator(1), box=None, features=given)
        assert float(nccs(found.samples, rows).min()) > 0.95
    assert asked and asked[0][1] == 2000
    assert "columns of a table" in " ".join(found.status.notes)


def test_batch_normalisation_before_the_first_layer_is_undone() -> None:
    x, _ = mnist(12)
    norm = nn.BatchNorm1d(784, dtype=torch.float64).eval()
    norm.running_mean.fill_(0.2)                                        # type: ignore[union-attr]
    norm.running_var.fill_(4.0)                                         # type: ignore[union-attr]
    network = nn.Sequential(norm, *network_of(mixture(x, noise=1e-8)))
    found = fl.reconstruct(network.eval(), rng=fl.generator(0), image_shape=MNIST)
    with torch.no_grad():
        assert float(nccs(norm(found.samples), x).min()) > 0.99


def untrained(**options: Any) -> nn.Sequential:
    network = nn.Sequential(nn.Linear(784, 200, dtype=torch.float64, **options), nn.ReLU(), nn.Linear(200, 1).double())
    with torch.no_grad():
        for p in network.parameters():
            p.copy_((torch.rand(p.shape, generator=fl.generator(7), dtype=torch.float64) - 0.5) / 14)
    return network


def rank_one() -> nn.Sequential:
    x, _ = mnist(12)
    return network_of(mixture(x[:1]))


def crowded() -> nn.Sequential:
    x, _ = mnist(60)
    return network_of(mixture(x, 40))


def more_rows_than_inputs() -> nn.Sequential:
    rows = load_dataset("digits").x[:100]                               # 64 inputs, some of them always zero
    return network_of(mixture(rows, 200))


def zero() -> nn.Sequential:
    return network_of(torch.zeros(50, 785, dtype=torch.float64))


@pytest.mark.parametrize(("network", "code", "says"), [
    (untrained, "no_gap", "random start"), (zero, "no_gap", "zero"), (rank_one, "condensed", "1 directions"),
    (more_rows_than_inputs, "full_rank", "full rank")])
def test_nothing_leaks_and_it_says_why(network: Any, code: str, says: str) -> None:
    found = fl.reconstruct(network(), rng=fl.generator(0))
    assert found.status.code == code and says in found.status.message
    assert len(found.samples) == len(found.weights) == 0 and found.estimated_n == 0
    assert found.to_dict()["status"]["code"] == code


def test_of_more_images_than_units_those_that_lead_are_shown_and_nothing_is_confirmed() -> None:
    found = fl.reconstruct(crowded(), rng=fl.generator(0), image_shape=MNIST)
    assert found.status.code == "full_rank" and "full rank" in found.status.message
    assert any("most of what is shown are mixtures" in note for note in found.status.notes)
    assert found.certificate.exact == 0 and not found.evidence["exact"].any() and not found.certificate.n_is_exact
    x, unseen = mnist(60)
    leading = torch.randn(40, 60, generator=fl.generator(0), dtype=torch.float64)
    leading[:, 20:] *= 0.02                                         # 20 images lead in 40 units, 40 hardly enter
    A = leading @ torch.cat([x, torch.ones(60, 1, dtype=torch.float64)], 1)
    led = fl.reconstruct(network_of(A), rng=fl.generator(0), image_shape=MNIST)
    score = fl.score_reconstruction(led.samples, x, unseen, image_shape=MNIST)
    assert led.status.code == "full_rank" and score.above["0.9"] >= 15 and score.unseen_above["0.9"] <= 1


def test_a_spectrum_without_a_gap_claims_no_count() -> None:
    """Noise as training rows, more of them than inputs: it looks like signal and noise, but without a gap."""
    rows = torch.rand(100, 64, generator=fl.generator(0), dtype=torch.float64)
    found = fl.reconstruct(network_of(mixture(rows, 200)), rng=fl.generator(0))
    assert not found.certificate.n_is_exact and found.certificate.exact == 0
    assert not found.status.ok or "without a gap" in " ".join(found.status.notes)


def broken() -> nn.Sequential:
    network = untrained()
    with torch.no_grad():
        network[0].weight[3, 5] = float("nan")
    return network


@pytest.mark.parametrize(("network", "options", "error", "says"), [
    (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(2704, 1)), {}, Refused, "convolution"),
    (lambda: nn.Sequential(nn.LayerNorm(784), nn.Linear(784, 5)), {}, Refused, "LayerNorm"),
    (lambda: nn.Sequential(nn.BatchNorm1d(784, track_running_stats=False), nn.Linear(784, 5)), {}, Refused,
     "running statistics"),
    (lambda: nn.Sequential(nn.ReLU()), {}, Refused, "no linear layer"),
    (broken, {}, BadInput, "NaN"),
    (untrained, {"image_shape": (28, 27)}, BadInput, "image_shape"),
    (untrained, {"image_shape": (784,)}, BadInput, "image_shape"),
    (untrained, {"mean": torch.zeros(700)}, BadInput, "mean must be"),
    (untrained, {"mean": float("nan")}, BadInput, "mean contains NaN"),
    (untrained, {"lr": 3.0}, BadInput, "no settings"),
])
def test_what_cannot_be_read_is_refused_in_a_sentence(network: Any, options: dict[str, Any], error: type[Exception],
                                                      says: str) -> None:
    with pytest.raises(error, match=says):
        fl.reconstruct(network(), rng=fl.generator(0), **options)


def test_a_component_that_hardly_carries_the_constant_gets_its_sign_from_the_units() -> None:
    rows = torch.randn(6, 40, generator=fl.generator(0), dtype=torch.float64)
    loose = rows.clone()
    loose[1], loose[2] = -30 * rows[1], 30 * rows[2]
    inactive = torch.tensor([0.1, 0.9, 0.1, 0.8, 0.1, 0.1], dtype=torch.float64)
    right, share = untied(loose, inactive, torch.zeros(6, dtype=torch.bool))
    assert bool((torch.cosine_similarity(right, rows) > 0.999).all())
    assert float(right.std(1).max() / right.std(1).min()) < 2
    assert float(share[1]) == pytest.approx(0.1) and float(share[3]) == 0.8         # of usual size: left alone
    exact = torch.zeros(6, dtype=torch.bool)
    exact[1] = True
    assert torch.equal(untied(loose, inactive, exact)[0][1], loose[1])


@pytest.mark.parametrize("mean", ["own", "of other data", "constant", "zero"])
def test_a_first_layer_without_biases_spans_what_explanations_span(mean: str) -> None:
    x, unseen = mnist(12)
    row = {"own": x.mean(0), "of other data": unseen.mean(0), "constant": torch.full((784,), 0.1307).double(),
           "zero": torch.zeros(784).double()}[mean]
    found = fl.reconstruct(network_of(mixture(x - row, noise=1e-6), bias=False), rng=fl.generator(1),
                           image_shape=MNIST, mean=row)
    score = fl.score_reconstruction(found.samples + row, x, unseen, image_shape=MNIST)
    assert score.above["0.99"] == 12 and found.status.ok
