"""RowFile: rows of bytes, of any lengths, in a plain file that uses free places again.

The file has no list of its rows: its caller stores their places.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from .free_space import FreeSpace, Offsets

Rows = npt.NDArray[np.uint8]


class RowFile:
    """An open file of rows."""

    def __init__(self, path: Path | None, used: Callable[[], tuple[Offsets, Offsets]]) -> None:
        """Open or make the file; without a path, a temporary one that ends with this object.

        `used` tells the offsets and lengths of the rows that it holds; called on first need.
        """
        self._used = used
        self._free: FreeSpace | None = None
        self._file = _opened(path)

    def take(self, count: int, length: int) -> Offsets:
        """Places for new rows, side by side where there is room."""
        if self._free is None:
            self._free = FreeSpace(*self._used())
        return self._free.take(count, length)

    def give(self, places: Offsets, lengths: Offsets) -> None:
        """Free the places of these rows."""
        if self._free is not None and len(places):
            self._free.give(places, lengths)

    def look_again(self) -> None:
        """Ask `used` again at the next `take`: the caller has not stored the last places."""
        self._free = None

    def write(self, rows: Rows, places: Offsets) -> None:
        """Write rows (k, length) to their places."""
        parts = [0, *(np.flatnonzero(np.diff(places) != rows.shape[1]) + 1).tolist(), len(rows)]
        for first, end in pairwise(parts):
            left, place = rows[first:end].reshape(-1).data, int(places[first])
            while left:
                written = os.pwrite(self._file.fileno(), left, place)
                left, place = left[written:], place + written

    def read(self, place: int, rows: Rows) -> None:
        """Read rows (k, length) that lie side by side; zeros behind the end of the file."""
        flat, done = rows.reshape(-1), 0
        while found := os.preadv(self._file.fileno(), [flat[done:].data], place + done):
            done += found
            if done == len(flat):
                return
        flat[done:] = 0

    def copy(self, path: Path) -> None:
        """Write all of it to another file."""
        with path.open("wb") as other:
            self._file.seek(0)
            copyfileobj(self._file, other, 1 << 20)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def _opened(path: Path | None) -> BinaryIO:
    if path is None:
        return tempfile.TemporaryFile(buffering=0)
    path.touch()
    return path.open("r+b", buffering=0)
