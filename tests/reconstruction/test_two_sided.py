"""Unmixing both sides: signals are what autograd sends back, blurred images come out sharp, nothing else is touched."""

import pytest
import torch
from planted import MNIST, mnist, planted, trained
from torch import Tensor, nn

import foldline as fl
from foldline.judge.reconstruction import correlation
from foldline.reconstruction import layer, weights
from foldline.reconstruction.features import edge_features
from foldline.reconstruction.two_sided import Signal, signal_of, solve_columns, targets, unmix_both
from foldline.reconstruction.unmix import Whitened, whiten


def stationary(n: int, h: int, outputs: int) -> tuple[Tensor, Tensor, Signal]:
    """(rows, [W, b], signal) with [W, b] = sum_i a_i [x_i, 1] and a_i exactly the signal sent back from x_i.

    Units are turned on by a layer of their own, so that patterns need not agree with the W they make.
    """
    raw = mnist(n)[0]
    x = raw - raw.mean(0)
    rng = fl.generator(5)
    U, gates, g = (torch.randn(*shape, generator=rng, dtype=torch.float64)
                   for shape in ((outputs, h), (h, x.shape[1]), (n, outputs)))

    def signal(rows: Tensor) -> Tensor:
        return U * (rows @ gates.T > 0).double()[:, None]           # (m, k, h)

    columns = (g[:, :, None] * signal(x)).sum(1).T                  # (h, n)
    return x, columns @ torch.cat([x, torch.ones(n, 1, dtype=x.dtype)], 1), signal


def space_of(B: Tensor, n: int) -> Whitened:
    return whiten(edge_features(B[:, :-1] + B[:, -1:] * mnist(n)[0].mean(0), MNIST))


@pytest.mark.parametrize("outputs", [1, 3])
def test_blurred_images_of_a_stationary_layer_come_out_sharp(outputs: int) -> None:
    n = 12
    x, A, signal = stationary(n, 120, outputs)
    B = torch.linalg.svd(A, full_matrices=False)[2][:n]
    truth = torch.cat([x, torch.ones(n, 1, dtype=x.dtype)], 1) @ B.T
    blur = 0.15 * torch.randn(n, n, generator=fl.generator(1), dtype=torch.float64) / n**0.5
    M = truth + blur @ truth
    space = space_of(B, n)
    found = unmix_both(M, A @ B.T, B, space, space.K_inverse, signal)
    assert found is not None
    before = correlation((M / (M @ B[:, -1])[:, None]) @ B[:, :-1], x).diagonal()
    after = correlation(found.M @ B[:, :-1], x).diagonal()
    assert float(after.median()) > 0.99999 > float(before.max())
    assert float(after.min()) > 0.99
    assert torch.allclose(found.M @ B[:, -1], torch.ones(n, dtype=torch.float64))
    M[3] = M[4]                                                     # the same image twice spans too little
    assert unmix_both(M, A @ B.T, B, space, space.K_inverse, signal) is None
    assert unmix_both(truth, A @ B.T, B, space, space.K_inverse, lambda rows: 0 * signal(rows)) is None
    few = unmix_both(truth, (A @ B.T)[:17], B, space, space.K_inverse, lambda rows: signal(rows)[:, :, :17])
    assert few is None                                              # 12 images turned freely would explain 17 units
    many = torch.randn(n, len(A), len(A), generator=fl.generator(3), dtype=torch.float64)
    assert unmix_both(truth, A @ B.T, B, space, space.K_inverse, lambda _: many) is None     # would fit anything


def test_columns_that_fit_nothing_are_not_believed() -> None:
    network, mean, x, _ = planted(12)                               # a mixture that no training made
    A, _ = weights.first_layer(network)
    B = torch.linalg.svd(A, full_matrices=False)[2][:12]
    M = torch.cat([x - mean, torch.ones(12, 1, dtype=x.dtype)], 1) @ B.T
    space = space_of(B, 12)
    assert unmix_both(M, A @ B.T, B, space, space.K_inverse, signal_of(network)) is None


def test_signals_are_those_of_autograd_and_leave_the_network_as_it_was() -> None:
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 9), nn.ReLU(), nn.Dropout(0.5),
                            nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    network[1].eval()
    modes = [m.training for m in network.modules()]
    rows = torch.randn(5, 6, generator=fl.generator(0), dtype=torch.float64)
    s = signal_of(network)(rows)                                    # (5, 2, 9)
    assert [m.training for m in network.modules()] == modes and not network[2]._forward_hooks
    z = network[2](rows).detach().requires_grad_(True)
    out = network[7](network[6](network[5](network[3](z))))
    expected = torch.stack([torch.autograd.grad(out[:, o].sum(), z, retain_graph=True)[0] for o in range(2)], 1)
    assert torch.allclose(s, expected)
    one = fl.Network(torch.eye(3), torch.zeros(3), torch.tensor([[1.0, 2.0, 3.0]]), torch.zeros(1, 3), torch.zeros(1))
    assert signal_of(one)(torch.tensor([[1.0, -1.0, 2.0]], dtype=torch.float64)).tolist() == [[[1.0, 0.0, 3.0]]]


def test_columns_are_solved_as_their_equation_says() -> None:
    rng = fl.generator(2)
    A, t = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((30, 20), (20, 30)))
    w, H = (torch.rand(*shape, generator=rng, dtype=torch.float64) + 0.1 for shape in ((20, 30), (20, 20)))
    G = torch.randn(20, 20, generator=rng, dtype=torch.float64)
    E = solve_columns(A, w, t, G, H)
    assert E is not None and float(E.diagonal().abs().max()) == 0
    for i in (0, 7, 19):                                            # the slow and obvious twin
        others = [k for k in range(20) if k != i]
        X = A[:, others]
        left = X.T @ (w[i][:, None] * X) + torch.diag(H[others, i])
        e = torch.linalg.solve(left, X.T @ (w[i] * (t[i] - A[:, i])) + G[others, i])
        assert torch.allclose(E[others, i], e)


def test_targets_shrug_off_single_units() -> None:
    s = torch.tensor([[[1.0, 2.0, -3.0, 0.0, 4.0]]], dtype=torch.float64)
    t, scale = targets(s, torch.tensor([[2.0, 4.0, -6.0, 5.0, 100.0]], dtype=torch.float64))
    assert t.tolist() == [[2.0, 4.0, -6.0, 0.0, 8.0]] and bool((scale > 0).all())


def test_a_trained_network_without_a_known_box(monkeypatch: pytest.MonkeyPatch) -> None:
    v = trained()

    def median() -> tuple[float, bool]:
        found = fl.reconstruct(v.module, rng=fl.generator(1), image_shape=MNIST, mean=v.mean, box=None,
                               public=False)
        score = fl.score_reconstruction(found.samples + v.mean, v.data.x, v.data.x_unseen, image_shape=MNIST)
        assert ("residual" in found.evidence) == any("bear the images out" in note for note in found.status.notes)
        return float(score.ncc.median()), "residual" in found.evidence

    sharp, said = median()

    monkeypatch.setattr(layer, "both_sides", lambda *_: None)
    monkeypatch.setattr(layer, "by_units", lambda *_: None)
    blurred, unsaid = median()
    assert said and not unsaid and sharp > blurred and sharp > 0.9995


def test_a_network_that_cannot_be_run_is_still_read() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = trained().module[0]

        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("not today")

    found = fl.reconstruct(Odd(), rng=fl.generator(1), image_shape=MNIST, mean=trained().mean, box=None)
    assert found.status.ok and any("not today" in note for note in found.status.notes)
