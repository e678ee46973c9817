"""Folds on a line: all of them, at their places, in few rows, with noise and with hard neighbours."""

import math

import pytest
import torch

from foldline.extract.lines import folds_from_values

D = torch.float64


def hinges(t0: list[float], jump: list[float]):  # type: ignore[no-untyped-def]
    at, a = torch.tensor(t0, dtype=D), torch.tensor(jump, dtype=D)
    return lambda t: (torch.relu(t[:, None] - at) @ a)[:, None]


def quiet(t: float) -> float:
    return 1e-13 * (1 + abs(t))


@pytest.mark.parametrize(("t0", "jump"), [
    ([0.3], [1.0]),
    ([-0.5, 0.25], [1.0, 2.0]),
    ([-0.5, 0.25], [1.0, -0.7]),                # opposite signs: t* lies outside both
    ([0.1, 0.11, 0.6], [1.0, -1.5, 0.3]),
    ([-2.0, -1.999, 5.0, 700.0], [1.0, 1.0, -3.0, 0.5]),
])
def test_folds_are_where_they_are(t0: list[float], jump: list[float]) -> None:
    line = folds_from_values(hinges(t0, jump), (-1e4, 1e4), noise=quiet, scale=1.0)
    assert line.complete
    assert torch.allclose(line.t, torch.tensor(t0, dtype=D), rtol=1e-9, atol=1e-9)
    assert torch.allclose(line.jump[:, 0], torch.tensor(jump, dtype=D), atol=1e-6)


def test_many_folds_cost_five_rows_each_and_two_outputs_fewer() -> None:
    rng = torch.Generator().manual_seed(0)
    at = torch.randn(60, generator=rng, dtype=D) / torch.randn(60, generator=rng, dtype=D)
    A = torch.randn(60, 4, generator=rng, dtype=D)

    def ask(t: torch.Tensor) -> torch.Tensor:
        return torch.relu(t[:, None] - at) @ A

    one = folds_from_values(lambda t: ask(t)[:, :1], (-1e5, 1e5), noise=lambda t: 1e-12 * (1 + abs(t)), scale=1.0)
    four = folds_from_values(ask, (-1e5, 1e5), noise=lambda t: 1e-12 * (1 + abs(t)), scale=1.0)
    for line in (one, four):
        assert torch.allclose(line.t, at.sort().values, rtol=1e-6)
    assert one.rows <= 6 * 60 and four.rows <= 4 * 60


def test_a_straight_line_has_no_fold_and_costs_four_rows() -> None:
    line = folds_from_values(lambda t: (3 * t + 1)[:, None], (-1.0, 1.0), noise=quiet)
    assert len(line.t) == 0 and line.rows == 4 and math.isinf(line.smallest_gap)


def test_a_smooth_function_ends_and_says_so() -> None:
    line = folds_from_values(lambda t: torch.tanh(t)[:, None], (-3.0, 3.0), noise=quiet, limit=500)
    assert line.rows <= 500 and not line.complete


def test_noise_moves_folds_but_invents_none() -> None:
    rng = torch.Generator().manual_seed(1)
    exact = hinges([-0.4, 0.5], [1.0, -2.0])
    line = folds_from_values(lambda t: exact(t) + 1e-5 * (2 * torch.rand(len(t), 1, generator=rng, dtype=D) - 1),
                             (-2.0, 2.0), noise=lambda t: 1e-5)
    assert torch.allclose(line.t, torch.tensor([-0.4, 0.5], dtype=D), atol=1e-3)


def test_a_fold_between_the_two_answers_of_a_step_is_one_fold() -> None:
    from foldline.extract.line_pieces import Piece
    from foldline.extract.lines import ValueSearch
    exact = hinges([0.0], [1.0])
    search = ValueSearch(exact, quiet, scale=None, limit=None)

    def piece(a: float, b: float) -> Piece:
        ya, yb = search.ask([a, b])
        return search.piece(a, ya, b, yb)

    left, false, right = piece(-1.0, -0.5), piece(-1e-4, 1e-4), piece(0.5, 1.0)
    search.folds = [(-1e-4, left, false, 1e-12), (1e-4, false, right, 1e-12)]
    search.unstraddle()
    assert len(search.folds) == 1 and abs(search.folds[0][0]) < 1e-9
