"""Layout: how the arrays of a client's state lie in a row of bytes; Stack: many such rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ...core.population.sampling import Indices
from ...core.state import Array, Roles, State, averaged, counters
from .row_file import Rows

ALIGNED = 64
"""Bytes; arrays and rows begin at multiples of it."""

PUSH_SUM_WEIGHT = "push_sum/weight"
"""The node's weight in push-sum, in units of 1 / `PUSH_SUM_UNIT`, beside its model."""

NUMBERS = "biufc"
"""NumPy's kinds of numbers."""


@dataclass(frozen=True)
class Layout:
    """Names, types and shapes of arrays; states with equal ones lie in rows of equal length."""

    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    """(name, NumPy's name of the type, shape), by name."""

    @classmethod
    def of(cls, state: State) -> Self:
        """The layout of a state; TypeError for what is no number."""
        named = sorted((name, np.asarray(array)) for name, array in state.items())
        for name, array in named:
            if array.dtype.kind not in NUMBERS:
                raise TypeError(f"a client's {name!r} holds {array.dtype}, which is no number")
        return cls(tuple((name, array.dtype.str, array.shape) for name, array in named))

    @classmethod
    def of_models(cls, model: State, roles: Roles, *, push_sum: bool = False) -> Self:
        """The layout of those of a model's tensors that training may move.

        With `push_sum` each model has its `PUSH_SUM_WEIGHT`.
        """
        weight = {PUSH_SUM_WEIGHT: np.array(0)} if push_sum else {}
        moved = {name: model[name] for name in (*averaged(roles), *counters(roles))}
        return cls.of({**moved, **weight})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        return cls(tuple((name, kind, tuple(shape)) for name, kind, shape in json.loads(text)))

    def to_json(self) -> str:
        """One text for one layout."""
        return json.dumps(self.arrays, separators=(",", ":"))

    def fits(self, state: State) -> bool:
        """Whether it is the layout of a state."""
        return len(state) == len(self._places) and all(
            (array := state.get(name)) is not None and array.dtype == kind and array.shape == shape
            for name, kind, shape, _ in self._places
        )

    @cached_property
    def _places(self) -> tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]:
        places, at = [], 0
        for name, kind, shape in self.arrays:
            places.append((name, np.dtype(kind), shape, at))
            size = np.dtype(kind).itemsize * math.prod(shape)
            at += -(-size // ALIGNED) * ALIGNED
        return tuple(places)

    @cached_property
    def length(self) -> int:
        """Bytes of a row; at least `ALIGNED`."""
        if not self._places:
            return ALIGNED
        _, kind, shape, at = self._places[-1]
        return max(ALIGNED, at + -(-kind.itemsize * math.prod(shape) // ALIGNED) * ALIGNED)

    def words(self, name: str) -> tuple[np.dtype[Any], slice]:
        """The type of an array, and its place in a row that is read as words of this type."""
        _, kind, shape, at = next(place for place in self._places if place[0] == name)
        begin = at // kind.itemsize
        return kind, slice(begin, begin + math.prod(shape))

    def pack(self, states: Sequence[State], rows: Rows) -> None:
        """Write states of this layout into rows (k, length), which hold zeros or other states."""
        for name, column in self.columns(rows).items():
            for at, state in enumerate(states):
                column[at] = state[name]

    def unpack(self, rows: Rows) -> list[dict[str, Array]]:
        """The states in rows (k, length), as views of them."""
        columns = self.columns(rows)
        return [
            {
                name: column[at] if column.ndim > 1 else column[at : at + 1].reshape(())
                for name, column in columns.items()
            }
            for at in range(len(rows))
        ]

    def columns(self, rows: Rows) -> dict[str, Array]:
        """By name a view of all rows (k, length), (k, *shape)."""
        return {
            name: np.ndarray(
                (len(rows), *shape),
                kind,
                rows.data,
                at,
                (self.length, *np.empty(shape, kind).strides),
            )
            for name, kind, shape, at in self._places
        }


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """States that are alike, in memory as in their file."""

    layout: Layout
    rows: Rows
    """(k, length)"""

    @classmethod
    def zeros(cls, layout: Layout, count: int) -> Self:
        """So many states of zeros."""
        return cls(layout, np.zeros((count, layout.length), dtype=np.uint8))

    @classmethod
    def empty(cls, layout: Layout, count: int) -> Self:
        """Room for so many states, with anything in it."""
        return cls(layout, np.empty((count, layout.length), dtype=np.uint8))

    @property
    def columns(self) -> dict[str, Array]:
        """By name a view of all states, (k, *shape)."""
        return self.layout.columns(self.rows)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name all states, (k, *shape), in the same memory."""
        found = {}
        for name, _, shape in self.layout.arrays:
            kind, columns = self.layout.words(name)
            found[name] = torch.from_numpy(self.rows.view(kind))[:, columns].view(len(self), *shape)
        return found

    def part(self, places: slice | Indices) -> Self:
        """Some of the states: a view of them if the places are a slice."""
        return type(self)(self.layout, self.rows[places])

    def __len__(self) -> int:
        return len(self.rows)


def as_slice(places: Indices) -> slice | Indices:
    """Places as a slice, if they follow each other; indexing by it copies nothing."""
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places
