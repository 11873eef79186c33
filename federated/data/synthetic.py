"""Synthetic data sets: numbers or tokens around one template per class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpilot.federated.core.randomness import Purpose, stream

from .dataset import Dataset
from .errors import DataError

_TEMPLATES, _LABELS, _NOISE = range(3)


def synthetic(
    *,
    samples: int = 1000,
    features: int = 16,
    shape: Sequence[int] | None = None,
    vocabulary: int | None = None,
    sequence_length: int | None = None,
    classes: int = 10,
    noise: float = 1.0,
    seed: int = 0,
    dtype: Literal["float32", "float64"] = "float32",
) -> Dataset:
    """Make `samples` samples around `classes` random templates.

    Samples are numbers: their class's template, drawn from N(0, 1), plus `noise` times N(0, 1).
    They have the shape (features,), or `shape` when that is given.

    With `vocabulary` they are tokens: their class's template, drawn from [0, vocabulary), with
    every token redrawn at odds of `noise` to 1. They have the shape (sequence_length,), by default
    (64,), and are int64.

    Class sizes differ by one at most. Equal options give equal data; time, memory: O(samples).
    """
    if vocabulary is None and sequence_length is not None:
        raise DataError("synthetic", "sequence_length is for tokens: give vocabulary as well")
    if vocabulary is not None and (shape is not None or dtype != "float32"):
        raise DataError("synthetic", "shape and dtype are for numbers, vocabulary is for tokens")
    sample_shape = (features,) if shape is None else tuple(shape)
    if vocabulary is not None:
        sample_shape = (64 if sequence_length is None else sequence_length,)
    kinds = 1 if vocabulary is None else vocabulary
    if not sample_shape or min(samples, classes, kinds, *sample_shape) < 1:
        raise DataError(
            "synthetic",
            "samples, classes, features, shape, vocabulary and sequence_length are all above 0",
        )
    if not (math.isfinite(noise) and noise >= 0):
        raise DataError("synthetic", f"noise is 0 or more, found {noise}")
    labels, templates, drawn = (
        stream(seed, Purpose.SYNTHETIC, key=part) for part in (_LABELS, _TEMPLATES, _NOISE)
    )
    y = (labels.permutation(samples) % classes).astype(np.int64)
    x: NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]
    if vocabulary is None:
        real = np.dtype(dtype).type
        centers = templates.standard_normal((classes, *sample_shape)).astype(real)
        x = drawn.standard_normal((samples, *sample_shape), dtype=real)
        x *= real(noise)
        x += centers[y]
    else:
        texts = templates.integers(vocabulary, size=(classes, *sample_shape))
        x = drawn.integers(vocabulary, size=(samples, *sample_shape))
        kept = drawn.random(x.shape) >= noise / (1 + noise)
        np.copyto(x, texts[y], where=kept)
    return Dataset(name="synthetic", x=x, y=y, num_classes=classes)
