"""The gap test: gaps that are there, gaps that are not."""

import pytest
import torch

import foldline as fl
from foldline.span.rank import decide_rank


def test_no_gap_where_there_is_none() -> None:
    decision = decide_rank(torch.logspace(0, -6, 60, dtype=torch.float64), floor=1e-15)
    assert not decision.gap_found and decision.rank == 60


def test_a_flat_tail_below_a_gap_is_not_counted() -> None:
    s = torch.cat([torch.logspace(1, -4, 50), 1e-7 * torch.linspace(3, 1, 20)]).double()
    decision = decide_rank(s, floor=1e-15)
    assert decision.rank == 50 and decision.kind == "tail" and decision.p_value < 1e-3


def test_weak_but_real_directions_are_counted() -> None:
    """A step of a hundred between strong and weak directions is no noise floor: the tail is far from negligible."""
    s = torch.cat([torch.linspace(3, 1, 10), torch.linspace(0.03, 0.01, 30)]).double()
    assert decide_rank(s, floor=1e-15).rank == 40


def test_one_value_at_the_floor_is_enough_below_a_cliff() -> None:
    decision = decide_rank(torch.tensor([2.0, 1.0, 0.1, 1e-16], dtype=torch.float64), floor=1e-15)
    assert decision.rank == 3 and decision.kind == "noise" and decision.gap > 1e3


def test_a_floor_that_was_estimated_too_low_adds_no_rank() -> None:
    s = torch.cat([torch.linspace(2, 0.1, 20), torch.tensor([8e-15, 3e-15]), torch.full((20,), 1e-16)]).double()
    assert decide_rank(s, floor=2e-15).rank == 20


def test_nothing_at_all() -> None:
    assert decide_rank(torch.zeros(0, dtype=torch.float64), floor=1e-15).kind == "zero"
    assert decide_rank(torch.zeros(4, dtype=torch.float64), floor=1e-15).rank == 0


@pytest.mark.parametrize("decades", [2, 4, 6, 8])
def test_gaps_are_not_invented(decades: int) -> None:
    """Random matrices with a smoothly falling spectrum: at the stated confidence, next to none show a gap."""
    rng, found = fl.generator(decades), 0
    for _ in range(50):
        columns = torch.logspace(0, -decades, 80, dtype=torch.float64)
        s = torch.linalg.svdvals(torch.randn(60, 80, generator=rng, dtype=torch.float64) * columns)
        found += decide_rank(s, floor=1e-15).gap_found
    assert found == 0
