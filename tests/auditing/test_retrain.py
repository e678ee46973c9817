"""Defences of training on an owner's own model: trained anew and attacked like it, or refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import PROBABILITY, TARGET, network

import foldline as fl
from foldline.auditing.retrain import why_not
from foldline.auditing.spec import AuditFile
from foldline.auditing.subjects import Owner, Subject, local
from foldline.errors import BadFile


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, Any]:
    """Training rows that the tiny network classifies as their labels say, as many unseen ones, and inputs."""
    x = torch.randn(90, 12, generator=fl.generator(0), dtype=torch.float64)
    y = (network()(x)[:, 0] >= 0).long()
    np.savez(tmp_path / "train.npz", x=x[:30].numpy(), y=y[:30].numpy())
    np.savez(tmp_path / "other.npz", x=x[:30].numpy(), y=1 - y[:30].numpy())
    np.savez(tmp_path / "plain.npz", x=x[:30].numpy())
    np.savez(tmp_path / "unseen.npz", x=x[30:60].numpy())
    np.savez(tmp_path / "inputs.npz", x=x[60:].numpy())
    return {"folder": tmp_path, "unseen": str(tmp_path / "unseen.npz"), "inputs": str(tmp_path / "inputs.npz")}


def audited(rows: dict[str, Any], train: str, out: str, defences: list[str], target: str = TARGET) -> Any:
    reference = {"train": str(rows["folder"] / train), "unseen": rows["unseen"], "inputs": rows["inputs"]}
    return fl.audit({"version": 1, "name": "tiny", "target": target, "access": ["values", "gradients", "weights"],
                     "methods": ["span"], "defences": defences, "reference": reference}, rows["folder"] / out)


def test_the_same_layers_are_trained_anew_and_attacked(rows: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(rows, "train.npz", "out", ["adam", "dp-sgd"])
    defences = {r.name: r for r in found.document.defences.rows}
    assert defences["Adam"].rank and defences["Adam"].output_change > 0
    assert defences["Adam"].decisions_changed < 0.5 and "epsilon" in defences["DP-SGD"].description
    kept = rows["folder"] / "out" / "run" / "victims"
    assert (kept / "adam" / "retrained.safetensors").is_file()
    for stage in (rows["folder"] / "out" / "run" / "stages").glob("defence-adam*"):
        stage.unlink()
    monkeypatch.setattr("foldline.victims.fit.fit", None)                   # a second training would fail
    again = audited(rows, "train.npz", "out", ["adam", "dp-sgd"])
    assert again.document.comparable() == found.document.comparable()


def test_labels_must_belong_to_the_rows(rows: dict[str, Any]) -> None:
    x = np.load(rows["folder"] / "plain.npz")["x"]
    for y in (np.zeros(7), np.full(30, 0.5)):
        np.savez(rows["folder"] / "odd.npz", x=x, y=y)
        with pytest.raises(BadFile, match="labels must be 30 whole numbers"):
            audited(rows, "odd.npz", "out", ["adam"])


def test_the_audited_output_is_the_one_that_is_attacked(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2, dtype=torch.float64)
    for output in (0, 1):
        audit = AuditFile(version=1, target=TARGET, output=output)
        row = local(net, "gradient", audit).answer(torch.zeros(1, 3, dtype=torch.float64))
        assert torch.allclose(row[0, -3:], net.weight[output].detach())


@pytest.mark.parametrize(("train", "target", "why"), [
    ("plain.npz", TARGET, "with its labels"), ("other.npz", TARGET, "0% of the given training rows right"),
    ("train.npz", PROBABILITY, "answers probabilities")])
def test_what_cannot_be_trained_anew_says_why(rows: dict[str, Any], train: str, target: str, why: str) -> None:
    found = audited(rows, train, "out", ["adam"], target)
    row = next(r for r in found.document.defences.rows if r.name == "Adam")
    assert row.status.startswith("Not tried.") and why in row.status and row.rank is None


def test_layers_that_cannot_be_started_are_named() -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    odd = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 1))
    owner = Owner(x, x, train_labels=torch.zeros(2, dtype=torch.int64))
    subject = Subject("odd", "odd", ("weights",), lambda kind: None, owner=owner, module=odd)   # type: ignore
    assert "start the others anew" in why_not(subject)
    assert "as weights" in why_not(Subject("far", "far", ("values",), lambda kind: None))       # type: ignore
