"""Section 3 of paper 001: every lemma's inequality on random instances."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foldline.extract.structure import (
    affine_bound,
    affine_case,
    are_close,
    closeness,
    fold_coefficients,
    merge_bound,
    merge_close,
    orientation,
)
from foldline.randomness import generator

D = torch.float64
seeds = st.integers(0, 10_000)
quick = settings(max_examples=40, deadline=None, derandomize=True)


def near_units(n: int, d: int, gap: float, seed: int, flip: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """n units near one hyperplane, of various lengths, some turned around."""
    g = generator(seed)
    centre = torch.randn(d + 1, generator=g, dtype=D)
    units = centre + gap * torch.randn(n, d + 1, generator=g, dtype=D)
    units *= 0.3 + torch.rand(n, 1, generator=g, dtype=D)
    if flip:
        units *= torch.where(torch.rand(n, 1, generator=g, dtype=D) < 0.5, -1.0, 1.0)
    return units[:, :d], units[:, d]


def l2(f: torch.Tensor) -> float:
    return float(f.square().mean().sqrt())


def gaussian(d: int, n: int = 20_000) -> torch.Tensor:
    return torch.randn(n, d, generator=generator(5), dtype=D)


def paper_network(V: torch.Tensor, b: torch.Tensor, s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ V.T - b) @ s


def test_closeness_by_hand() -> None:
    V = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [0.0, 0.0]], dtype=D)
    b = torch.tensor([1.0, 2.0, -3.0, 1.0], dtype=D)
    sin, offset = closeness(V, b)
    assert sin[0, 1] == pytest.approx(1.0)
    assert sin[0, 2] == 0 and offset[0, 2] == 0                     # the same hyperplane, turned around
    assert offset[0, 1] == pytest.approx(math.hypot(2, 2) / 2)      # |1 (0, 2) - 2 (1, 0)| / (1 * 2)
    assert sin[0, 3] == math.inf and sin[3, 3] == 0


def test_closeness_keeps_its_digits_at_tiny_angles() -> None:
    V = torch.tensor([[1.0, 0.0], [1.0, 1e-12]], dtype=D)
    assert float(closeness(V, torch.zeros(2, dtype=D))[0][0, 1]) == pytest.approx(1e-12, rel=1e-3)


@quick
@given(seeds, st.floats(0.1, 30), st.floats(0.1, 30))
def test_rescaling_units_does_not_change_closeness(seed: int, left: float, right: float) -> None:
    V, b = near_units(2, 4, 0.1, seed)
    scale = torch.tensor([left, -right], dtype=D)
    for before, after in zip(closeness(V, b), closeness(scale[:, None] * V, scale * b), strict=True):
        torch.testing.assert_close(before, after, rtol=1e-9, atol=1e-12)


@quick
@given(seeds)
def test_lemma_3_2_scaled_biases_are_close(seed: int) -> None:
    V, b = near_units(2, 5, 0.05, seed)
    alpha = float(closeness(V, b)[1][0, 1])
    gamma = (V[0] @ V[1]) / (V[1] @ V[1])
    assert float((gamma * b[1] - b[0]).abs()) <= alpha * float(V[0].norm()) * (1 + 1e-9)


@quick
@given(seeds)
def test_lemma_3_3_close_units_polarise(seed: int) -> None:
    V, _ = near_units(7, 6, 0.02, seed)
    side = orientation(V)
    gram = V @ V.T
    assert side[0] == 1 and bool((gram * side[:, None] * side[None, :] >= 0).all())


def test_units_that_do_not_polarise_are_refused() -> None:
    angle = torch.tensor([0.0, 2.0, 4.0], dtype=D)
    with pytest.raises(ValueError, match="not pairwise close"):
        orientation(torch.stack([angle.cos(), angle.sin()], 1))


@quick
@given(seeds)
def test_lemma_3_5_triangle_inequality(seed: int) -> None:
    V, b = near_units(3, 4, 0.1, seed)
    sin, offset = closeness(V, b)
    assert sin[0, 2] <= sin[0, 1] + sin[1, 2] + 1e-12
    assert offset[0, 2] <= 2 * (offset[0, 1] + offset[1, 2]) + 1e-12


@quick
@given(seeds)
def test_lemma_3_6_merging(seed: int) -> None:
    k, d = 5, 4
    V, b = near_units(k, d, 0.02, seed)
    s = torch.where(torch.rand(k, generator=generator(seed + 1)) < 0.5, -1.0, 1.0).to(D)
    lead = int(V.norm(dim=1).argmax())                              # |w_i| <= |v*|, as the lemma's bound needs
    v, c = V[lead], b[lead]
    sin, offset = closeness(V, b)
    Delta, alpha = float(sin[lead].max()), float(offset[lead].max())
    plus, minus = fold_coefficients(V, s, v)
    x = gaussian(d)
    merged = plus * torch.relu(x @ v - c) + minus * torch.relu(c - x @ v)
    error = l2(paper_network(V, b, s, x) - merged)
    assert error <= merge_bound(V, s, Delta, alpha) * 1.05          # ours, up to the sample
    assert error**2 <= 2 * k**2 * (Delta**0.4 + alpha**2) * float(v @ v)    # the paper's, with constant 2
    total = float(V.norm(dim=1).sum())
    assert max(abs(float(plus)), abs(float(minus))) * float(v.norm()) <= total * (1 + 1e-9)
    assert max(abs(float(plus * c)), abs(float(minus * c))) <= alpha * total + float(b.abs().sum()) + 1e-9


@quick
@given(seeds)
def test_lemma_3_7_combinations_stay_close(seed: int) -> None:
    V, b = near_units(4, 5, 0.02, seed)
    sin, offset = closeness(V, b)
    s = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=D)
    v, c = s @ V, s @ b
    pair_sin, pair_offset = closeness(torch.stack([v, V[0]]), torch.stack([c, b[0]]))
    # The paper's Delta m holds for |v_i| <= |v|; in general the ratio of lengths enters, as in its alpha.
    ratio = float(V.norm(dim=1).sum() / v.norm())
    assert float(pair_sin[0, 1]) <= float(sin[0].max()) * ratio + 1e-12
    assert float(pair_offset[0, 1]) <= float(offset[0].max()) * ratio + 1e-12


@quick
@given(seeds)
def test_lemma_3_8_cancelling_groups_are_affine(seed: int) -> None:
    k, d = 4, 3
    V, b = near_units(k, d, 0.01, seed)
    s = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=D)
    side = orientation(V)
    # Scale the last unit so that equation (1)'s sum is small along the group's direction.
    rest = ((s * side)[:-1, None] * V[:-1]).sum(0) @ V[0] / (V[-1] @ V[0])
    scale = float(-rest / s[-1] * side[-1] / side[-1] ** 2)
    V, b = V.clone(), b.clone()
    V[-1], b[-1] = scale * V[-1], scale * b[-1]
    sin, offset = closeness(V, b)
    w, c = affine_case(V, b, s)
    x = gaussian(d)
    error = l2(paper_network(V, b, s, x) - (x @ w - c))
    assert error <= affine_bound(V, b, s, float(sin.max()), float(offset.max())) * 1.05
    assert float(w.norm()) <= float(V.norm(dim=1).sum()) + 1e-9 and abs(float(c)) <= float(b.abs().sum()) + 1e-9


@quick
@given(seeds)
def test_merge_close_within_its_bound_and_affine_where_it_cancels(seed: int) -> None:
    d, gap = 4, 1e-4
    V, b = near_units(6, d, gap, seed)
    far, far_b = near_units(1, d, gap, seed + 77, flip=False)
    W, bias = torch.cat([V, far]), torch.cat([b, far_b])
    a = torch.randn(2, 7, generator=generator(seed), dtype=D)
    p, q = torch.ones(2, d, dtype=D), torch.tensor([1.0, -1.0], dtype=D)
    merged = merge_close(W, -bias, a, p, q, Delta=50 * gap, alpha=50 * gap)
    assert [len(g) for g in merged.groups] == [6] and len(merged.W) == 2
    x = gaussian(d)
    before = torch.relu(x @ W.T - bias) @ a.T + x @ p.T + q
    after = torch.relu(x @ merged.W.T + merged.b) @ merged.a.T + x @ merged.p.T + merged.q
    assert l2(before - after) <= 200 * gap * float((a.abs() * W.norm(dim=1)).sum())


def test_merging_nothing_changes_nothing() -> None:
    empty = torch.zeros(0, 3, dtype=D)
    merged = merge_close(empty, empty[:, 0], torch.zeros(1, 0, dtype=D), torch.ones(1, 3, dtype=D),
                         torch.zeros(1, dtype=D), Delta=0.1, alpha=0.1)
    assert len(merged.W) == 0 and merged.groups == () and bool((merged.p == 1).all())
    V = torch.eye(3, dtype=D)
    assert not bool((are_close(V, torch.zeros(3, dtype=D), 0.5, 0.5) & ~torch.eye(3, dtype=torch.bool)).any())
