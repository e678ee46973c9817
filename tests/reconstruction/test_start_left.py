"""A start that was never forgotten is named, from weights and from gradients; one that was is not."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch
from planted import mixture, mnist, network_of

import foldline as fl
from foldline.images import roughness
from foldline.reconstruction.start_left import start_in_span
from foldline.victims.recipes import ADAMW, EVERYDAY, NO_DECAY
from foldline.victims.train import Victim, train_victim

MNIST = (28, 28)
RECIPES = {"adamw": dataclasses.replace(ADAMW, steps=150), "no-decay": dataclasses.replace(NO_DECAY, steps=300),
           "decay": dataclasses.replace(EVERYDAY, weight_decay=0.02, steps=800)}


@cache
def trained(name: str) -> Victim:
    return train_victim("everyday", rng=fl.generator(0), n=16, data_set="mnist5k", recipe=RECIPES[name],
                        arguments={"widths": (40, 40)})


@pytest.mark.parametrize("name", ["adamw", "no-decay"])
def test_a_start_that_was_never_forgotten_is_named(name: str) -> None:
    v = trained(name)
    found = fl.reconstruct(v.module, rng=fl.generator(0), image_shape=MNIST, mean=v.mean, rounds=0)
    assert found.status.code == "faint" and "never forgotten" in found.status.message
    assert "PyTorch's default start" in found.status.message and not found.certificate.n_is_exact
    assert len(found.samples) > 0                               # blurred, but what there is is given
    span = fl.recover_span(fl.gradient_oracle(v.module), rng=fl.generator(1))
    assert span.rank >= 35                                      # the layer's rows, not the 16 images
    said = fl.reconstruct_from_span(span, rng=fl.generator(0), image_shape=MNIST, mean=v.mean, rounds=0).status
    assert said.code == "start_remains" and "zero in every training row" in said.message
    white = start_in_span(span.basis, MNIST)                    # the same without the mean
    assert white is not None and "look like noise" in white.message


def test_the_command_says_it_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    from foldline.cli.reconstruct import leave
    from foldline.cli.reconstruct_show import show_evidence
    v = trained("no-decay")
    found = fl.reconstruct(v.module, rng=fl.generator(0), image_shape=MNIST, mean=v.mean, rounds=0)
    show_evidence(found)
    assert f"trained on about {found.estimated_n} rows" in " ".join(capsys.readouterr().out.split())
    leave(found, None)
    assert "Blurred images leak this way (faint)" in " ".join(capsys.readouterr().err.split())
    leave(fl.reconstruct(v.module, rng=fl.generator(0), features=lambda rows: rows, mean=v.mean, rounds=0), None)
    assert "Hardly anything leaks this way (start_remains)" in " ".join(capsys.readouterr().err.split())


def test_a_start_that_decayed_is_not_named() -> None:
    v = trained("decay")
    assert fl.reconstruct(v.module, rng=fl.generator(0), image_shape=MNIST, mean=v.mean).status.ok
    span = fl.recover_span(fl.gradient_oracle(v.module), rng=fl.generator(1))
    assert fl.reconstruct_from_span(span, rng=fl.generator(0), image_shape=MNIST, mean=v.mean).status.ok


def test_roughness_of_known_pictures() -> None:
    noise = torch.randn(20, 1024 * 3, generator=fl.generator(0), dtype=torch.float64)
    assert roughness(noise, (32, 32, 3)) == pytest.approx(2, rel=0.05)
    assert roughness(torch.ones(1, 64, dtype=torch.float64), (8, 8)) == 0
    board = (-1.0) ** torch.arange(8)
    assert roughness((board[:, None] * board).reshape(1, 64).double(), (8, 8)) == pytest.approx(4)
    assert start_in_span(noise, None) is None                   # a table has no neighbours to compare


def test_raw_inputs_have_no_mean_that_could_show_dead_pixels() -> None:
    x, _ = mnist(12)
    span = fl.recover_span(fl.gradient_oracle(network_of(mixture(x))), rng=fl.generator(0))
    assert fl.reconstruct_from_span(span, rng=fl.generator(1), image_shape=MNIST, mean=0.0).status.ok
