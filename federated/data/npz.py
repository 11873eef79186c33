"""Loads data sets in one NumPy file (.npz)."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpilot.federated.core.user_code.registry import did_you_mean

from .dataset import Dataset
from .errors import DataError

_REQUIRED = ("x", "y")
_TEST = ("test_x", "test_y")


def npz(
    *,
    path: Path,
    num_classes: int | None = None,
    dtype: Literal["float32", "float64", "int64"] | None = None,
    client_column: str = "client_ids",
    columns: list[str] | None = None,
) -> Dataset:
    """Load the arrays `x` and `y`, and `client_ids`, `test_x`, `test_y` if present, of one .npz
    file.

    `client_column` names another array for `client_ids`; `columns` are arrays of text or integers
    with further facts about each sample, such as its hospital. Samples are cast to `dtype`. By
    default an `x` of integers is tokens and becomes int64; all else becomes float32, also bytes
    (uint8), since those are pixels. Labels become int64. `num_classes` defaults to the highest
    label plus one. Nothing is unpickled. Raises `DataError`.
    """
    more = columns or []
    arrays = _read(path, (*_REQUIRED, client_column, *_TEST, *more))
    if missing := ", ".join(name for name in more if name not in arrays):
        raise DataError("npz", f"{path} has no column {missing}, it has {', '.join(arrays)}")
    try:
        x, y, test_x, test_y = (arrays.get(role) for role in ("x", "y", "test_x", "test_y"))
        ids = arrays.get(client_column)
        if x is None or y is None:
            missing = ", ".join(role for role in _REQUIRED if role not in arrays)
            raise DataError("npz", f"{path} has no {missing}, it has {', '.join(arrays) or 'none'}")
        if dtype is None:
            dtype = "int64" if x.dtype.kind in "iu" and x.dtype != np.uint8 else "float32"
        if num_classes is None:
            num_classes = 1 + max(int(each.max()) for each in (y, test_y) if each is not None)
        return Dataset(
            name=path.stem,
            x=_samples(path, "x", x, dtype),
            y=_labels(path, "y", y),
            num_classes=num_classes,
            client_ids=None if ids is None else _text(path, client_column, ids),
            test_x=None if test_x is None else _samples(path, "test_x", test_x, dtype),
            test_y=None if test_y is None else _labels(path, "test_y", test_y),
            columns={name: _text(path, name, arrays[name]) for name in more},
        )
    except (TypeError, ValueError) as error:
        raise DataError("npz", f"{path} does not hold labelled samples: {error}") from error


def _read(path: Path, known: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError("npz", f"{path} is not an .npz file: write it with numpy.savez")
            with archive:
                _check_keys(path, archive.files, known)
                return {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise DataError(
            "npz", f"there is no file {path}: write one with numpy.savez({str(path)!r}, x=x, y=y)"
        ) from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError("npz", f"cannot read {path}: {error}") from error


def _check_keys(path: Path, keys: list[str], known: tuple[str, ...]) -> None:
    for key in keys:
        if key not in known:
            near, names = did_you_mean(key, known), ", ".join(known)
            raise DataError("npz", f"{path} has an array {key!r}{near}; known are {names}")


def _samples(path: Path, role: str, array: NDArray[Any], dtype: str) -> NDArray[Any]:
    if array.dtype.kind not in "fiub":
        raise DataError("npz", f"{role} in {path} is numbers, found {array.dtype}")
    if dtype == "int64" and array.dtype.kind not in "iu":
        raise DataError("npz", f"{role} in {path} is integers for int64, found {array.dtype}")
    with np.errstate(over="ignore"):  # infinite results are refused by name
        return array.astype(dtype, copy=False)


def _labels(path: Path, role: str, array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu":
        raise DataError("npz", f"{role} in {path} is integers, found {array.dtype}")
    return array.astype(np.int64, copy=False)


def _text(path: Path, name: str, array: NDArray[Any]) -> NDArray[np.str_]:
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind not in "iuS":
        raise DataError("npz", f"{name} in {path} is text or integers, found {array.dtype}")
    return array.astype(np.str_)
