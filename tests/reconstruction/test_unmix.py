"""Unmixing on sources that are known, and against a slow optimiser of the same likelihood."""

import pytest
import torch
from planted import MNIST, mnist
from torch import Tensor

import foldline as fl
from foldline.images import guessed_shape
from foldline.reconstruction.features import edge_features, features_for, plain_features
from foldline.reconstruction.unmix import anneal, fast_ica, independence, likelihood, loss_of, orthogonal, whiten


def sources(q: int = 6, N: int = 4000, seed: int = 0) -> Tensor:
    """Sparse and correlated a little, as the edges of real images are."""
    rng = fl.generator(seed)
    s = torch.randn(q, N, generator=rng, dtype=torch.float64) ** 3
    return s + 0.1 * s.roll(1, 0)


def mixed(q: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    M = torch.randn(q, q, generator=fl.generator(seed + 100), dtype=torch.float64)
    return M @ sources(q, seed=seed), M


def purity(C: Tensor) -> Tensor:
    """How much of each row is its largest entry: 1 for a permutation."""
    return C.abs().amax(1) / C.norm(dim=1)


def test_whitening_has_unit_second_moment_and_an_inverse() -> None:
    x, _ = mixed()
    doubled = torch.cat([x, x[:1]])                                 # one direction twice: dropped
    w = whiten(doubled)
    assert w.z.shape == (6, 4000)
    assert torch.allclose(w.z @ w.z.T / 4000, torch.eye(6), atol=1e-5)
    # Columns keep their direction, and differ far less in length than without the scaling.
    assert float(torch.cosine_similarity(w.z.double(), w.K @ doubled, dim=0).min()) > 1 - 1e-6
    length, raw = w.z.norm(dim=0), x.norm(dim=0)
    assert float(length.std() / length.mean()) < 0.3 * float(raw.std() / raw.mean())
    assert torch.allclose(w.K @ w.K_inverse, torch.eye(6, dtype=torch.float64), atol=1e-8)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sparse_sources_come_back_up_to_order_and_scale(seed: int) -> None:
    x, M = mixed(seed=seed)
    w = whiten(x)
    C = fast_ica(w.z, rng=fl.generator(seed))
    assert torch.allclose(C @ C.T, torch.eye(6), atol=1e-4)
    better = likelihood(C, w.z, rounds=200)
    # The likelihood drops the constraint that the sources be uncorrelated, and these are correlated.
    assert float(purity(better.double() @ w.K @ M).min()) > 0.99
    assert float(purity(better.double() @ w.K @ M).mean()) >= float(purity(C.double() @ w.K @ M).mean()) - 1e-3


@pytest.mark.parametrize("seed", [0, 1])
def test_the_likelihood_is_where_a_slow_optimiser_ends(seed: int) -> None:
    x, _ = mixed(seed=seed)
    w = whiten(x)
    start = fast_ica(w.z, rng=fl.generator(seed))
    quick, _ = loss_of(likelihood(start, w.z, rounds=300), w.z, 1.0)
    slow = start.double().clone().requires_grad_(True)
    z = w.z.double()
    optimiser = torch.optim.LBFGS([slow], lr=0.5, max_iter=500, tolerance_change=1e-10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = torch.log1p((slow @ z).square()).mean(1).sum() - torch.linalg.slogdet(slow)[1]
        loss.backward()
        return loss

    optimiser.step(closure)
    assert abs(quick - float(closure().detach())) < 5e-3


def test_columns_that_one_image_alone_carries_are_not_drowned() -> None:
    """Rare and short columns point to single sources; with the common ones at their natural size they are lost."""
    q, rng = 30, fl.generator(0)
    common = torch.randn(q, 900, generator=rng, dtype=torch.float64)                    # Gaussian: says nothing
    rare = torch.eye(q, dtype=torch.float64).repeat(1, 20) * 0.01
    M = torch.randn(q, q, generator=rng, dtype=torch.float64)
    w = whiten(M @ torch.cat([common, rare], 1))
    C = anneal(fast_ica(w.z, rng=rng), w.z)
    assert float(purity(C.double() @ w.K @ M).median()) > 0.99


def test_the_loss_never_rises() -> None:
    x, _ = mixed(seed=5)
    z = whiten(x).z
    C = orthogonal(torch.randn(6, 6, generator=fl.generator(0)))
    losses = [loss_of(likelihood(C, z, rounds=k), z, 1.0)[0] for k in (0, 1, 3, 10, 50)]
    assert losses == sorted(losses, reverse=True)


def test_fixed_rows_keep_their_direction() -> None:
    x, _ = mixed(seed=1)
    z = whiten(x).z
    C = torch.randn(6, 6, generator=fl.generator(3))
    fixed = torch.tensor([True, False, True, False, False, False])
    moved = likelihood(C, z, fixed=fixed, rounds=50)
    cosine = (moved * C).sum(1) / (moved.norm(dim=1) * C.norm(dim=1))
    assert torch.allclose(cosine[fixed], torch.ones(2), atol=1e-5)
    assert float(cosine[~fixed].min()) < 0.999


def test_independence_ranks_images_above_their_mixtures() -> None:
    x, _ = mnist(12)
    w = whiten(edge_features(x, MNIST))
    C = w.K_inverse                                                 # rows of K_inverse z are the images' own features
    mix = torch.randn(12, 12, generator=fl.generator(0), dtype=torch.float64) @ C
    # A random mixture may be one image for the most part, so not every one of them must come last.
    single, mixture = independence(C, w.z), independence(mix, w.z)
    assert float(single.min()) > float(mixture.quantile(0.9)) and float(single.median()) > float(mixture.max())


def test_features_are_linear_up_to_a_common_scale_and_know_their_shapes() -> None:
    x, _ = mnist(12)
    f = features_for(MNIST)
    both = f(torch.cat([x, x[:1] + 2 * x[1:2]]))
    assert torch.allclose(both[-1], both[0] + 2 * both[1], atol=1e-9)
    assert both.shape[1] > 4 * 784
    colour = torch.rand(5, 192, generator=fl.generator(0), dtype=torch.float64)
    assert edge_features(colour, (8, 8, 3)).shape[1] > edge_features(colour[:, :64], (8, 8)).shape[1] * 3
    assert guessed_shape(784) == (28, 28) and guessed_shape(3072) == (32, 32, 3) and guessed_shape(30) is None
    assert plain_features(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).shape == (2, 1)       # an empty column says nothing
