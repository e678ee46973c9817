"""The mean of several students, written out as one network."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foldline as fl
from foldline.errors import BadInput
from foldline.imitation.committee import MOST_QUERIES, gather, mean_network, members_for, why_not
from foldline.imitation.losses import Pupil
from foldline.networks.presets import build
from foldline.randomness import Streams

STUDENTS: dict[str, dict[str, Any]] = {
    "two-layer": {"input_shape": (6,), "outputs": 3, "width": 5},
    "mlp": {"input_shape": (6,), "outputs": 2, "widths": (5, 4, 3), "biases": "first"},
    "conv": {"input_shape": (8, 8, 2), "outputs": 3, "width": 2},
}


def plain(seed: int) -> nn.Sequential:
    """A stranger's student: convolutions with a stride, an activation that is no ReLU, an average pool."""
    net = nn.Sequential(nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 3, 3, stride=2, padding=1, bias=False), nn.Tanh(),
                        nn.AvgPool2d(3), nn.Flatten(), nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.randn(p.shape, generator=fl.generator(100 * seed + i)))
    return net


@pytest.mark.parametrize("name", list(STUDENTS))
def test_the_merged_network_answers_the_mean_and_survives_a_file(name: str, tmp_path: Path) -> None:
    members = [build(name, rng=fl.generator(i), dtype=torch.float64, **STUDENTS[name]) for i in range(3)]
    x = torch.randn(7, members[0].input_shape[0] if name != "conv" else 128, generator=fl.generator(9)).double()
    merged = mean_network(members)
    expected = torch.stack([m(x) for m in members]).mean(0)
    assert torch.allclose(merged(x), expected, atol=1e-12)
    fl.save(merged, tmp_path / "mean.safetensors")
    again = fl.load(tmp_path / "mean.safetensors")
    # Bit for bit in the weights; a product of the same matrices elsewhere in memory may round otherwise.
    kept, written = again.state_dict(), merged.state_dict()
    assert kept.keys() == written.keys() and all(torch.equal(kept[k], written[k]) for k in kept)
    assert torch.allclose(again(x), merged(x), rtol=1e-13, atol=1e-15)


def test_layers_in_a_row_of_any_kind_are_merged() -> None:
    members = [nn.Sequential(*list(plain(i))[1:]) for i in range(4)]
    x = torch.randn(5, 1, 6, 6, generator=fl.generator(0))
    assert why_not(members[0]) is None
    assert torch.allclose(mean_network(members)(x), torch.stack([m(x) for m in members]).mean(0), atol=1e-6)


def test_what_cannot_be_merged_is_refused_before_a_row_is_asked() -> None:
    student = build("resnet18", input_shape=(8, 8, 1), outputs=2, width=1, rng=fl.generator(0))
    oracle = fl.gradient_oracle(build("two-layer", input_shape=(64,), outputs=2, width=4, rng=fl.generator(1)))
    with pytest.raises(BadInput, match="committee=3 cannot be"):
        fl.imitate(oracle, student, torch.rand(4, 64), rng=fl.generator(0), committee=3)
    assert oracle.used == 0
    assert members_for(student, 10, None) == 1                       # and by default it is not tried
    for module in (plain(0), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
                   nn.Sequential(nn.Linear(3, 1))):
        assert why_not(module) is not None


def test_few_explained_queries_get_a_committee_by_default_and_others_do_not() -> None:
    student = build("two-layer", rng=fl.generator(0), **STUDENTS["two-layer"])
    assert members_for(student, MOST_QUERIES, None) == 3
    assert members_for(student, MOST_QUERIES + 1, None) == members_for(student, None, None) == 1
    assert members_for(student, 10, 1) == 1 and members_for(student, None, 5) == 5


@pytest.mark.parametrize(("losses", "averaged"), [((1.0, math.inf, 3.0), 2), ((math.inf,) * 3, 0)])
def test_a_member_that_blew_up_is_left_out(losses: tuple[float, ...], averaged: int) -> None:
    student = build("two-layer", rng=fl.generator(0), **STUDENTS["two-layer"])
    start, ends, seen = copy.deepcopy(student), list(losses), []

    def train(pupil: Pupil, name: str) -> float:
        seen.append(pupil.module)
        return ends.pop(0)

    network, loss, used = gather(Pupil(student, "logits", "logits", None), train, Streams(fl.generator(1)), 3)
    x = torch.rand(4, 6)
    assert len(used) == averaged and loss == (2.0 if averaged == 2 else math.inf)
    expected = (seen[0](x) + seen[2](x)) / 2 if averaged == 2 else start(x)
    assert torch.allclose(network(x), expected, atol=1e-6)
