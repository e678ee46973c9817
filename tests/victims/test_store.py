"""What goes to disk: the owner's file is the owner's, folders are whole, the cache trains once."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

import foldline as fl
from foldline.cli.train import command as train_command
from foldline.errors import BadFile, BadInput, Missing
from foldline.randomness import generator
from foldline.victims import cache
from foldline.victims.owner import FIELDS, read_owner_file
from foldline.victims.recipes import EVERYDAY
from foldline.victims.store import ABOUT, OWNER, WEIGHTS, read_victim, write_victim
from foldline.victims.train import Victim, train_victim

NARROW = {"widths": (10, 10)}


@pytest.fixture(scope="module")
def victim() -> Victim:
    return train_victim("everyday", rng=generator(0), n=12, data_set="digits", recipe=EVERYDAY.changed(steps=30),
                        arguments=NARROW)


def test_a_folder_gives_the_victim_back(victim: Victim, tmp_path: Path) -> None:
    write_victim(victim, tmp_path / "v")
    again = read_victim(tmp_path / "v")
    assert torch.equal(again.module(victim.inputs), victim.module(victim.inputs))
    assert torch.equal(again.inputs, victim.inputs) and torch.equal(again.data.x_unseen, victim.data.x_unseen)
    assert torch.equal(fl.load(tmp_path / "v" / WEIGHTS)(victim.inputs), victim.module(victim.inputs))
    assert again.info == json.loads(json.dumps(victim.info))


def test_only_the_owner_can_read_the_training_rows(victim: Victim, tmp_path: Path) -> None:
    write_victim(victim, tmp_path)
    assert stat.S_IMODE((tmp_path / OWNER).stat().st_mode) == 0o600
    assert set(np.load(tmp_path / OWNER, allow_pickle=False).files) == set(FIELDS)
    rows = victim.data.x.numpy()
    for public in (WEIGHTS, ABOUT):                                 # no training row leaves by another file
        data = (tmp_path / public).read_bytes()
        assert rows[0].tobytes() not in data and victim.inputs[0].numpy().tobytes() not in data


def test_broken_owner_files_and_folders_are_sentences(victim: Victim, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no owner file"):
        read_owner_file(tmp_path / OWNER)
    (tmp_path / OWNER).write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(BadFile, match="not an owner file"):
        read_owner_file(tmp_path / OWNER)
    np.savez(tmp_path / OWNER, **{f: np.zeros(3) for f in FIELDS})
    with pytest.raises(BadFile, match="do not fit together"):
        read_owner_file(tmp_path / OWNER)
    with pytest.raises(BadFile, match="victim's folder"):
        read_victim(tmp_path)


def test_the_cache_trains_once_and_tells_requests_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOLDLINE_CACHE", str(tmp_path))
    quick = EVERYDAY.changed(steps=20)
    first = cache.victim("everyday", "digits", 12, 0, recipe=quick, arguments=NARROW)
    assert first.info["kkt"]["gap_at"] >= 1

    def never(*a: object, **k: object) -> Victim:
        raise AssertionError("trained twice")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "train_victim", never)
        again = cache.victim("everyday", "digits", 12, 0, recipe=quick, arguments=NARROW)
        assert torch.equal(first.module(first.inputs), again.module(again.inputs))
    for other in ({"seed": 1}, {"n": 13}, {"recipe": quick.changed(steps=21)}):
        request = {"name": "everyday", "data_set": "digits", "n": 12, "seed": 0, "recipe": quick, "arguments": NARROW}
        assert cache.folder_of(**{**request, **other}) != cache.folder_of(**request)


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "victim"
    done = subprocess.run(
        [sys.executable, "-m", "foldline", "train", "everyday", "--data-set", "digits", "--n", "12", "--steps", "20",
         "--width", "10", "--out", str(out), "--json", "-"],
        capture_output=True, text=True, check=False, env={"PATH": "", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n"] == 12 and "Wrote" in done.stderr
    assert {p.name for p in out.iterdir()} == {WEIGHTS, ABOUT, OWNER}
    with pytest.raises(BadInput, match="finished victim"):
        train_command("everyday", out=out)


def test_the_commands_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOLDLINE_DATA", raising=False)
    with pytest.raises(BadInput, match="Did you mean 'everyday'"):
        train_command("everday", out=tmp_path)
    with pytest.raises(BadInput, match="--out"):
        train_command("everyday")
    with pytest.raises(Missing, match="Three ways"):
        train_command("everyday", data_set="cifar10", data=tmp_path, out=tmp_path / "v")
    assert not (tmp_path / "v").exists()
    with pytest.raises(BadInput, match="width"):
        train_command("logistic", width=3, out=tmp_path / "v")
    with pytest.raises(BadInput, match="not both"):
        train_command("everyday", steps=3, epochs=3, out=tmp_path / "v")


def test_a_loss_that_was_not_reached_ends_with_code_3(tmp_path: Path) -> None:
    with pytest.raises(typer.Exit) as ended:
        train_command("small-start", data_set="digits", n=10, width=10, steps=2, out=tmp_path / "v")
    assert ended.value.exit_code == 3 and (tmp_path / "v" / WEIGHTS).exists()
