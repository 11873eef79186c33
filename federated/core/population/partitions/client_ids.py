"""Client ids: made from a pattern and a number, or listed in the data.

An id gives a client's index and its random key. A pattern takes no memory per client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...randomness import UInt64s, client_keys
from .partition import Int64s, Partition, PartitionError, UnknownClient

DEFAULT_ID_PATTERN = "client_{index}"


@dataclass(frozen=True, slots=True)
class PatternIds:
    """Ids made from a pattern with one `{index}`, such as `client_{index}`."""

    pattern: str
    count: int

    def __post_init__(self) -> None:
        if self.pattern.count("{index}") != 1 or len(re.findall("[{}]", self.pattern)) != 2:
            raise PartitionError(
                f"client ids are written with {{index}} once and no other braces, such as "
                f"{DEFAULT_ID_PATTERN!r}, found {self.pattern!r}"
            )

    def __len__(self) -> int:
        return self.count

    def id_of(self, index: int) -> str:
        _check_index(index, self.count)
        return self.pattern.replace("{index}", str(index))

    def index_of(self, client_id: str) -> int:
        before, _, after = self.pattern.partition("{index}")
        digits = client_id.removeprefix(before).removesuffix(after)
        if re.fullmatch("[0-9]{1,19}", digits):
            index = int(digits)
            if index < self.count and self.id_of(index) == client_id:
                return index
        raise UnknownClient(client_id, f"{self.id_of(0)} to {self.id_of(self.count - 1)}")

    def keys(self, indices: ArrayLike) -> UInt64s:
        before, _, after = self.pattern.partition("{index}")
        clients = checked_indices(indices, self.count)
        return client_keys([f"{before}{index}{after}" for index in clients.tolist()])


@dataclass(frozen=True, slots=True, eq=False)
class ListedIds:
    """Ids as listed in the data, sorted."""

    names: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.names)

    def id_of(self, index: int) -> str:
        _check_index(index, len(self.names))
        return str(self.names[index])

    def index_of(self, client_id: str) -> int:
        index = int(np.searchsorted(self.names, client_id))
        if index < len(self.names) and self.names[index] == client_id:
            return index
        shown = ", ".join(str(name) for name in self.names[:3])
        raise UnknownClient(client_id, f"{shown}{', ...' if len(self.names) > 3 else ''}")

    def keys(self, indices: ArrayLike) -> UInt64s:
        return client_keys(self.names[checked_indices(indices, len(self.names))].tolist())


ClientIds = PatternIds | ListedIds
"""The ids of the clients 0 to `len - 1`.

`id_of` raises `IndexError` and `index_of` raises `UnknownClient` for an unknown client. `keys`
gives the `client_key` of each of these clients, (clients,).
"""


class PartitionByIds(Partition, Protocol):
    """A partition over the clients in `ids`."""

    ids: ClientIds

    @property
    def number_of_clients(self) -> int:
        return len(self.ids)

    def client_id(self, index: int) -> str:
        return self.ids.id_of(index)

    def index_of(self, client_id: str) -> int:
        return self.ids.index_of(client_id)

    def keys(self, indices: ArrayLike) -> UInt64s:
        return self.ids.keys(indices)


def checked_indices(indices: ArrayLike, count: int) -> Int64s:
    """Indices of clients as an array; raises `IndexError` unless all are in [0, count)."""
    clients: Int64s = np.asarray(indices, dtype=np.int64)
    if clients.size and not (clients.min() >= 0 and clients.max() < count):
        wrong = clients[(clients < 0) | (clients >= count)][0]
        raise IndexError(f"clients are numbered from 0 to {count - 1}, found {wrong}")
    return clients


def _check_index(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise IndexError(f"clients are numbered from 0 to {count - 1}, found {index}")
