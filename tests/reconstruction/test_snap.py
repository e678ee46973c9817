"""Snapping: blurred candidates become pixel-exact, and nothing that is a mixture passes as exact."""

import pytest
import torch
from planted import mnist
from torch import Tensor

import foldline as fl
from foldline.randomness import Streams
from foldline.reconstruction import peel as peeling
from foldline.reconstruction.features import plain_features
from foldline.reconstruction.peel import mirrored, ncc, orthonormal, peel
from foldline.reconstruction.snap import measure, pinned, scaled, snap


def span(n: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """(images, an orthonormal basis of their span, the gauge that is 1 for each of them)"""
    x, _ = mnist(n)
    mix = torch.randn(n, n, generator=fl.generator(1), dtype=torch.float64)
    R, gauge = orthonormal(mix @ x, mix @ torch.ones(n, dtype=torch.float64))
    assert gauge is not None
    return x, R, gauge


def blurred(x: Tensor, size: float, seed: int = 0) -> Tensor:
    other = torch.randn(len(x), len(x), generator=fl.generator(seed), dtype=torch.float64)
    return x + size * (other @ x) / len(x) ** 0.5


@pytest.mark.parametrize("with_gauge", [True, False])
def test_blurred_candidates_become_exact(with_gauge: bool) -> None:
    x, R, gauge = span()
    start = blurred(x, 0.3)
    before = ncc(start, x).diagonal()
    found = snap(start, R, gauge if with_gauge else None)
    after = ncc(found.coefficients @ R, x).diagonal()
    assert float(before.median()) < 0.98
    assert int((after > 0.9999).sum()) >= 11                # the anchor of one may lead to a sparser neighbour
    assert bool(found.exact[after > 0.9999].all())
    if with_gauge:
        assert float((found.coefficients @ R - x)[after > 0.9999].abs().max()) < 0.02
        assert torch.allclose(found.coefficients @ gauge, torch.ones(12, dtype=torch.float64))


def test_what_is_exact_stays_and_mixtures_are_not_exact() -> None:
    x, R, _ = span()
    assert bool(measure(x @ R.T, R).exact.all())
    assert not bool(measure(blurred(x, 0.3) @ R.T, R).exact.any())          # ink outside the box
    mean = x.mean(0, keepdim=True) @ R.T                                   # inside the box, but on no edge of it
    one = measure(mean, R)
    assert float(one.violation) < 1e-9 and not bool(one.exact)


def test_scaling_without_a_gauge_brings_the_brightest_pixel_to_one() -> None:
    x, R, _ = span()
    c = scaled(-3 * x @ R.T, R, None)
    assert torch.allclose((c @ R).amax(1), torch.ones(12, dtype=torch.float64))
    assert float((c @ R).sum(1).min()) > 0
    weak = scaled(torch.zeros(1, len(R), dtype=torch.float64), R, torch.ones(len(R), dtype=torch.float64))
    assert bool(weak.isfinite().all())                      # a component without any gauge is not blown up


def test_zeros_that_two_images_share_pin_neither() -> None:
    x, _ = mnist(12)
    twin = x[0]                                             # and another picture with ink at the same places
    ink = (x[0] > 0).double() * torch.rand(784, generator=fl.generator(2), dtype=torch.float64)
    rows = torch.cat([x, ink[None]])
    R, _ = orthonormal(rows, None)
    assert not bool(measure(((twin + ink) / 2)[None] @ R.T, R).exact.any())
    assert bool(measure(x[1:] @ R.T, R).exact.all())


def test_the_other_of_two_similar_images_is_found_from_their_difference() -> None:
    x, R, _ = span()
    c = x @ R.T
    candidate = c[3:4] + 3 * (c[3:4] - c[7:8])              # what unmixing finds once image 3 is known
    found = mirrored(candidate, c[3:4], R)
    assert len(found) == 1 and float(ncc(found @ R, x)[0, 7]) > 0.99
    assert len(mirrored(c[7:8], c[3:4], R)) == 0            # what lies in the box already stays


@pytest.mark.parametrize(("own", "kept"), [(0.03, True), (0.07, False)])
def test_zeros_must_hold_every_other_direction_twenty_times_as_firmly(own: float, kept: bool) -> None:
    """The image's own values at its zeros are `own` times as large as the next direction's there."""
    zeros = torch.arange(40) < 20
    R = torch.zeros(2, 40, dtype=torch.float64)
    R[0, 0], R[0, 20:] = own, 1.0
    R[1, 1], R[1, 20:] = 1.0, torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(10)
    assert pinned(zeros, R) is kept


def test_a_span_of_nearly_all_live_pixels_is_not_snapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds points with more zeros than any image has: what would arrive there proves nothing."""
    x, _ = mnist(60)
    some = x[:, x.mean(0).argsort(descending=True)[:70]]                # 60 directions, 70 live pixels
    called = []
    monkeypatch.setattr(peeling, "snap", lambda *a, **k: called.append(1) or snap(*a, **k))
    found = peel(some, None, plain_features, streams=Streams(fl.generator(0)), rounds=0)
    assert not called and not bool(found.exact.any())
    peel(some[:8], None, plain_features, streams=Streams(fl.generator(0)), rounds=0)
    assert called
