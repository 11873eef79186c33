"""A small data set without a download: 1,797 handwritten digits of 8 by 8 pixels."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .dataset import Dataset

FILE = Path(__file__).with_name("digits.csv.gz")
"""One sample per line: 64 pixels from 0 to 16, and the digit. Licence: digits.LICENSE.txt."""


def digits(*, image: bool = False, dtype: Literal["float32", "float64"] = "float32") -> Dataset:
    """Load the test set of the UCI optical digits (Alpaydin and Kaynak 1998), in [0, 1].

    Samples have the shape (64,), or (1, 8, 8) with `image`.
    """
    pixels, labels = _pixels_and_labels()
    x = (pixels / 16.0).astype(dtype)
    return Dataset(
        name="digits",
        x=x.reshape(-1, 1, 8, 8) if image else x,
        y=labels.astype(np.int64),
        num_classes=10,
    )


def _pixels_and_labels() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    text = gzip.decompress(FILE.read_bytes()).replace(b"\n", b",")
    table = np.fromstring(text, dtype=np.float64, sep=",").reshape(-1, 65)
    return table[:, :64], table[:, 64]
