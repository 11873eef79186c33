"""A summary of a partition shows its sizes and its labels."""

from __future__ import annotations

import numpy as np

from fedpilot.federated.core.population.partitions import disjoint
from fedpilot.federated.core.population.partitions.partition import PartitionKind
from fedpilot.federated.core.population.partitions.summary import PartitionSummary, describe


def test_describe_sums_up_sizes_and_labels() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    owners = np.array(["a", "a", "a", "b", "c", "c"])
    assert describe(disjoint.natural(owners), labels) == PartitionSummary(
        kind=PartitionKind.NATURAL,
        number_of_clients=3,
        samples_min=1,
        samples_median=2.0,
        samples_max=3,
        labels_mean=4 / 3,
    )
