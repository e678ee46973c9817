"""What few answers taught, carried to unlabelled pictures: when it helps, and when it keeps its hands off."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import foldline as fl
from foldline.errors import BadInput
from foldline.imitation import unlabelled
from foldline.imitation.match import Imitation
from foldline.imitation.queries import spread_rows
from foldline.imitation.unlabelled import moved
from foldline.networks.presets import build
from foldline.victims.datasets import load_dataset

MNIST = (28, 28)


@cache
def target() -> tuple[nn.Module, Tensor]:
    """(a small network that tells digits apart, 2,000 digits that it was not trained on)"""
    found = load_dataset("mnist5k")
    order = torch.randperm(len(found.x), generator=fl.generator(0))
    x, y = found.x[order].float(), found.y[order]
    net = student(0)
    optimiser, rng = torch.optim.Adam(net.parameters(), 3e-3), fl.generator(1)
    for _ in range(1000):
        rows = torch.randint(2000, (64,), generator=rng)
        optimiser.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
    return net.eval(), x[2000:4000]


def student(seed: int = 2) -> nn.Module:
    return build("two-layer", input_shape=MNIST, outputs=10, rng=fl.generator(seed), width=100)


def agreement(result: Imitation) -> float:
    net, x = target()
    assert result.network is not None
    with torch.no_grad():
        return float((result.network(x).argmax(1) == net(x).argmax(1)).float().mean())


def said(result: Imitation) -> str:
    return " ".join(result.status.notes)


def test_few_explained_queries_teach_more_with_the_pile_they_come_from() -> None:
    net, x = target()
    asked = spread_rows(x, 5, rng=fl.generator(2))
    alone, carried = (fl.imitate(net, student(), asked, rng=fl.generator(0), unlabelled=pile) for pile in (None, x))
    assert carried.queries == alone.queries == 5                    # the pile costs nothing
    assert agreement(carried) > agreement(alone) + 0.01
    assert "unlabelled pictures of 2000" in said(carried) and "unlabelled" not in said(alone)
    assert "mean of 3" in said(alone) and "mean of 3" not in said(carried)
    assert carried.provenance.parameters["unlabelled"] == 2000
    assert 0 < carried.certificate.training_loss < 1                # its own, not the committee's
    assert carried.certificate.training_loss != alone.certificate.training_loss and carried.seconds > alone.seconds
    # The student is of the size that was given, not the mean of three.
    assert carried.network is not None and alone.network is not None
    assert [p.shape for p in carried.network.parameters()] == [p.shape for p in student().parameters()]
    assert sum(p.numel() for p in alone.network.parameters()) > sum(p.numel() for p in carried.network.parameters())
    with torch.no_grad():
        taught, true = (m(x) - m(x).mean(1, keepdim=True) for m in (carried.network, net))
    assert 0.4 < float(taught.norm() / true.norm()) < 1.5           # one-hot labels alone would let logits grow


def test_the_same_seed_carries_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = target()
    monkeypatch.setattr(unlabelled, "STEPS", 40)
    monkeypatch.setattr(unlabelled, "TOO_FAR", 1e9)
    one, two, other = (fl.imitate(net, student(), x[:5], rng=fl.generator(seed), steps=150, unlabelled=x).network
                       for seed in (5, 5, 6))
    assert one is not None and two is not None and other is not None
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_what_the_answers_have_fixed_already_is_left_alone() -> None:
    net, x = target()
    asked = spread_rows(x, 8, rng=fl.generator(0))
    alone, kept = (fl.imitate(net, student(), asked, rng=fl.generator(0), unlabelled=pile) for pile in (None, x))
    assert "changed more than the answers left open" in said(kept)
    assert alone.network is not None and kept.network is not None
    assert all(torch.equal(a, b) for a, b in zip(alone.network.parameters(), kept.network.parameters(), strict=True))


def test_a_student_that_is_unsure_does_not_teach_itself() -> None:
    net, x = target()
    found = fl.imitate(net, student(), x[:3], rng=fl.generator(0), steps=5, unlabelled=x)
    assert "is sure of" in said(found) and "not learnt from" in said(found)


def test_many_answers_values_alone_and_tables_go_without() -> None:
    net, x = target()
    for explain, n in (("gradient", 40), (None, 12)):
        found = fl.imitate(net, student(), x[:n], explain, rng=fl.generator(0), steps=5, unlabelled=x)
        assert "unlabelled" not in said(found)
    one = fl.imitate(net, student(), x[:6], rng=fl.generator(0), steps=5, committee=1, unlabelled=x)
    assert "unlabelled" not in said(one)                            # nobody to differ from
    few = fl.imitate(net, student(), x[:6], rng=fl.generator(0), steps=5, unlabelled=x[:50])
    assert "too few" in said(few)
    small = build("two-layer", input_shape=(8, 8), outputs=10, width=40, rng=fl.generator(0))
    tiny = fl.imitate(small, small, x[:6, :64], rng=fl.generator(0), steps=5, unlabelled=x[:, :64])
    assert "unlabelled" not in said(tiny)                           # of 8 pixels one is no small move
    switch = build("two-layer", input_shape=MNIST, outputs=1, width=40, rng=fl.generator(0))
    single = fl.imitate(switch, switch, x[:6], rng=fl.generator(0), steps=5, unlabelled=x)
    assert "unlabelled" not in said(single)                         # one output has no classes to be sure of
    table = nn.Sequential(nn.Linear(7, 30), nn.ReLU(), nn.Linear(30, 3))
    rows = torch.randn(300, 7, generator=fl.generator(0))
    found = fl.imitate(table, table, rows[:5], rng=fl.generator(0), steps=5, unlabelled=rows)
    assert found.status.ok and "carried" not in said(found)


def test_pictures_of_another_size_are_refused() -> None:
    net, x = target()
    for pile, says in ((torch.rand(300, 9), "rows of 9 numbers"), (torch.zeros(0, 784), "unlabelled"),
                       (torch.ones(300, 784, dtype=torch.int64), "floating point")):
        with pytest.raises(BadInput, match=says):
            fl.imitate(net, student(), x[:3], rng=fl.generator(0), unlabelled=pile)


def test_pictures_move_whole_and_by_a_pixel() -> None:
    x = torch.arange(24.0).reshape(2, 12)
    seen = {tuple(moved(x, (3, 4), fl.generator(i))[0].tolist()) for i in range(60)}
    assert len(seen) == 9 and all(sorted(row) == sorted(x[0].tolist()) for row in seen)
