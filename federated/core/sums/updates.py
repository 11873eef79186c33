"""A keyed union of client updates, for algorithms that a sum does not serve.

A median or Krum looks at every update, so a round holds as many as it has clients. Rules:

* An update is how far a client's tensors moved from the round's global model, in their own type
  (halves in float32).
* Every client is in it once. The same update again changes nothing; another one of the same client
  is an error. So unions merge in any order and grouping, and may overlap.
* Answers follow the order of the clients' ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from ..state import Array, Roles, State, averaged


@dataclass(frozen=True, slots=True)
class Update:
    """One client's update. Its arrays are never written to."""

    moved: Mapping[str, Array]
    weight: int
    measured: tuple[int, ...]
    """Its training metrics: the sums of a Tally."""

    def same(self, other: Update) -> bool:
        """Whether two updates agree in every bit."""
        return (
            (self.weight, self.measured) == (other.weight, other.measured)
            and self.moved.keys() == other.moved.keys()
            and all(_same_bits(array, other.moved[name]) for name, array in self.moved.items())
        )


@dataclass(slots=True)
class Updates:
    """Updates by client id."""

    by_client: dict[str, Update] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.by_client)

    def __iter__(self) -> Iterator[tuple[str, Update]]:
        """(client id, update), in the order of the ids."""
        return iter(sorted(self.by_client.items()))

    def new_in(self, other: Updates) -> dict[str, Update]:
        """What a merge with `other` adds; ValueError if a client's updates differ."""
        new = {}
        for client_id, update in other.by_client.items():
            mine = self.by_client.get(client_id)
            if mine is None:
                new[client_id] = update
            elif not mine.same(update):
                raise ValueError(f"two different updates of {client_id} in one round")
        return new

    @property
    def nbytes(self) -> int:
        """Total bytes of the tensors."""
        return sum(a.nbytes for update in self.by_client.values() for a in update.moved.values())

    def to_wire(self) -> tuple[list[list[Any]], dict[str, Array]]:
        """(JSON values, each tensor of all clients stacked in the order of their ids)."""
        ordered = list(self)
        rows = [[client_id, each.weight, *each.measured] for client_id, each in ordered]
        names = sorted(ordered[0][1].moved) if ordered else []
        return rows, {name: np.stack([u.moved[name] for _, u in ordered]) for name in names}

    @classmethod
    def from_wire(cls, rows: list[list[Any]], tensors: Mapping[str, Array]) -> Self:
        return cls(
            {
                client_id: Update(
                    {name: stacked[at, ...] for name, stacked in tensors.items()},
                    weight,
                    tuple(measured),
                )
                for at, (client_id, weight, *measured) in enumerate(rows)
            }
        )


def bytes_of_one(model: State, roles: Roles) -> int:
    """Bytes of one client's update of a model."""
    return sum(model[n].size * max(4, model[n].dtype.itemsize) for n in averaged(roles))


def _same_bits(one: Array, other: Array) -> bool:
    return (
        (one.dtype, one.shape) == (other.dtype, other.shape)
        and one.tobytes() == other.tobytes()
    )  # fmt: skip
