"""Rank against the noise edge: noise alone has none, and spikes above the edge are counted one by one."""

import math

import pytest
import torch
from torch import Tensor

import foldline as fl
from foldline.reconstruction.noise_edge import median_singular_value, noise_edge, singular


def noise(h: int, d: int, seed: int, *, uniform: bool = False) -> Tensor:
    rng = fl.generator(seed)
    draw = torch.rand if uniform else torch.randn
    return draw(h, d, generator=rng, dtype=torch.float64) - (0.5 if uniform else 0.0)


@pytest.mark.parametrize(("h", "d"), [(300, 120), (120, 300), (60, 785), (80, 80), (400, 65)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pure_noise_has_rank_zero(h: int, d: int, seed: int) -> None:
    assert noise_edge(noise(h, d, seed))[0].rank == 0
    assert noise_edge(1e-7 * noise(h, d, seed, uniform=True))[0].rank == 0


@pytest.mark.parametrize(("h", "d"), [(300, 120), (100, 300)])
@pytest.mark.parametrize("k", [1, 7, 40])
def test_spikes_above_the_edge_are_counted(h: int, d: int, k: int) -> None:
    rng = fl.generator(k)
    U = torch.linalg.qr(torch.randn(h, k, generator=rng, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(d, k, generator=rng, dtype=torch.float64))[0]
    top = math.sqrt(h) + math.sqrt(d)                       # where noise of unit variance ends
    A = 3 * top * (U * torch.linspace(1, 4, k, dtype=torch.float64)) @ V.T + noise(h, d, k)
    edge, right = noise_edge(A)
    assert edge.rank == k
    assert edge.gap > 2
    assert 0.9 * top < edge.edge < 1.3 * top
    kept = right[:k]
    assert float((V - kept.T @ (kept @ V)).norm(dim=0).max()) < 0.5     # a spike at 3 edges leans out by a third
    hidden = noise_edge(A * 0 + 0.3 * top * U @ V.T + noise(h, d, k))[0]
    assert hidden.rank == 0                                 # spikes inside the noise are not claimed


def test_an_exact_rank_needs_no_noise_law() -> None:
    A = noise(50, 6, 0) @ noise(6, 90, 1)
    edge, _ = noise_edge(A)
    assert edge.rank == 6 and edge.gap > 1e6
    assert noise_edge(1e-9 * A)[0].rank == 6                # scale says nothing


def test_too_few_values_for_a_tail_claim_nothing() -> None:
    edge, _ = noise_edge(noise(3, 40, 0))
    assert math.isnan(edge.edge) and edge.gap == 1.0


@pytest.mark.parametrize(("h", "d"), [(200, 50), (120, 100), (90, 90)])
def test_the_median_of_the_law_is_the_median_of_a_draw(h: int, d: int) -> None:
    drawn = float(torch.linalg.svdvals(noise(h, d, 3)).median())
    assert abs(median_singular_value(min(h, d), max(h, d)) / drawn - 1) < 0.06


def test_a_single_zero_after_a_steep_fall_is_an_exact_rank() -> None:
    rng = fl.generator(0)
    A = torch.randn(30, 8, generator=rng, dtype=torch.float64) @ torch.randn(8, 9, generator=rng, dtype=torch.float64)
    edge, _ = noise_edge(A)                                 # 9 values, one of them zero
    assert edge.rank == 8 and edge.gap > 1e6


@pytest.mark.parametrize(("h", "d"), [(60, 40), (40, 60), (1, 7), (7, 1)])
@pytest.mark.parametrize("decades", [0, 6, 11])
def test_singular_values_are_those_that_the_matrix_was_made_of(h: int, d: int, decades: int) -> None:
    m = min(h, d)
    s = torch.logspace(0, -decades, m, dtype=torch.float64)
    A = torch.linalg.qr(noise(h, m, 1))[0] * s @ torch.linalg.qr(noise(d, m, 2))[0].T
    found, V = singular(A)
    assert torch.allclose(found, s, rtol=1e-3)
    assert float((V @ V.T - torch.eye(m, dtype=V.dtype)).abs().max()) < 1e-12
    assert float((A - A @ V.T @ V).abs().max()) < 1e-13
    assert singular(torch.zeros(h, d, dtype=torch.float64))[0].tolist() == [0.0] * m
