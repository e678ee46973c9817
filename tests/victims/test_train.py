"""Recipes: the small start reaches its KKT point, weight decay leaves the span, runs resume bit for bit."""

from __future__ import annotations

import dataclasses
import math
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from foldline.errors import BadFile, BadInput, FoldlineError, Refused
from foldline.networks.presets import build
from foldline.randomness import Streams, generator
from foldline.victims import fit as fit_module
from foldline.victims.datasets import Dataset, load_dataset
from foldline.victims.fit import fit
from foldline.victims.kkt_report import kkt_report, largest_gap, report_of
from foldline.victims.recipes import EVERYDAY, PRESETS, SMALL_START, Recipe, preset
from foldline.victims.train import train_victim

NARROW = {"widths": (40, 40)}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_weight_decay_leaves_the_span_of_the_training_rows() -> None:
    """The spectrum of [W1, b1] falls exactly at n, and its row space is the rows' own."""
    recipe = dataclasses.replace(EVERYDAY, weight_decay=0.02, steps=1200)           # 6e-6 of the start is left
    v = train_victim("everyday", rng=generator(0), n=12, data_set="mnist5k", recipe=recipe, arguments=NARROW)
    report = report_of(v)
    assert report is not None and report["gap_at"] == 12 and report["gap_ratio"] > 1000
    assert report["above_edge"] == 12
    W1 = torch.cat([v.module[0].weight, v.module[0].bias[:, None]], 1).double()
    span = torch.cat([v.inputs.double(), torch.ones(12, 1)], 1)                     # (n, d + 1)
    Q = torch.linalg.qr(span.T).Q
    outside = (W1 - W1 @ Q @ Q.T).norm() / W1.norm()
    assert float(outside) < 1e-4
    assert report["residual_per_layer"][0] < 0.2                                    # stationary: decay balances loss


def test_small_start_reaches_its_loss_on_the_way_of_the_gradient_flow(digits: Dataset) -> None:
    v = train_victim("small-start", rng=generator(0), n=10, data_set=digits, arguments={"widths": (100, 100)})
    assert v.info["reached"] and v.info["train_loss"] <= 1e-6 and v.info["steps"] < 400
    assert v.info["train_accuracy"] == 1.0
    # Half the step, twice the steps: the same network up to the size of a step.
    fine = train_victim("small-start", rng=generator(0), n=10, data_set=digits, arguments={"widths": (100, 100)},
                        recipe=dataclasses.replace(SMALL_START, drop=0.05))
    a, b = v.module[0].weight.flatten(), fine.module[0].weight.flatten()
    assert float(torch.cosine_similarity(a, b, dim=0)) > 0.99
    report = report_of(v)
    assert report is not None and report["separated"] and report["residual_per_layer"][0] < 0.5


@pytest.mark.parametrize("changes", [
    {}, {"batch": 5}, {"weight_decay": 0.0}, {"momentum": 0.0, "inputs": "raw"},
    {"optimiser": "log-loss", "lr": 0.5, "first_layer_std": 1e-4}])
def test_training_in_the_span_is_the_same_training(digits: Dataset, changes: dict[str, object]) -> None:
    recipe = dataclasses.replace(EVERYDAY, steps=200, dtype="float64", **changes)
    ask = {"n": 12, "data_set": digits, "recipe": recipe, "arguments": NARROW}
    plain = train_victim("everyday", rng=generator(3), **ask)
    fast = train_victim("everyday", rng=generator(3), in_span=True, **ask)
    for p, q in zip(plain.module.parameters(), fast.module.parameters(), strict=True):
        assert float((p - q).abs().max()) < 1e-10 * float(p.abs().max())
    assert math.isclose(plain.info["train_loss"], fast.info["train_loss"], rel_tol=1e-8)
    assert fast.info["in_span"] and "in_span" not in plain.info


@pytest.mark.parametrize(("name", "changes"), [("adamw", {}), ("dp-sgd", {}), ("conv", {"optimiser": "sgd"})])
def test_training_in_the_span_is_refused_where_it_is_not_the_same(digits: Dataset, name: str,
                                                                  changes: dict[str, object]) -> None:
    recipe = dataclasses.replace(preset(name).recipe, **changes)
    with pytest.raises(Refused, match="span"):
        train_victim(name, rng=generator(0), n=20, data_set=digits, recipe=recipe, in_span=True)


@pytest.mark.parametrize(("changes", "in_span"), [
    ({}, False), ({}, True), ({"batch": 5}, False), ({"optimiser": "adamw", "momentum": 0.0}, False),
    ({"optimiser": "log-loss"}, False), ({"batch": 4, "noise_multiplier": 1.0}, False)])
