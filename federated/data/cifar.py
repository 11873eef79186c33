"""Loads CIFAR-10 and CIFAR-100 in their binary version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .dataset import Dataset
from .errors import DataError
from .folder import find

_SOURCE = "the binary version at https://www.cs.toronto.edu/~kriz/cifar.html"
_IMAGE = (3, 32, 32)
_IMAGE_BYTES = 3072


def cifar10(*, path: Path) -> Dataset:
    """Load CIFAR-10 (Krizhevsky 2009): data_batch_1.bin to data_batch_5.bin and test_batch.bin.

    `path` is the folder of these files, or the one that holds `cifar-10-batches-bin`. Samples have
    the shape (3, 32, 32) and are in [0, 1]. Raises `DataError`.
    """
    folder = _inside(path, "cifar-10-batches-bin")
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return _load("cifar10", folder, batches, "test_batch.bin", labels=1, column=0, classes=10)


def cifar100(*, path: Path, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """Load CIFAR-100 (Krizhevsky 2009): train.bin and test.bin, by 100 fine or 20 coarse labels.

    `path` is the folder of these files, or the one that holds `cifar-100-binary`. Samples have the
    shape (3, 32, 32) and are in [0, 1]. Raises `DataError`.
    """
    folder = _inside(path, "cifar-100-binary")
    column, classes = (1, 100) if labels == "fine" else (0, 20)
    return _load(
        "cifar100", folder, ["train.bin"], "test.bin", labels=2, column=column, classes=classes
    )


def _load(
    name: str,
    folder: Path,
    train: Sequence[str],
    test: str,
    *,
    labels: int,
    column: int,
    classes: int,
) -> Dataset:
    paths = [find(name, folder, [file], _SOURCE) for file in (*train, test)]
    x, y = _read(name, paths[:-1], labels, column)
    test_x, test_y = _read(name, paths[-1:], labels, column)
    return Dataset(name=name, x=x, y=y, num_classes=classes, test_x=test_x, test_y=test_y)


def _read(
    name: str, paths: Sequence[Path], labels: int, column: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read records of `labels` label bytes and an image; take the label in `column`."""
    record_bytes = labels + _IMAGE_BYTES
    counts = [_count(name, path, record_bytes) for path in paths]
    x = np.empty((sum(counts), *_IMAGE), dtype=np.float32)
    y = np.empty(sum(counts), dtype=np.int64)
    first = 0
    for path, count in zip(paths, counts, strict=True):
        records = np.fromfile(path, dtype=np.uint8).reshape(count, record_bytes)
        rows = slice(first, first + count)
        y[rows] = records[:, column]
        np.divide(records[:, labels:].reshape(count, *_IMAGE), np.float32(255), out=x[rows])
        first += count
    return x, y


def _count(name: str, path: Path, record_bytes: int) -> int:
    size = path.stat().st_size
    count, rest = divmod(size, record_bytes)
    if rest or not count:
        raise DataError(
            name, f"{path} has {size} bytes, which is not a number of records of {record_bytes}"
        )
    return count


def _inside(path: Path, name: str) -> Path:
    return path / name if (path / name).is_dir() else path
