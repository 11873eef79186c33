"""What a partition looks like, in a few numbers for display."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .partition import Int64s, Partition, PartitionKind, checked_labels

_SIZES_LOOKED_AT = 10_000
_LABELS_LOOKED_AT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSummary:
    """What a partition looks like; see `describe`."""

    kind: PartitionKind
    number_of_clients: int
    samples_min: int | None
    """None where the data lies at sites that do not say; so are the three below."""
    samples_median: float | None
    samples_max: int | None
    labels_mean: float | None
    """How many distinct labels a client holds, in the mean."""


def describe(partition: Partition, labels: ArrayLike) -> PartitionSummary:
    """Sum a partition up for display.

    Sizes are those of 10,000 clients at most and labels those of 1,000 at most, evenly spaced.
    """
    labels = checked_labels(labels)
    count = partition.number_of_clients
    sizes = partition.sizes(_evenly_spaced(count, _SIZES_LOOKED_AT))
    looked_at = _evenly_spaced(count, _LABELS_LOOKED_AT).tolist()
    distinct = [len(np.unique(labels[partition.indices(i)])) for i in looked_at]
    return summary_of(partition.kind, count, sizes, float(np.mean(distinct)))


def summary_of(
    kind: PartitionKind, clients: int, sizes: Int64s | None, labels_mean: float | None
) -> PartitionSummary:
    """Sum up how many samples clients hold, if that is known: `sizes` has the shape (some,)."""
    return PartitionSummary(
        kind=kind,
        number_of_clients=clients,
        samples_min=None if sizes is None else int(sizes.min()),
        samples_median=None if sizes is None else float(np.median(sizes)),
        samples_max=None if sizes is None else int(sizes.max()),
        labels_mean=labels_mean,
    )


def _evenly_spaced(count: int, most: int) -> Int64s:
    looked_at = min(count, most)
    return np.arange(looked_at, dtype=np.int64) * count // looked_at
