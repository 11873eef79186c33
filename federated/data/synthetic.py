"""Own the data set that is made up: Gaussian clouds, one for each class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedpilot.federated.core.randomness import Purpose, stream

from .dataset import Dataset
from .errors import DataError

_TEMPLATES, _LABELS, _NOISE = range(3)


def synthetic(
    *,
    samples: int = 1000,
    features: int = 16,
    shape: Sequence[int] | None = None,
    classes: int = 10,
    noise: float = 1.0,
    seed: int = 0,
    dtype: Literal["float32", "float64"] = "float32",
) -> Dataset:
    """Make `samples` samples around `classes` templates, which are drawn from N(0, 1).

    A sample is its class's template plus `noise` times N(0, 1); it has the shape (features,), or
    `shape` when that is given. Classes have equally many samples, up to one. Equal options give
    equal data; time and memory are O(samples).
    """
    sample_shape = (features,) if shape is None else tuple(shape)
    if not sample_shape or min(samples, classes, *sample_shape) < 1:
        raise DataError("synthetic", "samples, classes, features and shape are all above 0")
    if not (math.isfinite(noise) and noise >= 0):
        raise DataError("synthetic", f"noise is 0 or more, found {noise}")
    templates, labels, cloud = (
        stream(seed, Purpose.SYNTHETIC, key=part) for part in (_TEMPLATES, _LABELS, _NOISE)
    )
    real = np.dtype(dtype).type
    centers = templates.standard_normal((classes, *sample_shape)).astype(real)
    y = labels.permutation(samples) % classes
    x = cloud.standard_normal((samples, *sample_shape), dtype=real)
    x *= real(noise)
    x += centers[y]
    return Dataset(name="synthetic", x=x, y=y.astype(np.int64), num_classes=classes)