def test_an_interrupted_run_ends_bit_for_bit_the_same(digits: Dataset, tmp_path: Path, changes: dict[str, object],
                                                      in_span: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if "noise_multiplier" in changes:
        pytest.importorskip("opacus")
    recipe = dataclasses.replace(EVERYDAY, steps=40, **changes)
    ask = {"n": 12, "data_set": digits, "recipe": recipe, "arguments": NARROW, "in_span": in_span}
    whole = train_victim("everyday", rng=generator(5), **ask)
    monkeypatch.setattr(fit_module, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(fit_module, "REPORT_SECONDS", 0.0)
    seen: list[float] = []

    def stop(stage: str, numbers: object) -> None:
        seen.append(0)
        if len(seen) == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_victim("everyday", rng=generator(5), checkpoint=tmp_path / "c.safetensors", progress=stop, **ask)
    steps: list[float] = []
    again = train_victim("everyday", rng=generator(5), checkpoint=tmp_path / "c.safetensors",
                         progress=lambda stage, numbers: steps.append(numbers.get("done", 0)), **ask)
    assert min(s for s in steps if s) > 10                                          # it did not start again
    assert same(whole.module, again.module)
    assert not (tmp_path / "c.safetensors").exists()


def test_ctrl_c_keeps_every_step(digits: Dataset, tmp_path: Path) -> None:
    """The signal comes in the middle of a run; the checkpoint is of a whole step, and the run goes on from it."""
    ask = {"n": 12, "data_set": digits, "recipe": EVERYDAY.changed(steps=300), "arguments": NARROW}
    file, seen = tmp_path / "c.safetensors", []

    def interrupt(stage: str, numbers: object) -> None:
        if stage == "training" and not seen:
            seen.append(1)
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "REPORT_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            train_victim("everyday", rng=generator(5), checkpoint=file, progress=interrupt, **ask)
    assert file.exists() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = train_victim("everyday", rng=generator(5), checkpoint=file, **ask)
    assert same(again.module, train_victim("everyday", rng=generator(5), **ask).module)


def test_a_checkpoint_of_another_run_or_a_broken_one_is_an_error(digits: Dataset, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "CHECKPOINT_SECONDS", 0.0)
    file = tmp_path / "c.safetensors"
    x, y = digits.rows(slice(0, 8), torch.float32), digits.y[:8] % 2
    recipe = EVERYDAY.changed(steps=3)

    def run(seed: int) -> None:
        net = build("mlp", input_shape=(64,), outputs=1, widths=(5,), rng=generator(0))
        fit(net, x, y, recipe, streams=Streams(generator(seed)), checkpoint=file)

    run(0)
    from foldline.victims.checkpoints import save_checkpoint
    save_checkpoint(file, build("mlp", input_shape=(64,), outputs=1, widths=(5,)), None, 1, "another")
    with pytest.raises(BadFile, match="another run"):
        run(0)
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(BadFile, match="cannot be read"):
        run(0)


def test_the_same_seed_gives_the_same_rows_whatever_the_recipe(digits: Dataset) -> None:
    quick = EVERYDAY.changed(steps=1)
    a = train_victim("everyday", rng=generator(1), n=10, data_set=digits, recipe=quick, arguments=NARROW)
    b = train_victim("adamw", rng=generator(1), n=10, data_set=digits, recipe=quick.changed(inputs="raw"))
    assert torch.equal(a.data.x, b.data.x)
    assert not torch.equal(a.data.x, train_victim("everyday", rng=generator(2), n=10, data_set=digits, recipe=quick,
                                                  arguments=NARROW).data.x)


@pytest.mark.parametrize(("inputs", "mean"), [("mean", None), ("raw", 0.0), ("0.5", 0.5)])
def test_inputs_are_centred_as_the_recipe_says(digits: Dataset, inputs: str, mean: float | None) -> None:
    v = train_victim("everyday", rng=generator(1), n=10, data_set=digits, arguments=NARROW,
                     recipe=EVERYDAY.changed(steps=0, inputs=inputs))
    expected = v.data.x.mean(0) if mean is None else torch.full((64,), mean, dtype=torch.float64)
    assert torch.allclose(v.mean, expected) and v.info["mean"] == v.mean.tolist()
    assert torch.allclose(v.inputs, (v.data.x - expected).float())


def test_supervised_target_learns_all_of_digits(digits: Dataset) -> None:
    v = train_victim("logistic", rng=generator(0), data_set=digits, recipe=preset("logistic").recipe.changed(epochs=20))
    assert v.info["n"] == 1438 and v.info["test_accuracy"] > 0.85


@pytest.mark.parametrize("name", ["vgg11", "resnet18"])
def test_deep_convolutional_targets_learn(digits: Dataset, name: str) -> None:
    v = train_victim(name, rng=generator(0), data_set=digits, arguments={"width": 4},
                     recipe=preset(name).recipe.changed(epochs=8))
    assert v.info["test_accuracy"] > 0.75


def test_ten_classes_and_convolutions_train(digits: Dataset) -> None:
    v = train_victim("everyday-ten", rng=generator(0), n=20, data_set=digits, arguments=NARROW,
                     recipe=preset("everyday-ten").recipe.changed(steps=400))
    assert v.info["train_accuracy"] == 1.0 and v.data.outputs == 10
    assert report_of(v) is not None
    conv = train_victim("conv", rng=generator(0), n=20, data_set=digits, arguments={"width": 4},
                        recipe=preset("conv").recipe.changed(epochs=3))
    assert report_of(conv) is None                                                  # no algebra for convolutions


def test_private_training_says_its_epsilon(digits: Dataset) -> None:
    pytest.importorskip("opacus")
    recipe = preset("dp-sgd").recipe.changed(steps=20)
    v = train_victim("dp-sgd", rng=generator(0), n=40, data_set=digits, recipe=recipe, arguments=NARROW)
    noisier = train_victim("dp-sgd", rng=generator(0), n=40, data_set=digits, arguments=NARROW,
                           recipe=dataclasses.replace(recipe, noise_multiplier=4.0))
    assert 0 < noisier.info["epsilon"] < v.info["epsilon"] < math.inf
    assert not same(v.module, noisier.module)
    assert not any(m._forward_hooks for m in v.module.modules())                    # opacus left nothing behind
    with pytest.raises(Refused, match="batch normalisation"):
        train_victim("resnet18", rng=generator(0), n=10, data_set=digits, recipe=recipe, arguments={"width": 1})


def test_divergence_and_impossible_recipes_are_errors(digits: Dataset) -> None:
    with pytest.raises(FoldlineError, match="diverged"):
        train_victim("everyday", rng=generator(0), n=10, data_set=digits, arguments=NARROW,
                     recipe=EVERYDAY.changed(lr=1e6, steps=50))
    for wrong in ({"steps": 1, "epochs": 1}, {}, {"steps": 1, "inputs": "half"}, {"steps": 1, "batch": 0},
                  {"steps": 1, "lr": -1.0}, {"steps": 1, "lr": math.nan}, {"steps": -1}, {"steps": 1, "inputs": "nan"},
                  {"steps": 1, "batch": 2, "optimiser": "log-loss"}, {"steps": 1, "batch": 2, "stop_loss": 0.1}):
        with pytest.raises(BadInput, match=r"\.$"):
            Recipe(**wrong)
    with pytest.raises(BadInput, match="everyday"):
        preset("everday")


def test_every_preset_builds() -> None:
    for plan in PRESETS.values():
        shape = {"cifar10": (32, 32, 3)}.get(plan.data_set, (28, 28))
        net = build(plan.network, input_shape=shape, outputs=10 if plan.task == "ten" else 1,
                    **{**plan.arguments, **({"width": 2} if plan.network in ("vgg11", "resnet18") else {})})
        assert net.preset["name"] == plan.network


def test_kkt_report_by_hand_and_against_explicit_gradients() -> None:
    # One linear layer on two points: theta = 1 x_1 - 2 x_2 is stationary with multipliers (1, 2).
    x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64), torch.tensor([1, 0])
    net = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -2.0]]))
    report = kkt_report(net, x, y)
    assert report.residual < 1e-7 and report.active == 2 and report.margin_min == 1.0 and report.margin_max == 2.0
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 2.0]]))                             # the second multiplier must be 0
    assert kkt_report(net, x, y).residual == pytest.approx(2 / math.sqrt(5))

    net = build("mlp", input_shape=(6,), outputs=3, widths=(7, 5), rng=generator(0), dtype=torch.float64)
    x, y = torch.randn(4, 6, generator=generator(1), dtype=torch.float64), torch.tensor([0, 2, 1, 0])
    report = kkt_report(net, x, y)
    columns = []
    for i in range(4):                                                              # the slow and obvious twin
        for k in range(3):
            if k != int(y[i]):
                out = net(x[i:i + 1])[0]
                columns.append(torch.cat([g.flatten() for g in torch.autograd.grad(out[y[i]] - out[k],
                                                                                   list(net.parameters()))]))
    from scipy.optimize import nnls
    theta = torch.cat([p.detach().flatten() for p in net.parameters()])
    _, distance = nnls(torch.stack(columns, 1).numpy(), theta.numpy())
    assert report.residual == pytest.approx(distance / float(theta.norm()), rel=1e-9)


def test_gap_of_a_spectrum() -> None:
    assert largest_gap(torch.tensor([4.0, 2.0, 0.1, 0.09]).double()) == (2, pytest.approx(20.0))
    assert largest_gap(torch.tensor([1.0, 1e-20, 1e-30]).double())[0] == 1          # below rounding there is no gap
