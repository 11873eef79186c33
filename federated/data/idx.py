"""Loads data sets in IDX files, the format of MNIST."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from .dataset import Dataset
from .errors import DataError
from .folder import find

_SOURCE = (
    "the MNIST family, e.g. https://yann.lecun.com/exdb/mnist, "
    "https://github.com/zalandoresearch/fashion-mnist, "
    "https://www.nist.gov/itl/products-and-services/emnist-dataset"
)
_UNSIGNED_BYTE = 0x08
_PIECE_BYTES = 1 << 20


def idx(*, path: Path, prefix: str = "", transpose: bool = False) -> Dataset:
    """Load images and labels from a folder of IDX files, plain or .gz (LeCun et al. 1998).

    Samples have the shape (1, height, width) and are in [0, 1]. `prefix` precedes the file names,
    such as `emnist-balanced`. EMNIST (Cohen et al. 2017) stores images on their side: `transpose`
    turns them. The number of classes is the highest label plus one, so the letters of EMNIST, which
    count from 1, leave class 0 unused. Raises `DataError`.
    """
    start = f"{prefix}-" if prefix else ""
    (x, y), (test_x, test_y) = (
        (_images(path, parts), _read(path, parts, "labels", 1).astype(np.int64))
        for parts in ([start + "train"], [start + "t10k", start + "test"])
    )
    if transpose:
        x, test_x = (np.ascontiguousarray(each.swapaxes(2, 3)) for each in (x, test_x))
    return Dataset(
        name=prefix or path.name,
        x=x,
        y=y,
        num_classes=1 + int(max(y.max(initial=0), test_y.max(initial=0))),
        test_x=test_x,
        test_y=test_y,
    )


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes with this many dimensions.

    Checks the header against the size of the file. Raises `DataError`, which names the file.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _parse(path, file, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("idx", f"cannot read {path}: {error}") from error


def _parse(path: Path, file: BinaryIO | gzip.GzipFile, dimensions: int) -> NDArray[np.uint8]:
    header = file.read(4 + 4 * dimensions)
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if header[:4] != magic:
        raise DataError(
            "idx", f"{path} begins with {header[:4].hex() or 'nothing'}, expected {magic.hex()}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError("idx", f"{path} ends within its header")
    shape = tuple(np.frombuffer(header, dtype=">u4", offset=4).tolist())
    promised = math.prod(shape)
    body = bytearray()
    while len(body) <= promised and (piece := file.read(_PIECE_BYTES)):
        body += piece
    if len(body) != promised:
        found = f"{len(body)} follow" if len(body) < promised else "more follow"
        raise DataError("idx", f"{path} promises {promised} bytes ({shape}), {found}")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _images(folder: Path, parts: list[str]) -> NDArray[np.float32]:
    pixels = _read(folder, parts, "images", 3)
    return np.divide(pixels[:, None], np.float32(255), dtype=np.float32)


def _read(folder: Path, parts: list[str], what: str, dimensions: int) -> NDArray[np.uint8]:
    names = [f"{part}-{what}-idx{dimensions}-ubyte" for part in parts]
    files = [name + end for name in names for end in ("", ".gz")]
    return read_idx(find("idx", folder, files, _SOURCE), dimensions)
