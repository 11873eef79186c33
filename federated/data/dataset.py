"""A data set: labelled samples in memory, checked once, identified by a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpilot.federated.core.randomness import Purpose, stream

from .errors import DataError

Samples = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]
Labels = NDArray[np.int64]

_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Samples, their class labels and, where the data has them, client ids and further columns.

    Raises `DataError` for an array that breaks the rules below. Nothing is copied or converted.
    """

    name: str
    x: Samples
    """Samples, shape (n, *input_shape): finite numbers in float32 (or float64 on request), or
    tokens from 0, int64. Images have the shape (channels, height, width), texts (length,).
    """
    y: Labels
    """Class labels in [0, num_classes), shape (n,), int64."""
    num_classes: int
    client_ids: NDArray[np.str_] | None = None
    """The id of each sample's client, shape (n,), or None."""
    test_x: Samples | None = None
    """The data's own test samples, if any; like `x`."""
    test_y: Labels | None = None
    """Their labels; like `y`."""
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    """Further facts about each sample by name, such as its hospital; shape (n,) each."""

    def __post_init__(self) -> None:
        if self.num_classes < 1:
            raise self._wrong(f"num_classes is 1 at least, found {self.num_classes}")
        self._check_samples("x", self.x, "y", self.y)
        if not len(self.x):
            raise self._wrong("there are no samples")
        if (self.test_x is None) != (self.test_y is None):
            there = "test_y" if self.test_x is None else "test_x"
            raise self._wrong(f"test_x and test_y come together, found only {there}")
        if self.test_x is not None and self.test_y is not None:
            self._check_samples("test_x", self.test_x, "test_y", self.test_y)
            if (self.test_x.shape[1:], self.test_x.dtype) != (self.x.shape[1:], self.x.dtype):
                raise self._wrong(
                    f"test samples are {_shape_and_type(self.test_x[:1])} each, "
                    f"the others {_shape_and_type(self.x[:1])}"
                )
        if self.client_ids is not None:
            self._check_text("client_ids", self.client_ids)
        for name, column in self.columns.items():
            self._check_text(name, column)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over everything but the name, in little-endian bytes."""
        sha = hashlib.sha256(f"dataset 1 classes {self.num_classes}".encode())
        for role in ("x", "y", "test_x", "test_y"):
            if (array := getattr(self, role)) is not None:
                sha.update(f";{role} {array.dtype.name} {array.shape};".encode())
                for block in _blocks(array):
                    sha.update(block.astype(block.dtype.newbyteorder("<"), copy=False).tobytes())
        if self.client_ids is not None:
            sha.update(b";client_ids;")
            sha.update(_told(self.client_ids))
        for name in sorted(self.columns):
            sha.update(f";column {len(name)} {name};".encode() + _told(self.columns[name]))
        return sha.hexdigest()

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Dataset:
        """Some of the samples with their labels, clients and columns; a test set stays whole."""
        ids = self.client_ids
        return replace(
            self,
            x=self.x[chosen],
            y=self.y[chosen],
            client_ids=None if ids is None else ids[chosen],
            columns={name: column[chosen] for name, column in self.columns.items()},
        )

    def _check_text(self, role: str, found: object) -> None:
        array = self._array(role, found)
        if array.dtype.kind != "U" or array.shape != self.y.shape:
            raise self._wrong(
                f"{role} is text of shape {self.y.shape}, found {_shape_and_type(array)}"
            )

    def _check_samples(self, x_role: str, x: Samples, y_role: str, y: Labels) -> None:
        self._array(x_role, x)
        self._array(y_role, y)
        if x.ndim < 2 or x.dtype not in (np.float32, np.float64, np.int64):
            raise self._wrong(
                f"{x_role} is float32, or int64 if it is tokens, of shape (samples, ...), found "
                f"{_shape_and_type(x)}"
            )
        if y.dtype != np.int64 or y.shape != x.shape[:1]:
            raise self._wrong(
                f"{y_role} is int64 of shape {x.shape[:1]}, found {_shape_and_type(y)}"
            )
        if len(y) and not (y.min() >= 0 and y.max() < self.num_classes):
            raise self._wrong(
                f"labels in {y_role} are 0 to {self.num_classes - 1}, found {y.min()} to {y.max()}"
            )
        tokens = x.dtype == np.int64
        first = 0
        for block in _blocks(x):
            good = block >= 0 if tokens else np.isfinite(block)
            if not good.all():
                bad = first + int((~good.reshape(len(block), -1).all(axis=1)).argmax())
                what = "negative" if tokens else "not finite"
                raise self._wrong(f"{x_role} is {what} in sample {bad}")
            first += len(block)

    def _array(self, role: str, found: object) -> NDArray[Any]:
        if not isinstance(found, np.ndarray):
            raise self._wrong(f"{role} is a NumPy array, found {type(found).__name__}")
        return found

    def _wrong(self, problem: str) -> DataError:
        return DataError(self.name, problem)


class Split(NamedTuple):
    """A data set to train on and the samples to test on."""

    train: Dataset
    test_x: Samples
    test_y: Labels


def split(dataset: Dataset, test_fraction: float, seed: int) -> Split:
    """Split the samples into training and test samples.

    A test set of the data's own is used as it is. Otherwise `test_fraction`, in [0, 1), of each
    label's samples are held out at random: at least one of a label with two, never all of them, and
    never a client's last. Raises `DataError`.
    """
    if dataset.test_x is not None and dataset.test_y is not None:
        train = replace(dataset, test_x=None, test_y=None)
        return Split(train, dataset.test_x, dataset.test_y)
    if not 0 <= test_fraction < 1:
        raise DataError(dataset.name, f"test_fraction is in [0, 1), found {test_fraction}")
    held_out = _held_out(dataset, test_fraction, stream(seed, Purpose.SPLIT))
    if not held_out.any():
        return Split(dataset, dataset.x[:0], dataset.y[:0])
    return Split(dataset.rows(~held_out), dataset.x[held_out], dataset.y[held_out])


def _held_out(dataset: Dataset, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    held_out = np.zeros(len(dataset.y), dtype=np.bool_)
    if fraction == 0:
        return held_out
    for label in np.unique(dataset.y):
        members = np.flatnonzero(dataset.y == label)
        wanted = int(np.rint(fraction * len(members)))
        count = min(max(wanted, 1), len(members) - 1)
        held_out[rng.permutation(members)[:count]] = True
    if dataset.client_ids is not None:
        _, firsts, owner = np.unique(dataset.client_ids, return_index=True, return_inverse=True)
        kept = np.bincount(owner, weights=~held_out)
        held_out[firsts[kept == 0]] = False
    return held_out


def _told(texts: NDArray[np.str_]) -> bytes:
    """Concatenate texts, each preceded by its length."""
    encoded = [text.encode() for text in texts.tolist()]
    return b"".join(len(each).to_bytes(8, "little") + each for each in encoded)


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Cut an array into runs of rows of some megabytes."""
    row_bytes = max(1, array.itemsize * int(np.prod(array.shape[1:])))
    rows = max(1, _BLOCK_BYTES // row_bytes)
    for first in range(0, len(array), rows):
        yield array[first : first + rows]


def _shape_and_type(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
