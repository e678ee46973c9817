"""Which start is believed, and what a known mean says about dead pixels."""

import pytest
import torch
from planted import MNIST, mnist
from torch import Tensor

import foldline as fl
from foldline.randomness import Streams
from foldline.reconstruction import starts
from foldline.reconstruction.features import features_for
from foldline.reconstruction.peel import ncc, orthonormal, peel
from foldline.reconstruction.starts import Unmixed, live_pixels, unmix


def with_a_noisy_direction(n: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(raw, gauge, mean, images): a span as explanations give it, its weakest direction mostly noise."""
    x, _ = mnist(n, seed)
    mean = x.mean(0)
    _, _, V = torch.linalg.svd(x - mean, full_matrices=False)
    B = V[:n - 1].clone()                                           # centred rows: one direction less
    B[-1] += noise * torch.randn(784, generator=fl.generator(seed + 7), dtype=torch.float64) / 28
    gauge = torch.zeros(n, dtype=torch.float64)
    gauge[-1] = 1.0
    return torch.cat([torch.linalg.qr(B.T)[0].T, mean[None]]), gauge, mean, x


@pytest.mark.parametrize("seed", [0, 1])
def test_noise_on_dead_pixels_does_not_cost_the_images(seed: int) -> None:
    raw, gauge, mean, x = with_a_noisy_direction(30, 0.5, seed)
    found = peel(raw, gauge, features_for(MNIST), streams=Streams(fl.generator(seed)), live=live_pixels(raw, mean))
    best = ncc(found.images, x).amax(0)
    assert int((best > 0.9).sum()) >= 28
    assert float(found.images[:, mean <= 0].abs().max()) == 0       # no training image has ink there


def test_the_start_that_fits_the_box_is_kept_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, gauge, mean, _ = with_a_noisy_direction(12, 0.1)
    R, g = orthonormal(raw, gauge)
    live, real, seen = live_pixels(raw, mean), starts.one_start, []

    def bent(*arguments: object) -> Unmixed:
        """Every start but the third ends in mixtures."""
        out = real(*arguments)                                      # type: ignore[arg-type]
        if len(seen) != 2:
            M = torch.randn(12, 12, generator=fl.generator(len(seen)), dtype=torch.float64)
            mixture = M @ out.coefficients / (M.sum(1, keepdim=True))
            out = Unmixed(out.space, out.C, mixture, starts.outside(mixture @ R[:, live]))
        seen.append(out)
        return out

    monkeypatch.setattr(starts, "one_start", bent)
    kept = unmix(R, g, features_for(MNIST), live, streams=Streams(fl.generator(0)), snapping=True)
    assert kept is seen[2] and len(seen) == 3                       # and nothing is drawn after it has arrived


def test_without_a_box_the_likelihood_tells_starts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, gauge, mean, _ = with_a_noisy_direction(12, 0.1)
    R, g = orthonormal(raw, gauge)
    live, real, seen = live_pixels(raw, mean), starts.one_start, []

    def stuck(*arguments: object) -> Unmixed:
        """Every start but the second stays where it was drawn."""
        out = real(*arguments)                                      # type: ignore[arg-type]
        if len(seen) != 1:
            C = torch.linalg.qr(torch.randn(len(out.C), len(out.C), generator=fl.generator(len(seen))))[0]
            out = Unmixed(out.space, C, out.coefficients, out.ink)
        seen.append(out)
        return out

    monkeypatch.setattr(starts, "one_start", stuck)
    kept = unmix(R, g, features_for(MNIST), live, streams=Streams(fl.generator(0)), snapping=False)
    assert kept is seen[1] and len(seen) == 3
    seen.clear()
    monkeypatch.setattr(starts, "SMALL", 8)                         # a large span has one start
    assert unmix(R, g, features_for(MNIST), live, streams=Streams(fl.generator(0)), snapping=False) is seen[0]
    assert len(seen) == 1


def test_live_pixels_are_those_of_the_mean_and_those_that_stand_out() -> None:
    raw, _, mean, x = with_a_noisy_direction(20, 0.01)
    assert torch.equal(live_pixels(raw, mean), mean > 0)
    assert bool(live_pixels(raw, None).all())
    assert bool(live_pixels(raw, torch.zeros(784, dtype=torch.float64)).all())      # a mean of 0 says nothing
    # A mean of other data: zero where a training image has ink. The span shows it.
    elsewhere = mean.clone()
    strong = int(x.mean(0).argmax())
    elsewhere[strong] = 0
    assert bool(live_pixels(raw, elsewhere)[strong])
