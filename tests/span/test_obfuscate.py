"""Noise in the null space: of the right length, invisible to the network, inside the box where asked."""

import pytest
import torch

import foldline as fl
from foldline.errors import BadInput
from foldline.span.obfuscate import obfuscate_in_box, output_change, partial_span_curve

from .nets import deep_net


def images(n: int, d: int) -> torch.Tensor:
    """Sparse pixels in [0, 1], many of them exactly zero."""
    u = torch.rand(n, d, generator=fl.generator(5), dtype=torch.float64)
    return torch.where(u > 0.7, u, torch.zeros_like(u))


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 1e4])
def test_noise_is_as_long_as_asked_and_unseen(scale: float) -> None:
    net = deep_net([100, 10, 8, 5], 0)
    span = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(0))
    x = images(50, 100)
    moved = fl.obfuscate(x, span.basis, scale, rng=fl.generator(1))
    assert torch.allclose((moved - x).norm(dim=1), scale * x.norm(dim=1), rtol=1e-9)
    change = output_change(fl.value_oracle(net), x, moved)
    assert change.kept == 50 and change.largest_change < 1e-12 * max(1.0, scale) * 100


def test_one_input_and_a_zero_input() -> None:
    basis = torch.eye(3, 10, dtype=torch.float64)
    moved = fl.obfuscate(torch.zeros(10), basis, 2.0, rng=fl.generator(0))
    assert moved.shape == (10,) and float(moved[:3].abs().max()) < 1e-15
    assert float(moved.norm()) == pytest.approx(2.0)


def test_a_basis_need_not_be_orthonormal() -> None:
    W = deep_net([30, 6, 1], 0)[0].weight.detach()
    x = images(5, 30)
    assert float((fl.obfuscate(x, W, 5.0, rng=fl.generator(0)) @ W.T - x @ W.T).abs().max()) < 1e-12


def test_full_rank_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(BadInput, match="no null space"):
        fl.obfuscate(torch.ones(2, 4), torch.eye(4), rng=fl.generator(0))
    with pytest.raises(BadInput, match=r"\(rank, 4\)"):
        fl.obfuscate(torch.ones(2, 4), torch.eye(3), rng=fl.generator(0))
    with pytest.raises(BadInput, match="scale"):
        fl.obfuscate(torch.ones(2, 4), torch.eye(2, 4), -1.0, rng=fl.generator(0))


def test_noise_in_a_box_stays_there_and_says_how_much_fits() -> None:
    net = deep_net([100, 10, 8, 5], 0)
    basis = torch.linalg.qr(net[0].weight.detach().T)[0].T
    x = images(6, 100)
    r = obfuscate_in_box(x, basis, 10.0, rng=fl.generator(0))
    assert float(r.samples.min()) >= 0.0 and float(r.samples.max()) <= 1.0
    assert float(r.leak.max()) < 1e-8 and float(r.fits.min()) > 0.3 and r.status.code == "box"
    assert output_change(fl.value_oracle(net), x, r.samples).kept == 6
    little = obfuscate_in_box(x, basis, 0.1, rng=fl.generator(0))
    assert little.status.ok and torch.allclose(little.fits, torch.full((6,), 0.1, dtype=torch.float64), atol=1e-6)


def test_a_box_with_no_room_is_an_answer() -> None:
    x = images(2, 4)
    assert obfuscate_in_box(x, torch.eye(4), rng=fl.generator(0)).status.code == "full_rank"
    # One null direction that points out of the box at x = 0 on both sides: nothing fits.
    basis = torch.linalg.qr(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))[0][:1]
    stuck = obfuscate_in_box(torch.zeros(1, 2), basis.abs(), rng=fl.generator(0))
    assert float(stuck.fits.max()) == 0.0 and stuck.status.code == "box"


def test_more_of_the_span_moves_the_output_less() -> None:
    net = deep_net([100, 10, 8, 5], 0)
    span = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(0))
    curve = partial_span_curve(fl.value_oracle(net), images(100, 100), span.basis, [0, 5, 9, 10], 5.0,
                               rng=fl.generator(0))
    changes = [c.largest_change for _, c in curve]
    assert changes[0] > changes[2] > 1e3 * changes[3] and changes[3] < 1e-10
    assert curve[0][1].kept < curve[3][1].kept == 100
