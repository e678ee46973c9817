"""Images and units unmixed together: neighbours differ by little, slopes are right, and units find what images hide."""

import pytest
import torch
from planted import MNIST, trained
from torch import Tensor, nn

import foldline as fl
from foldline.reconstruction import grow as growing
from foldline.reconstruction import layer, peel, starts
from foldline.reconstruction.grow import descend, gradient, grow, loss_of, rescaled
from foldline.reconstruction.units import alive, neighbours_in


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=fl.generator(seed), dtype=torch.float64)


def sparse(rows: int, columns: int, seed: int = 0) -> Tensor:
    """A tenth of the entries are not zero."""
    mask = torch.rand(rows, columns, generator=fl.generator(seed + 1), dtype=torch.float64) < 0.1
    return normal(rows, columns, seed=seed) * mask


def found_of(M: Tensor | None, truth: Tensor) -> int:
    """How many rows of truth are rows of M up to sign and size."""
    assert M is not None
    alike = nn.functional.normalize(M, dim=1) @ nn.functional.normalize(truth, dim=1).T
    return int((alike.abs().amax(0) > 0.99).sum())


def test_neighbours_are_paired_once_and_dead_units_not_at_all() -> None:
    C = torch.tensor([[3.0, 0.0], [2.0, 0.2], [0.0, 1.0], [-0.1, 4.0], [1e-9, 1e-9]], dtype=torch.float64)
    found = neighbours_in(C)
    assert found.units == 4 and len(found.differences) == 6         # four units have three neighbours each
    u = nn.functional.normalize(C[:2], dim=1)
    assert bool(((found.differences - (u[0] - u[1])).norm(dim=1) < 1e-12).any())
    assert found.weight(10) == pytest.approx(4 / 3)
    turn = torch.tensor([[0.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(found.within(turn).differences, found.differences @ turn)
    assert len(neighbours_in(C[:1]).differences) == 0
    condensed = torch.cat([C, 1e-9 * normal(20, 2)])                # most units are dead
    assert alive(condensed).tolist() == [True] * 4 + [False] * 21


def test_units_alone_find_rows_that_no_feature_tells_apart() -> None:
    r = 45                                                          # three sizes of growth and more
    truth = torch.linalg.qr(normal(r, r))[0]                        # images, and features that say nothing about them
    strength = torch.logspace(0, -1, r, dtype=torch.float64)
    D = (sparse(1500, r) * strength) @ truth
    z = normal(r, 2000, seed=3)
    told: list[tuple[float, float]] = []
    M = grow(D, z, 1.0, rng=fl.generator(0), progress=lambda _, at: told.append((at["done"], at["total"])))
    assert found_of(M, truth) >= r - 2
    assert told == sorted(told) and len({total for _, total in told}) == 1 and told[-1][0] <= told[-1][1]
    nothing = (normal(1500, r, seed=5) * strength) @ truth          # dense differences tell nothing either
    assert found_of(grow(nothing, z, 1.0, rng=fl.generator(0)), truth) < 3


@pytest.mark.parametrize("draw", [0, 1, 2])
def test_images_that_differences_never_hold_come_from_their_features(draw: int) -> None:
    r = 30
    truth = torch.linalg.qr(normal(r, r, seed=1))[0]
    D = sparse(800, r, seed=2)
    D[:, 25:] = 1e-9 * normal(800, 5, seed=3)                       # the last five left nothing but rounding
    z = truth.T @ sparse(r, 3000, seed=4)                           # truth z is sparse
    assert found_of(grow(D @ truth, z, 1.0, rng=fl.generator(draw)), truth) >= r - 2


def test_slopes_are_those_of_the_loss() -> None:
    left, right = normal(4, 50).float(), normal(4, 60, seed=1).float()
    L, R = rescaled(left, 12), rescaled(right, 12)
    G = 2.5 * gradient(L.S) * (L.f / L.f.T) - (gradient(R.S) * (R.f / R.f.T)).T
    at = loss_of(L, R, 2.5, 0.0)
    for i, j in ((0, 1), (2, 3), (3, 0)):
        E = torch.zeros(4, 4, dtype=torch.float64)
        E[i, j] = 1e-3
        T = torch.eye(4, dtype=torch.float64) + E
        moved = [growing.Side((side.f * by).float() @ x, side.f)
                 for side, by, x in ((L, T, left), (R, torch.linalg.inv(T).T, right))]
        ahead = loss_of(*moved, 2.5, float(torch.linalg.slogdet(T)[1]))
        assert (ahead - at) / 1e-3 == pytest.approx(float(G[i, j]), abs=0.02)
    for side in (L, R):
        assert torch.allclose((2 * side.S**2 / (1 + side.S**2)).mean(1), torch.ones(4), atol=1e-3)


def test_descent_never_ends_above_its_start() -> None:
    left, right = normal(8, 100).float(), normal(8, 100, seed=1).float()

    def loss(C: Tensor) -> float:
        L = rescaled(C.float() @ left, 30)
        return loss_of(L, rescaled(torch.linalg.inv(C).T.float() @ right, 30), 0.5, float(torch.linalg.slogdet(C)[1]))

    losses = [loss(descend(left, right, 0.5, rounds)[0]) for rounds in (0, 1, 5, 50)]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1] + 0.1


def test_it_grows_by_a_tenth_and_ends_with_all() -> None:
    assert growing.sizes(5) == [5] and growing.sizes(20) == [20] and growing.sizes(27) == [20, 23, 26, 27]
    assert growing.sizes(500)[-3:] == [433, 476, 500]


def test_differences_that_do_not_reach_every_direction_are_refused() -> None:
    assert grow(sparse(10, 25), normal(25, 400), 1.0, rng=fl.generator(0)) is None
    D = sparse(100, 25)
    D[:, 3] = 0
    assert grow(D, normal(25, 400), 1.0, rng=fl.generator(0)) is None
    assert grow(D[:0], normal(25, 400), 1.0, rng=fl.generator(0)) is None


def test_a_large_span_is_grown_and_the_network_bears_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    v = trained(40)
    monkeypatch.setattr(layer, "LARGE", 10)
    monkeypatch.setattr(peel, "LARGE", 10)

    def unmix(*_: object, **__: object) -> None:
        raise AssertionError("features alone were asked")

    with monkeypatch.context() as only:
        only.setattr(peel, "unmix", unmix)
        found = fl.reconstruct(v.module, rng=fl.generator(0), image_shape=MNIST, mean=v.mean, box=None)
    score = fl.score_reconstruction(found.samples + v.mean, v.data.x, v.data.x_unseen, image_shape=MNIST)
    assert score.recovered > 0.7 and "residual" in found.evidence and "agreement" not in found.evidence

    def wrong(D: Tensor, *_: object, **__: object) -> Tensor:
        return torch.linalg.qr(normal(D.shape[1], D.shape[1]))[0]

    monkeypatch.setattr(starts, "grow", wrong)                      # a wrong unmixing is not borne out: features again
    found = fl.reconstruct(v.module, rng=fl.generator(0), image_shape=MNIST, mean=v.mean, box=None)
    assert "agreement" in found.evidence


def test_rows_without_any_structure_are_read_from_the_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaussian rows look the same however they are mixed: no feature can tell them apart, and no image is needed."""
    rng = fl.generator(3)                                           # three of six such networks are borne out
    x = torch.randn(30, 60, generator=rng)
    y = (x @ torch.randn(60, generator=rng) > 0).float()
    net = nn.Sequential(nn.Linear(60, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 1))
    with torch.no_grad():                                           # PyTorch's default start, from a stream of its own
        for p in net.parameters():
            p.uniform_(-1, 1, generator=rng).mul_(60 ** -0.5 if p.shape[-1] == 60 else 300 ** -0.5)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-3)
    for _ in range(3000):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y).backward()
        optimiser.step()

    def seen() -> int:
        found = fl.reconstruct(net, rng=fl.generator(0), mean=0.0, box=None)
        alike = nn.functional.normalize(found.samples, dim=1) @ nn.functional.normalize(x.double(), dim=1).T
        return int((alike.amax(0) > 0.8).sum())                     # of 30 random directions none comes near 0.6

    assert seen() >= 15
    monkeypatch.setattr(layer, "by_units", lambda *_: None)
    assert seen() <= 2
