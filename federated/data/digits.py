"""Own the small data set that needs no download: 1,797 handwritten digits of 8 by 8 pixels."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .dataset import Dataset


def digits(*, image: bool = False, dtype: Literal["float32", "float64"] = "float32") -> Dataset:
    """Load scikit-learn's copy of the UCI optical digits (Alpaydin and Kaynak 1998), in [0, 1].

    Samples have the shape (64,), or (1, 8, 8) with `image`.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = (pixels / 16.0).astype(dtype)
    return Dataset(
        name="digits",
        x=x.reshape(-1, 1, 8, 8) if image else x,
        y=labels.astype(np.int64),
        num_classes=10,
    )
