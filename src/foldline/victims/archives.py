"""MNIST and CIFAR-10 as they lie on disk: npz archives, IDX files, and both layouts of the CIFAR-10 batches.

torchvision keeps CIFAR-10 as Python pickles. They are never unpickled: `pickletools` lists their opcodes without
running any, and the pixels and labels are among the constants. A file made to run code therefore runs nothing.
"""

from __future__ import annotations

import gzip
import pickletools
import struct
import zipfile
from pathlib import Path

import numpy as np

from foldline.errors import BadFile

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]      # x, y, x_test, y_test
CIFAR_BYTES = 32 * 32 * 3
INTEGERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1")


def read_npz(path: Path, name: str, image_shape: tuple[int, ...]) -> Arrays | None:
    file = path if path.suffix == ".npz" else path / f"{name}.npz"
    if not file.is_file():
        return None
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as z:
            x, y, x_test, y_test = (z[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise BadFile(f"{file} must hold plain arrays x_train, y_train, x_test and y_test: {error}.") from error
    for images, labels in ((x, y), (x_test, y_test)):
        if images.dtype != np.uint8 or images.shape != (len(labels), *image_shape):
            raise BadFile(f"{file} holds images {images.dtype} {images.shape}; uint8 {('n', *image_shape)} with as "
                          f"many labels was expected.")
        check_labels(labels, file)
    return x, y.reshape(-1).astype(np.int64), x_test, y_test.reshape(-1).astype(np.int64)


def check_labels(labels: np.ndarray, file: Path) -> None:
    if len(labels) == 0 or labels.min() < 0 or labels.max() > 9:
        raise BadFile(f"{file} must hold labels from 0 to 9.")


def read_mnist(path: Path) -> Arrays | None:
    for folder in (path, path / "raw", path / "MNIST" / "raw"):
        names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        files = [next((f for f in (folder / name, folder / f"{name}.gz") if f.is_file()), None) for name in names]
        if any(files):
            break
    else:
        return None
    arrays = []
    for name, file in zip(names, files, strict=True):
        if file is None:
            raise BadFile(f"{folder} holds some of MNIST's four files, but not {name} (or {name}.gz).")
        arrays.append(read_idx(file))
    x, y, x_test, y_test = arrays
    for images, labels in ((x, y), (x_test, y_test)):
        if images.shape != (len(labels), 28, 28):
            raise BadFile(f"The MNIST files in {folder} hold images {images.shape} and {len(labels)} labels.")
        check_labels(labels, folder)
    return x, y.astype(np.int64), x_test, y_test.astype(np.int64)


def read_idx(file: Path) -> np.ndarray:
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError) as error:
        raise BadFile(f"{file} cannot be read: {error}.") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or len(raw) < 4 + 4 * raw[3]:
        raise BadFile(f"{file} is not an IDX file of bytes.")
    shape = struct.unpack(f">{raw[3]}I", raw[4:4 + 4 * raw[3]])
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if body.size != int(np.prod(shape)):
        raise BadFile(f"{file} says it holds {shape} bytes but has {body.size}: it is truncated or damaged.")
    return body.reshape(shape).copy()               # a view of bytes would be read-only


def read_cifar10(path: Path) -> Arrays | None:
    for folder in (path, path / "cifar-10-batches-bin", path / "cifar-10-batches-py"):
        for suffix, read in ((".bin", read_cifar_binary), ("", read_cifar_opcodes)):
            train = [f for i in range(1, 6) if (f := folder / f"data_batch_{i}{suffix}").is_file()]
            test = folder / f"test_batch{suffix}"
            if not train:
                continue
            if not test.is_file():
                raise BadFile(f"{folder} holds CIFAR-10's training batches, but not {test.name}.")
            parts = [read(f) for f in train]
            x_test, y_test = read(test)
            return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), x_test, y_test
    return None


def read_cifar_binary(file: Path) -> tuple[np.ndarray, np.ndarray]:
    raw = np.frombuffer(file.read_bytes(), np.uint8)
    if raw.size == 0 or raw.size % (1 + CIFAR_BYTES):
        raise BadFile(f"{file} is not a whole number of CIFAR-10 records ({1 + CIFAR_BYTES} bytes each).")
    records = raw.reshape(-1, 1 + CIFAR_BYTES)
    check_labels(records[:, 0], file)
    return channels_last(records[:, 1:]), records[:, 0].astype(np.int64)


def read_cifar_opcodes(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The dictionary {labels: [...], data: array, ...}, read off the pickle's constants."""
    labels: list[int] = []
    pixels, in_labels = b"", False
    try:
        for opcode, argument, _ in pickletools.genops(file.read_bytes()):
            if isinstance(argument, (str, bytes)):
                # Python 2 wrote the array as a byte string (shown as str by some opcodes), Python 3 as latin-1 text.
                as_bytes = argument if isinstance(argument, bytes) else argument.encode("latin-1", "replace")
                in_labels = as_bytes == b"labels"
                pixels = max(pixels, as_bytes, key=len)
            elif in_labels and opcode.name in INTEGERS:         # other opcodes' arguments are memo indices
                labels.append(int(str(argument)))
    except (ValueError, OSError) as error:
        raise BadFile(f"{file} is not a CIFAR-10 batch: {error}.") from error
    count = len(pixels) // CIFAR_BYTES
    if count == 0 or len(pixels) % CIFAR_BYTES or len(labels) != count:
        raise BadFile(f"{file} is not a CIFAR-10 batch: {len(pixels)} pixel bytes and {len(labels)} labels were found. "
                      f"The binary version (cifar-10-batches-bin) or an npz archive can be used instead.")
    y = np.array(labels, np.int64)
    check_labels(y, file)
    return channels_last(np.frombuffer(pixels, np.uint8).reshape(count, CIFAR_BYTES)), y


def channels_last(planes: np.ndarray) -> np.ndarray:
    return planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy()
