"""Canonical form and alignment: the same function gives the same form, whatever its units look like."""

import itertools
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import foldline as fl
from foldline.errors import Refused
from foldline.judge.alignment import score_alignment
from foldline.judge.fidelity import score_fidelity
from foldline.networks.canonical import canonical, simplified
from foldline.networks.mlp import MLP


def network(h: int, d: int, k: int, seed: int, *, coarse: bool = False) -> fl.Network:
    """coarse: small whole numbers, so that ties, duplicates, zero rows and cancelling units are common."""
    rng = fl.generator(seed)
    W, b, A, P, q = (torch.randint(-2, 3, s, generator=rng).double() if coarse
                     else torch.randn(s, generator=rng, dtype=torch.float64)
                     for s in ((h, d), (h,), (k, h), (k, d), (k,)))
    return fl.Network(W, b, A, P, q)


def disguised(net: fl.Network, seed: int) -> fl.Network:
    """The same function: units permuted, scaled, turned round, split in two, with dead and constant ones added."""
    rng = fl.generator(seed)
    W, b, A, P, q = (t.clone() for t in (net.W, net.b, net.A, net.P, net.q))
    h, (k, d) = len(W), P.shape
    share = torch.rand(h, generator=rng).double()
    W, b, A = torch.cat([W, W]), torch.cat([b, b]), torch.cat([A * share, A * (1 - share)], 1)
    back = torch.rand(len(W), generator=rng) < 0.5
    P, q = P + A[:, back] @ W[back], q + A[:, back] @ b[back]
    s = torch.where(back, -1.0, 1.0).double()
    c = torch.exp(torch.randn(len(W), generator=rng).double())
    W, b, A = (s * c)[:, None] * W, s * c * b, A / c
    one = torch.randn(1, d, generator=rng).double()
    W = torch.cat([W, one, torch.zeros(1, d).double()])
    b = torch.cat([b, torch.tensor([0.3, 0.7], dtype=torch.float64)])
    A = torch.cat([A, torch.zeros(k, 1).double(), torch.ones(k, 1).double()], 1)
    order = torch.randperm(len(W), generator=rng)
    return fl.Network(W[order], b[order], A[:, order], P, q - 0.7)


@settings(max_examples=60, deadline=None)
@given(h=st.integers(0, 8), d=st.integers(1, 5), k=st.integers(1, 3), seed=st.integers(0, 10**6), coarse=st.booleans())
def test_one_function_one_form(h: int, d: int, k: int, seed: int, coarse: bool) -> None:
    net = network(h, d, k, seed, coarse=coarse)
    other = disguised(net, seed + 1)
    a, b = canonical(net), canonical(other)
    x = torch.randn(50, d, generator=fl.generator(seed), dtype=torch.float64)
    assert torch.allclose(net(x), a(x), atol=1e-9) and torch.allclose(net(x), b(x), atol=1e-9)
    for name in ("W", "b", "A", "P", "q"):
        assert getattr(a, name).shape == getattr(b, name).shape
        assert torch.allclose(getattr(a, name), getattr(b, name), atol=1e-9)
    assert len(a.W) <= h and torch.allclose(a.W.norm(dim=1), torch.ones(len(a.W)).double())
    found = score_alignment(other, net)
    assert found.exact and len(found.pairs) == len(a.W)
    assert torch.allclose(found.network(x), net(x), atol=1e-9)


def test_duplicates_and_cancelling_units_by_hand() -> None:
    # |x - 1| three times, once facing the other way, and a pair that cancels up to an affine term.
    W = torch.tensor([[2.0], [-1.0], [3.0], [-3.0]]).double()
    b = torch.tensor([-2.0, 1.0, 3.0, -3.0]).double()
    A = torch.tensor([[1.0, 4.0, 2.0, -2.0]]).double()
    form = canonical(fl.Network(W, b, A, torch.zeros(1, 1), torch.zeros(1)))
    # 2 relu(x-1) + 4 relu(1-x) = 6 relu(x-1) - 4 (x-1); 6 relu(x+1) - 6 relu(-x-1) = 6 (x+1)
    assert form.W.tolist() == [[1.0]] and form.b.tolist() == [-1.0] and form.A.tolist() == [[6.0]]
    assert form.P.tolist() == [[2.0]] and form.q.tolist() == [10.0]


def brute_force(F: fl.Network, T: fl.Network) -> float:
    """The slow and obvious twin: the smallest total hyperplane distance over all permutations and sides."""
    def rows(n: fl.Network) -> Tensor:
        u = torch.cat([n.W, n.b[:, None]], 1)
        return u / u.norm(dim=1, keepdim=True)
    U, V = rows(F), rows(T)
    return min(sum(min(float((u - V[j]).norm()), float((u + V[j]).norm())) for u, j in zip(U, order, strict=True))
               for order in itertools.permutations(range(len(V))))


