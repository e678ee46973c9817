"""A target made of known images: the audit finds its span, scores what comes out against the null, and shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from leaky import PUBLIC, TARGET, TRAIN, UNSEEN, digits

import foldline as fl
from foldline.auditing.judging import judge
from foldline.auditing.subjects import Owner


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("leak")
    x = digits()
    for name, rows in (("train", x[TRAIN]), ("unseen", x[UNSEEN]), ("public", x[PUBLIC])):
        np.savez(folder / f"{name}.npz", x=rows.numpy())
    reference = {"train": str(folder / "train.npz"), "unseen": str(folder / "unseen.npz"),
                 "inputs": str(folder / "public.npz"), "image_shape": [28, 28], "mean": 0.0}
    return fl.audit({"version": 1, "name": "leaky", "target": TARGET, "access": ["values", "gradients"],
                     "methods": ["span", "reconstruct"], "defences": ["bits-4"],
                     "reference": reference}, folder / "out")


def test_the_span_is_that_of_the_images(done: Any) -> None:
    span = next(f for f in done.findings if f.id == "span")
    assert span.numbers["rank"] == 12


def test_the_score_comes_with_its_null_and_its_pictures(done: Any) -> None:
    found = next(f for f in done.findings if f.id == "training-data")
    kinds = {e.kind for e in found.evidence}
    assert {"null", "interval"} <= kinds and found.numbers["of"] == 12
    assert found.numbers["count"] > found.numbers["by_chance"] and found.state == "shown"
    pictures = done.document.figure("reconstruct-pictures")
    assert [r.label for r in pictures.rows] == ["Training image", "Recovered", "Closest unseen image"]
    assert pictures.private and done.document.hero == "reconstruct-pictures"
    assert f"{found.numbers['count']:.0f} of its 12 training images" in done.document.headline


def test_nothing_is_asked_twice_for_the_reconstruction(done: Any) -> None:
    rows = {r.stage: r.rows for r in done.document.ledger.rows}
    assert list(rows) == ["The span of the training data"]
    assert next(f for f in done.findings if f.id == "training-data").cost.rows == sum(rows.values())


def test_defences_are_scored_the_same_way(done: Any) -> None:
    rows = {r.name: r for r in done.document.defences.rows}
    assert rows["no defence"].rank == 12 and rows["no defence"].of == 12
    assert rows["4 bits"].explanation_change > 0


def test_the_null_of_a_judge_that_is_given_unseen_images_is_not_a_finding() -> None:
    x = digits()
    verdict = judge(x[40:52], Owner(x[TRAIN], x[UNSEEN]), mean_known=True)
    assert verdict.count <= 4
    exact = judge(x[TRAIN], Owner(x[TRAIN], x[UNSEEN]), mean_known=True)
    assert exact.count == 12 and exact.null_count <= 1


def test_without_the_owners_data_candidates_are_shown_and_not_called_training_data(tmp_path: Path) -> None:
    found = fl.audit({"version": 1, "name": "leaky", "target": TARGET, "access": ["gradients"], "methods":
                      ["span", "reconstruct"], "reference": {"image_shape": [28, 28]}}, tmp_path)
    said = next(f for f in found.findings if f.id == "training-data")
    assert said.state == "incomplete" and "cannot be told" in said.what
    assert found.document.figure("reconstruct-pictures").title.startswith("Candidates")
    assert torch.get_default_dtype() == torch.float32
