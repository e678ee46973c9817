"""`foldline reconstruct` as a user meets it: pictures, arrays, scores, and plain words when nothing leaks."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import mixture, network_of, planted
from torch import nn

import foldline as fl


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    from foldline.cli.main import main
    monkeypatch.setattr(sys, "argv", ["foldline", "reconstruct", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "160")
    try:
        main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder as `foldline train` writes it: weights and mean for everybody, the rows for their owner."""
    network, mean, x, unseen = planted(10, h=60)
    fl.save(network, tmp_path / "victim.safetensors")
    (tmp_path / "victim.json").write_text(json.dumps({"mean": mean.tolist(), "image_shape": [28, 28]}))
    labels = np.zeros(10, dtype=np.int64)
    np.savez(tmp_path / "owner.npz", x_train=x.numpy(), y_train=labels, x_unseen=unseen.numpy(), y_unseen=labels,
             mean=mean.numpy(), image_shape=np.array([28, 28]))
    return tmp_path


def test_weights_give_pictures_arrays_and_evidence(victim: Path, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    (victim / "owner.npz").write_bytes(b"no attack may read this")
    out = victim / "out"
    assert run(monkeypatch, victim / "victim.safetensors", "--out", out, "--json", victim / "r.json") == 0
    shown, said = capsys.readouterr()
    assert "10 candidates, best first" in shown and "agreement" in shown
    assert "victim.json, which is public" in said and "10 directions" in said
    with np.load(out / "reconstruction.npz") as z:
        assert z["samples"].shape == z["pixels"].shape == (10, 784) and len(z["weights"]) == 10
        assert float(z["pixels"].min()) > -0.5 and len(z["evidence_exact"]) == 10
    assert size_of(out / "reconstruction.png") == (2 * (10 * 30 + 2), 2 * 32)
    found = json.loads((victim / "r.json").read_text())
    assert found["status"]["ok"] and found["score"] is None and found["estimated_n"] == 10


def test_the_owners_file_gives_scores_and_pairs(victim: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    out = victim / "out"
    assert run(monkeypatch, victim / "victim.safetensors", "--reference", victim / "owner.npz", "--out", out) == 0
    shown, _ = capsys.readouterr()
    assert "recovered at 1 % false positives" in shown and "10 (100%, 95 % interval" in shown
    assert "NCC > 0.99" in shown and "null: training mean" in shown
    # Two bands of two rows: reconstruction over original, and the same for the unseen images.
    assert size_of(out / "reconstruction.png") == (2 * (10 * 30 + 2), 2 * (4 * 30 + 10 + 2))
    assert (out / "quality.png").stat().st_size > 5000


def test_json_on_stdout_is_only_json(victim: Path, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, victim / "victim.safetensors", "--reference", victim / "owner.npz", "--out",
               victim / "out", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["score"]["recovered"] == 1.0


@pytest.mark.parametrize("access", ["gradients", "smoothgrad"])
def test_explanations_chain_span_and_unmixing(victim: Path, access: str, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, victim / "victim.safetensors", "--access", access, "--reference", victim / "owner.npz",
               "--out", victim / "out", "--json", "-", "--run", victim / "run") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["score"]["recovered"] >= 0.8 and 10 <= found["queries"] <= 30
    assert (victim / "run").is_dir()


def test_out_of_budget_writes_what_was_found_and_leaves_with_three(victim: Path, monkeypatch: pytest.MonkeyPatch,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, victim / "victim.safetensors", "--access", "gradients", "--budget", 7, "--out",
               victim / "out") == 3
    assert "budget" in capsys.readouterr().err and (victim / "out" / "reconstruction.npz").exists()


def test_an_untrained_network_leaks_nothing_and_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    network = nn.Sequential(nn.Linear(784, 150), nn.ReLU(), nn.Linear(150, 1))
    with torch.no_grad():
        for p in network.parameters():
            p.copy_((torch.rand(p.shape, generator=fl.generator(0)) - 0.5) / 14)
    fl.save(network, tmp_path / "net.safetensors")
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "net.safetensors") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "Nothing leaks this way (no_gap)" in said and "random start" in said
    assert not (tmp_path / "reconstruction" / "reconstruction.npz").exists()


def test_candidates_that_nothing_confirms_are_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    rows = torch.rand(100, 64, generator=fl.generator(0), dtype=torch.float64)
    fl.save(network_of(mixture(rows, 200)), tmp_path / "net.safetensors")
    assert run(monkeypatch, tmp_path / "net.safetensors", "--out", tmp_path / "out") == 0
    assert "No image is confirmed" in capsys.readouterr().err


def test_the_published_attack_with_a_search_resumes_in_its_folder(victim: Path, monkeypatch: pytest.MonkeyPatch,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    arguments = [victim / "victim.safetensors", "--method", "kkt", "--search", 2, "--seconds", 0, "--out",
                 victim / "out"]
    assert run(monkeypatch, *arguments) == 0
    assert "Best of 2 settings" in capsys.readouterr().err and (victim / "out" / "search.sqlite").exists()
    assert run(monkeypatch, *arguments) == 0


@pytest.mark.parametrize(("arguments", "says"), [
    (["none.safetensors"], "There is no file none.safetensors"),
    (["weights:none.safetensors"], "none.safetensors"),
    (["demo:digits", "--access", "wieghts"], "--access is one of"),
    (["demo:digits", "--method", "ica"], "--method is one of"),
    (["demo:digits", "--image-shape", "8by8"], "8by8"),
    (["demo:digits", "--image-shape", "8x9"], "image_shape (8, 9)"),
    (["demo:digits", "--mean", "no-such.npy"], "there is no file no-such.npy"),
    (["demo:digits", "--box", "1", "0"], "lower end first"),
    (["demo:digits", "--reference", "owner.npz"], "There is no owner file"),
    (["demo:digits", "--search", "3"], "--method kkt"),
    (["demo:digits", "--seconds", "3"], "--seconds belongs to"),
    (["py:quick:f", "--access", "weights"], "not in reach"),
    (["conv.safetensors"], "convolution"),
])
def test_a_mistake_is_one_sentence_and_code_two(arguments: list[str], says: str, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.py").write_text("def f(x):\n    return x.sum(1)\n")
    fl.save(nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 1)),
            tmp_path / "conv.safetensors")
    assert run(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert says in " ".join(err.split()) and "Traceback" not in out + err


def test_the_owners_file_of_another_victim_is_refused(victim: Path, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    network = nn.Sequential(nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 1)).double()
    fl.save(network, victim / "other.safetensors")
    assert run(monkeypatch, victim / "other.safetensors", "--mean", 0, "--image-shape", "8x8", "--reference",
               victim / "owner.npz", "--out", victim / "out") == 2
    assert "another victim" in " ".join(capsys.readouterr().err.split())
