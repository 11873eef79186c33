"""Partitions to test: labels, the recipes that divide all samples, and who holds what of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpilot.federated.core.population.partitions import disjoint
from fedpilot.federated.core.population.partitions.disjoint import Disjoint
from fedpilot.federated.core.population.partitions.partition import Partition

Labels = NDArray[np.int64]

TEN_LABELS = np.arange(1000, dtype=np.int64) % 10

BALANCED = np.repeat(np.arange(10), 100)

DISJOINT: dict[str, Callable[[Labels, int, int], Disjoint]] = {
    "iid": lambda labels, clients, seed: disjoint.iid(labels, clients, seed),
    "dirichlet": lambda labels, clients, seed: disjoint.dirichlet(labels, clients, 0.1, seed),
    "shards": lambda labels, clients, seed: disjoint.shards(
        labels, clients, len(np.unique(labels)), seed
    ),
    "quantity": lambda labels, clients, seed: disjoint.quantity(labels, clients, 0.3, seed),
}

label_lists = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(
    lambda values: np.array(values, dtype=np.int64)
)

seeds = st.integers(0, 2**63 - 1)


def everything(partition: Partition) -> list[list[int]]:
    return [partition.indices(i).tolist() for i in range(partition.number_of_clients)]


def labels_of(partition: Partition, labels: Labels) -> list[set[int]]:
    return [set(labels[held].tolist()) for held in everything(partition)]