@pytest.mark.parametrize("seed", range(6))
def test_the_assignment_is_the_best_of_all_permutations(seed: int) -> None:
    F, T = network(5, 3, 1, seed), network(5, 3, 1, seed + 100)
    found = score_alignment(F, T, tolerance=10.0)
    assert float(found.hyperplane_error.sum()) == pytest.approx(brute_force(F, T), rel=1e-9)


def test_close_units_are_told_apart_below_the_cancellation_of_a_product() -> None:
    W = torch.randn(1, 20, generator=fl.generator(0)).double() + 1e-10 * torch.randn(6, 20, generator=fl.generator(1))
    net = fl.Network(W, torch.zeros(6), torch.arange(1.0, 7.0)[None], torch.zeros(1, 20), torch.zeros(1))
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    other = fl.Network(net.W[order], net.b[order], net.A[:, order], net.P, net.q)
    found = score_alignment(other, net, tolerance=1e-12)
    assert found.exact and order[found.pairs[:, 0]].tolist() == found.pairs[:, 1].tolist()


def test_what_is_missing_spurious_or_off_is_counted() -> None:
    net = network(6, 4, 2, 0)
    fewer = fl.Network(net.W[:4], net.b[:4], net.A[:, :4], net.P, net.q)
    found = score_alignment(fewer, net)
    assert (found.missing, found.spurious, len(found.pairs), found.exact) == (2, 0, 4, False)
    found = score_alignment(net, fewer)
    assert (found.missing, found.spurious) == (0, 2) and torch.allclose(found.network(net.W), net(net.W))
    off = fl.Network(net.W, net.b, net.A * 1.01, net.P, net.q)
    assert not score_alignment(off, net).exact and 0.005 < float(score_alignment(off, net).weight_error.max()) < 0.02
    shifted = fl.Network(net.W, net.b, net.A, net.P, net.q + 0.1)
    assert score_alignment(shifted, net).affine_error > 0.01
    with pytest.raises(Refused):
        score_alignment(net, network(6, 5, 2, 0))
    with pytest.raises(Refused):
        score_alignment(net, nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))


def test_a_thousand_units_in_two_seconds() -> None:
    net = network(1000, 200, 1, 3)
    other = disguised(net, 4)
    start = time.process_time()
    found = score_alignment(other, net)
    assert time.process_time() - start < 2.0
    assert found.exact and len(found.pairs) == 1000
    start = time.process_time()
    assert torch.allclose(canonical(net).W, canonical(other).W, atol=1e-9)
    assert time.process_time() - start < 4.0


def test_mlps_go_to_sequential_and_back() -> None:
    for link, layers in (("identity", []), ("sigmoid", [nn.Sigmoid()]), ("softmax", [nn.Softmax(1)])):
        for act in (nn.ReLU, nn.Tanh, nn.Sigmoid):
            seq = nn.Sequential(nn.Linear(3, 5), act(), nn.Linear(5, 4, bias=False), act(), nn.Linear(4, 2), *layers)
            mlp = MLP.from_sequential(seq)
            x = torch.randn(7, 3, generator=fl.generator(0), dtype=torch.float64)
            assert mlp.link == link and (mlp.in_features, mlp.out_features) == (3, 2)
            assert torch.allclose(mlp(x), seq.double()(x), atol=1e-12)
            assert torch.equal(mlp.to_sequential()(x), mlp(x))
            again = MLP.from_sequential(mlp.to_sequential())
            assert all(torch.equal(a, b) for a, b in zip(again.weights, mlp.weights, strict=True))
    for bad in (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), nn.Sequential(nn.ReLU()), nn.Sequential(),
                nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))):
        with pytest.raises(Refused):
            MLP.from_sequential(bad)
    with pytest.raises(ValueError, match="fit each other"):
        MLP((torch.zeros(2, 3), torch.zeros(1, 3)), (torch.zeros(2), torch.zeros(1)))


def test_fidelity_by_hand() -> None:
    x = torch.tensor([[-1.0], [1.0], [3.0]]).double()
    score = score_fidelity(lambda x: x + 0.5, lambda x: x.clone() if len(x) else x, x)
    assert (score.worst, score.mean, score.relative, score.agreement) == (0.5, 0.5, 0.125, 1.0)
    assert score_fidelity(lambda x: -x, lambda x: x, x).agreement == 0.0
    assert simplified(network(3, 2, 1, 0)).W.shape == (3, 2)
    with pytest.raises(ValueError, match="same inputs"):
        score_fidelity(lambda x: torch.cat([x, x], 1), lambda x: x, x)
