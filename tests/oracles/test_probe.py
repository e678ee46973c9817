"""probe tells what a target is like, without being told."""

import json

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.oracles.defences import Noisy
from foldline.oracles.local import source_of


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(std=0.5, generator=fl.generator(0))
    return module.to(dtype)


@pytest.mark.parametrize(("link", "kind"), [(nn.Identity(), "logits"), (nn.Softmax(1), "probabilities"),
                                            (nn.LogSoftmax(1), "log-probabilities")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_clean_module(link: nn.Module, kind: str, dtype: torch.dtype) -> None:
    found = fl.probe(nn.Sequential(net(dtype), link))
    assert (found.dim, found.outputs, found.dtype) == (12, 4, str(dtype).removeprefix("torch."))
    assert found.output_kind == kind and found.deterministic and found.gradients
    assert found.decimals is None and found.noise == 0.0 and found.rows_per_second > 0
    assert found.status.ok and found.queries <= 1200 and json.dumps(found.to_dict(), allow_nan=False)


def test_one_output_and_labels() -> None:
    assert fl.probe(nn.Sequential(nn.Linear(5, 1), nn.Sigmoid())).output_kind == "one probability"
    assert fl.probe(nn.Linear(5, 1)).output_kind == "one value"
    module = net()
    labels = fl.probe(lambda x: module(x).argmax(1))
    assert labels.output_kind == "labels" and not labels.gradients and labels.dtype == "float32"


@pytest.mark.parametrize("places", [0, 2, 5])
def test_rounding_is_found(places: int) -> None:
    module = net(torch.float64)
    assert fl.probe(lambda x: 10 * module(x).round(decimals=places) / 10).decimals == places
    soft = fl.probe(lambda x: torch.softmax(module(x), 1).round(decimals=2))
    assert (soft.output_kind, soft.decimals) == ("probabilities", 2)


@pytest.mark.parametrize("sigma", [1e-1, 1e-4])
def test_noise_is_measured_also_where_asking_again_does_not_show_it(sigma: float) -> None:
    rng = fl.generator(3)
    module = net()

    def fresh(x: Tensor) -> Tensor:
        return module(x) + sigma * torch.randn(len(x), 4, generator=rng)

    found = fl.probe(fresh)
    assert not found.deterministic and 0.7 * sigma < found.noise < 1.4 * sigma
    sticky = fl.probe(Noisy(source_of(module.double(), "values"), sigma).answer, dim=12)
    assert sticky.deterministic and 0.7 * sigma < sticky.noise < 1.4 * sigma


def test_a_small_budget_is_a_status_with_what_was_found() -> None:
    found = fl.probe(net(), budget=100)
    assert found.status.code == "budget" and found.queries <= 100
    assert found.output_kind == "logits" and found.rows_per_second is None
