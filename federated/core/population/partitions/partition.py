"""Partitions of data over clients: their kinds, their protocol, and checks of all recipes.

PartitionError
+-- TooManyClients     a disjoint partition of fewer samples than clients
UnknownClient          an id that is no client of this partition
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.federated.errors import FederatedError

from ...randomness import UInt64s

Int64s = NDArray[np.int64]
Integers = NDArray[np.signedinteger[Any]]


class PartitionKind(StrEnum):
    """Kinds of partition, as `data_distribution_kind` spells them."""

    IID = "iid"
    DIRICHLET = "dirichlet"
    SHARDS = "shards"
    QUANTITY = "quantity"
    NATURAL = "natural"
    FIXED = "fixed"
    BOOTSTRAP = "bootstrap"


class PartitionError(FederatedError):
    """The requested partition is impossible."""


class TooManyClients(PartitionError):
    """A disjoint partition has more clients than samples."""

    def __init__(self, number_of_clients: int, samples: int) -> None:
        super().__init__(number_of_clients, samples)
        self.number_of_clients, self.samples = number_of_clients, samples

    def __str__(self) -> str:
        return (
            f"{self.number_of_clients} clients cannot share {self.samples} samples, one at least "
            f"each: ask for at most {self.samples} clients, or draw their samples with replacement "
            f"by data_distribution_kind: {PartitionKind.BOOTSTRAP}"
        )


class UnknownClient(FederatedError, KeyError):
    """No client of this partition has the id."""

    exits_with = BAD_INPUT

    def __init__(self, client_id: str, known: str) -> None:
        super().__init__(client_id, known)
        self.client_id, self.known = client_id, known

    def __str__(self) -> str:
        return f"there is no client {self.client_id!r}: the ids are {self.known}"


class Partition(Protocol):
    """The samples of each client."""

    @property
    def kind(self) -> PartitionKind: ...

    @property
    def number_of_clients(self) -> int: ...

    def client_id(self, index: int) -> str:
        """The id of a client; raises `IndexError` if there is no such client."""

    def index_of(self, client_id: str) -> int:
        """The index of a client; raises `UnknownClient` if there is no such client."""

    def indices(self, index: int) -> Int64s:
        """The positions of a client's samples in the data set."""
        return self.rows([index])[0]

    def size(self, index: int) -> int:
        """How many samples a client holds."""
        return int(self.sizes([index])[0])

    def sizes(self, indices: ArrayLike) -> Int64s:
        """How many samples each of these clients holds, without making the samples."""

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        """The samples of these clients, one client after another, and how many each holds.

        `indices` has the shape (clients,), as have the sizes; the samples have (sum of sizes,).
        `keys` are the clients' keys, if the caller has them.
        """

    def keys(self, indices: ArrayLike) -> UInt64s:
        """The `client_key` of each of these clients: shape (clients,)."""


def checked_labels(labels: ArrayLike) -> Int64s:
    """Labels as an array, (samples,); raises `PartitionError` for anything else."""
    array = np.asarray(labels)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu" or array.min() < 0:
        raise PartitionError(
            "labels are a list of integers from 0 on, one for each sample, "
            f"found {array.dtype} of shape {array.shape}"
        )
    checked: Int64s = array.astype(np.int64, copy=False)
    return checked


def check_clients(number_of_clients: int) -> None:
    """Raise `PartitionError` for a partition without a client."""
    if number_of_clients < 1:
        raise PartitionError(f"a partition has 1 client at least, found {number_of_clients}")


def check_beta(beta: float) -> None:
    """Raise `PartitionError` unless `beta` can be a concentration of a Dirichlet distribution."""
    if not (np.isfinite(beta) and beta > 0):
        raise PartitionError(f"beta is a number above 0, found {beta!r}")


def compact(positions: Int64s) -> Integers:
    """Halve the memory of positions that 32 bits can hold."""
    return positions.astype(np.int32) if len(positions) < 1 << 31 else positions
