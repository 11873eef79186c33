"""The partition of data at sites, as each side sees it.

A site sees its own clients with their samples, the coordinator all ids and no samples.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ...randomness import UInt64s
from ..partitions.disjoint import Disjoint
from ..partitions.partition import Int64s, Partition, PartitionKind, UnknownClient
from .errors import NotHere
from .union import Union


@dataclass(frozen=True, slots=True, eq=False)
class SiteClients(Partition):
    """A site's view of the population's partition: its own clients only."""

    first: int
    population: int
    own: Disjoint
    """Its clients, numbered from 0, under their names in the population."""

    @property
    def kind(self) -> PartitionKind:
        return PartitionKind.NATURAL

    @property
    def number_of_clients(self) -> int:
        return self.population

    @property
    def here(self) -> range:
        """The clients whose samples are here."""
        return range(self.first, self.first + self.own.number_of_clients)

    def client_id(self, index: int) -> str:
        return self.own.client_id(int(self._own_indices(index)))

    def index_of(self, client_id: str) -> int:
        return self.first + self.own.index_of(client_id)

    def sizes(self, indices: ArrayLike) -> Int64s:
        return self.own.sizes(self._own_indices(indices))

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        return self.own.rows(self._own_indices(indices), keys)

    def keys(self, indices: ArrayLike) -> UInt64s:
        return self.own.keys(self._own_indices(indices))

    def _own_indices(self, indices: ArrayLike) -> Int64s:
        clients = np.asarray(indices, dtype=np.int64)
        outside = (clients < self.first) | (clients >= self.here.stop)
        if outside.any():
            raise NotHere(f"number {int(clients[outside][0])}")
        return clients - self.first


@dataclass(frozen=True, eq=False)
class Elsewhere(Partition):
    """The view of a union's partition in a process without samples: ids only."""

    union: Union

    @property
    def kind(self) -> PartitionKind:
        return PartitionKind.NATURAL

    @cached_property
    def number_of_clients(self) -> int:
        return self.union.population

    def client_id(self, index: int) -> str:
        for part in self.union.parts:
            if index in part.indices:
                return part.ids.id_of(index - part.first)
        raise IndexError(
            f"clients are numbered from 0 to {self.number_of_clients - 1}, not {index}"
        )

    def index_of(self, client_id: str) -> int:
        for part in self.union.parts:
            with suppress(UnknownClient):
                return part.first + part.ids.index_of(client_id)
        last = self.number_of_clients - 1
        raise UnknownClient(client_id, f"{self.client_id(0)} to {self.client_id(last)}")

    def sizes(self, indices: ArrayLike) -> Int64s:
        raise NotHere(self._one_of(indices))

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        raise NotHere(self._one_of(indices))

    def keys(self, indices: ArrayLike) -> UInt64s:
        raise NotHere(self._one_of(indices))

    def _one_of(self, indices: ArrayLike) -> str:
        clients = np.asarray(indices, dtype=np.int64).tolist()
        return self.client_id(clients[0]) if clients else "(none)"
