"""How an image lies in a row: colours last or first, given or guessed."""

import pytest
import torch
from torch import Tensor

import foldline as fl
from foldline.images import guessed_shape, low_frequencies, pictures, size_of
from foldline.victims.datasets import load_dataset, subset

LAST, FIRST = (28, 28, 3), (3, 28, 28)


def coloured(n: int) -> tuple[Tensor, Tensor]:
    """n digits in colours of their own and as many unseen ones, (n, 28, 28, 3)"""
    found = subset(load_dataset("mnist5k"), n, "binary", rng=fl.generator(0))
    colours = 0.2 + 0.8 * torch.rand(2 * n, 1, 1, 3, generator=fl.generator(1), dtype=torch.float64)
    both = torch.cat([found.x, found.x_unseen]).double().reshape(-1, 28, 28, 1) * colours
    return both[:n], both[n:]


def flat(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    return (images if shape == LAST else images.permute(0, 3, 1, 2)).reshape(len(images), -1)


@pytest.mark.parametrize("shape", [LAST, FIRST, (28, 84)])
def test_pictures_undo_the_flattening(shape: tuple[int, ...]) -> None:
    images, _ = coloured(4)
    assert size_of(shape)[0] * size_of(shape)[1] * size_of(shape)[2] == 28 * 28 * 3
    if shape in (LAST, FIRST):
        assert torch.equal(pictures(flat(images, shape), shape), images)
        mixtures = torch.randn(30, 4, generator=fl.generator(2), dtype=torch.float64) @ flat(images, shape)
        assert guessed_shape(28 * 28 * 3, mixtures) == shape
    else:
        assert pictures(flat(images, LAST), shape).shape == (4, 28, 84, 1)


@pytest.mark.parametrize("shape", [LAST, FIRST])
def test_a_network_that_flattens_colours_first_gives_its_images_away_too(shape: tuple[int, ...]) -> None:
    images, others = coloured(10)
    x, unseen = flat(images, shape), flat(others, shape)
    mean = x.mean(0)
    rows = torch.cat([x - mean, torch.ones(10, 1, dtype=torch.float64)], 1)
    A = torch.randn(80, 10, generator=fl.generator(3), dtype=torch.float64) @ rows
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 80), torch.nn.ReLU(), torch.nn.Linear(80, 1)).double()
    with torch.no_grad():
        net[0].weight.copy_(A[:, :-1])
        net[0].bias.copy_(A[:, -1])
    found = fl.reconstruct(net, rng=fl.generator(0), mean=mean)
    assert found.image_shape == shape
    assert fl.score_reconstruction(found.samples + mean, x, unseen).above["0.99"] == 10
    wrong = FIRST if shape == LAST else LAST
    said = fl.reconstruct(net, rng=fl.generator(0), mean=mean, image_shape=wrong)
    assert f"smoother as images of shape {shape}" in " ".join(said.status.notes)


@pytest.mark.parametrize("shape", [(6, 8), (6, 8, 3), (3, 6, 8)])
def test_low_frequencies_are_orthonormal_and_hold_smooth_pictures(shape: tuple[int, ...]) -> None:
    rows = low_frequencies(shape, 0.5)
    d = torch.Size(shape).numel()
    assert rows.shape == (d // 2, d)
    assert torch.allclose(rows @ rows.T, torch.eye(d // 2, dtype=torch.float64), atol=1e-12)
    height, width, channels = size_of(shape)
    ramp = (torch.arange(height)[:, None] + 2.0 * torch.arange(width)).double()[:, :, None].expand(-1, -1, channels)
    board = ((torch.arange(height)[:, None] + torch.arange(width)) % 2 * 2.0 - 1).double()[:, :, None].expand_as(ramp)
    for image, held in ((ramp, (0.99, 1.01)), (board, (-0.01, 0.2))):
        row = (image.permute(2, 0, 1) if shape[0] == 3 else image).reshape(-1)
        assert held[0] < float((rows @ row).norm() / row.norm()) < held[1]
