"""A partition in a few numbers for display."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .partition import Int64s, Partition, PartitionKind, checked_labels

_SIZES_LOOKED_AT = 10_000
_LABELS_LOOKED_AT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSummary:
    """A partition in a few numbers; see `describe`."""

    kind: PartitionKind
    number_of_clients: int
    samples_min: int | None
    """None, as the three below, where the data lies at sites that do not disclose sizes."""
    samples_median: float | None
    samples_max: int | None
    labels_mean: float | None


def describe(partition: Partition, labels: ArrayLike) -> PartitionSummary:
    """Summarize a partition for display.

    Sizes come from at most 10,000 clients and labels from at most 1,000, evenly spaced.
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
    """Summarize the clients' sizes, (some,), if they are known."""
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
