"""Network presets: shapes, the order of pixels, the start, and what is needed to build them again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import foldline as fl
from foldline.errors import BadInput
from foldline.networks.presets import BUILDERS, Residual, build
from foldline.randomness import generator

SMALL = {"logistic": {}, "two-layer": {"width": 6}, "mlp": {"widths": (6, 5)}, "conv": {"width": 2},
         "vgg11": {"width": 1}, "resnet18": {"width": 1}, "unet": {"widths": (2, 3, 4)}}


def outputs_of(name: str, shape: tuple[int, ...], wanted: int) -> int:
    return math.prod(shape) if name == "unet" else wanted           # pictures out


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("shape", [(28, 28), (32, 32, 3)])
def test_takes_rows_and_images_and_builds_again(name: str, shape: tuple[int, ...]) -> None:
    outputs = outputs_of(name, shape, 3)
    net = build(name, input_shape=shape, outputs=outputs, rng=generator(0), **SMALL[name]).eval()
    x = torch.rand(2, *shape, generator=generator(1))
    y = net(x.flatten(1))
    assert y.shape == (2, outputs)
    assert torch.equal(y, net(x))
    twin = build(net.preset["name"], **json.loads(json.dumps(net.preset["arguments"]))).eval()
    assert all(not p.any() for m in twin.modules() if isinstance(m, (nn.Linear, nn.Conv2d))
               for p in m.parameters())
    twin.load_state_dict(net.state_dict())
    assert torch.equal(twin(x), y)
    assert net.input_shape == shape


def test_convolutions_see_rows_as_height_width_channel() -> None:
    net = build("conv", input_shape=(8, 8, 3), outputs=2, rng=generator(0), width=2)
    images = torch.rand(2, 3, 8, 8, generator=generator(1))             # channels first, as PyTorch has them
    inside = net.body(images)
    assert torch.equal(net(images.permute(0, 2, 3, 1).reshape(2, -1)), inside)
    assert torch.equal(net(images), inside)


def test_dense_presets_are_sequentials_that_start_with_a_linear_layer() -> None:
    for name in ("logistic", "two-layer", "mlp"):
        net = build(name, input_shape=(8, 8), outputs=1, rng=generator(0), **SMALL[name])
        assert isinstance(net, nn.Sequential) and isinstance(net[0], nn.Linear) and net[0].in_features == 64


@pytest.mark.parametrize(("biases", "expected"), [("all", [1, 1, 1]), ("hidden", [1, 1, 0]), ("first", [1, 0, 0]),
                                                  ("none", [0, 0, 0])])
def test_biases(biases: str, expected: list[int]) -> None:
    net = build("mlp", input_shape=(4,), outputs=1, widths=(3, 2), biases=biases)
    assert [int(m.bias is not None) for m in net if isinstance(m, nn.Linear)] == expected


def test_start_is_pytorchs_default_distribution_and_touches_no_global_seed() -> None:
    before = torch.get_rng_state()
    net = build("mlp", input_shape=(100,), outputs=1, widths=(400,), rng=generator(0))
    other = build("mlp", input_shape=(100,), outputs=1, widths=(400,), rng=generator(0), dtype=torch.float64)
    assert torch.equal(torch.get_rng_state(), before)
    W, b = net[0].weight, net[0].bias
    assert torch.equal(W, other[0].weight.float())
    for p in (W, b):                                                    # U(-0.1, 0.1): std 0.1 / sqrt(3)
        assert float(p.detach().abs().max()) <= 0.1
        assert float(p.detach().std()) == pytest.approx(0.1 / 3**0.5, rel=0.1)
    theirs = nn.Linear(100, 400)
    assert float(theirs.weight.detach().abs().max()) == pytest.approx(float(W.detach().abs().max()), rel=0.01)


def test_depths_are_the_published_ones() -> None:
    vgg = build("vgg11", input_shape=(32, 32, 3), outputs=10, width=1)
    assert sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in vgg.modules()) == 11
    res = build("resnet18", input_shape=(32, 32, 3), outputs=10, width=1)
    projections = 3
    assert sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in res.modules()) == 18 + projections
    full = build("resnet18", input_shape=(32, 32, 3), outputs=10)
    assert sum(p.numel() for p in full.parameters()) == 11_173_962      # the well-known size of the CIFAR variant


@pytest.mark.parametrize(("name", "arguments"), [
    ("resnet", {}), ("mlp", {"width": 3}), ("mlp", {"biases": "some"}), ("mlp", {"widths": (0,)}),
    ("conv", {"width": 0}), ("conv", {"kernel": 2})])
def test_mistakes_are_sentences(name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"\.$"):
        build(name, input_shape=(8, 8), outputs=2, **arguments)


def test_convolutions_without_padding_leave_fewer_pixels() -> None:
    net = build("conv", input_shape=(28, 28), outputs=10, rng=generator(0), width=10, kernel=5, hidden=50, padded=False)
    sizes = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    assert sizes == [(10, 1, 5, 5), (20, 10, 5, 5), (50, 320), (10, 50)]
    assert net(torch.rand(3, 784)).shape == (3, 10)
    with pytest.raises(BadInput, match="without padding"):
        build("conv", input_shape=(12, 12), outputs=2, kernel=5, padded=False)


def test_convolutions_refuse_plain_vectors() -> None:
    with pytest.raises(BadInput, match="needs images"):
        build("conv", input_shape=(64,), outputs=2)


def test_saved_and_loaded(tmp_path: Path) -> None:
    for name in BUILDERS:
        outputs = outputs_of(name, (28, 28), 2)
        net = build(name, input_shape=(28, 28), outputs=outputs, rng=generator(0), **SMALL[name]).eval()
        fl.save(net, tmp_path / "net.safetensors")
        again = fl.load(tmp_path / "net.safetensors")
        x = torch.rand(3, 784, generator=generator(1))
        assert torch.equal(again(x), net(x)) and again.input_shape == (28, 28) and type(again) is type(net)


def test_hes_start_keeps_the_signal_and_silences_residual_branches() -> None:
    x = torch.rand(20, 16 * 16 * 3, generator=generator(1), dtype=torch.float64)

    def spread(start: str) -> float:
        net = build("vgg11", input_shape=(16, 16, 3), outputs=4, width=4, norm=False, start=start, dtype=torch.float64,
                    rng=generator(0)).eval()
        with torch.no_grad():
            return float(net(x).std(0).mean())

    assert spread("he") > 1000 * spread("default")
    net = build("resnet18", input_shape=(16, 16, 3), outputs=4, width=2, start="he", rng=generator(0))
    assert all(not m.norm2.weight.any() and m.norm1.weight.all() for m in net.modules() if isinstance(m, Residual))
    with pytest.raises(BadInput, match="start"):
        build("conv", input_shape=(16, 16), start="xavier")


@pytest.mark.parametrize("shape", [(8, 8), (9, 13), (7, 6, 3), (3, 10, 10)])
def test_a_u_net_answers_pictures_of_any_size_and_starts_as_the_identity_when_silent(shape: tuple[int, ...]) -> None:
    net = build("unet", input_shape=shape, outputs=math.prod(shape), rng=generator(0), widths=(2, 3, 4))
    x = torch.rand(5, math.prod(shape), generator=generator(1))
    assert net(x).shape == x.shape and not torch.allclose(net(x), x)
    net.silent()
    assert torch.equal(net(x), x)
    with pytest.raises(BadInput, match="outputs must be"):
        build("unet", input_shape=shape, outputs=2)
    with pytest.raises(BadInput, match="three positive widths"):
        build("unet", input_shape=shape, outputs=math.prod(shape), widths=(2, 3))
