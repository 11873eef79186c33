"""The models of a graph's clients in a site's memory: mixed there, and kept for the next round.

Memory is used again: to get as much anew from the system takes as long as to mix.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from itertools import pairwise

import numpy as np

from fedpilot.common.host.machine import usable_cpus

from ...core.population.sampling import Indices
from ...core.state import Array, State
from ...core.sums.partial import RANGE_BITS
from ...core.topology.mixing import SQUARES_BITS, Mixing
from ...engine.compiled.mixing import (
    Floats,
    bound,
    in_a_row,
    largest,
    mix,
    squared_distances,
)
from ..states.layouts import PUSH_SUM_WEIGHT, Layout, Stack
from ..states.shared_memory import SharedStack

THREADS = min(8, usable_cpus())
"""They mix while the workers wait."""


LARGEST = 1e250
"""Squared distances from here on count for nothing: such a model is useless."""


class ModelsInMemory:
    """The models after the last round, and room for those of the next.

    A round owns what it takes: it may write into it, and need not return it.
    """

    def __init__(self, layout: Layout) -> None:
        """For models of this layout."""
        self._layout = layout
        self._lock = threading.Lock()
        self._last: tuple[int, SharedStack] | None = None
        self._spare: SharedStack | None = None

    def take(self, round_number: int) -> SharedStack | None:
        """The models after a round, if these are here."""
        with self._lock:
            last, self._last = self._last, None
        return None if last is None or last[0] != round_number else last[1]

    def room(self, count: int) -> SharedStack:
        """Room for at least so many models, with anything in it."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None or len(spare.stack) < count:
            return SharedStack(self._layout, count)
        return spare

    def keep(self, round_number: int, models: SharedStack, spare: SharedStack) -> None:
        """Keep the models after a round, and room for the next; the caller gives up both."""
        with self._lock:
            self._last, self._spare = (round_number, models), spare


def largest_of(models: Stack, mean: State, names: Iterable[str]) -> dict[str, Floats]:
    """By name of a tensor: each client's largest move from the mean before the round."""
    columns = models.columns
    return {
        name: largest(
            _at_least_float32(columns[name].reshape(len(models), -1)), in_a_row(mean[name])
        )
        for name in names
    }


def beyond_range(
    sizes: Mapping[str, Floats], mixing: Mixing, exponents: Mapping[str, int]
) -> dict[str, int]:
    """By name of a tensor whose sums may leave int64: their bound."""
    most = {name: bound(sizes[name], mixing, exponents[name]) for name in exponents}
    return {name: each for name, each in most.items() if each >= 1 << RANGE_BITS}


def mix_models(
    models: Stack,
    into: Stack,
    mean: State,
    sizes: Mapping[str, Floats],
    mixing: Mixing,
    exponents: Mapping[str, int],
    threads: Executor,
) -> None:
    """Write each mixture into its row of a stack of the same layout; of counters, the maxima.

    `models` has a row for each source of the mixing.
    """
    ends = np.linspace(0, mixing.nodes, THREADS + 1).astype(int).tolist()
    parts = [slice(first, last) for first, last in pairwise(ends)]
    for name, *_ in models.layout.arrays:
        kind, columns = models.layout.words(name)
        rows, made = models.rows.view(kind), into.rows.view(kind)
        if name == PUSH_SUM_WEIGHT:
            made[: mixing.nodes, columns] = mixing.totals[:, None]
            continue
        if name not in exponents:
            made[: mixing.nodes, columns] = _most_of_neighbors(rows[:, columns], mixing)
            continue
        reference, most = in_a_row(mean[name]), bound(sizes[name], mixing, exponents[name])
        result = made
        if kind.itemsize < 4:
            rows = _at_least_float32(rows[:, columns])
            result, columns = np.empty_like(rows), slice(None)
        within = partial(
            mix, rows, reference, mixing, exponents[name], most, result, columns=columns
        )
        list(threads.map(within, parts))
        if result is not made:
            made[: mixing.nodes, models.layout.words(name)[1]] = result[: mixing.nodes]


def squares_of(models: Stack, mean: State, names: Iterable[str], there: slice | Indices) -> int:
    """The sum of some models' squared distances to a model, over the tensors of these names.

    It is exact, in units of 2**-`SQUARES_BITS`: sites' sums add up to the same in any grouping.
    """
    of_clients: Floats = np.zeros(len(models))
    for name in names:
        kind, columns = models.layout.words(name)
        rows = models.rows.view(kind)
        if kind.itemsize < 4:
            rows, columns = _at_least_float32(rows[:, columns]), slice(None)
        of_clients += squared_distances(rows, in_a_row(mean[name]), columns)
    finite = np.nan_to_num(of_clients[there]).tolist()
    return sum(int(math.ldexp(square, SQUARES_BITS)) for square in finite if square < LARGEST)


def _at_least_float32(rows: Array) -> Array:
    return rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)


def _most_of_neighbors(rows: Array, mixing: Mixing) -> Array:
    """The elementwise maxima of counters over each client and those that it takes of."""
    taken = mixing.weights > 0
    taken |= mixing.sources == np.repeat(np.arange(mixing.nodes), np.diff(mixing.starts))
    starts = np.concatenate([[0], np.cumsum(taken)])[mixing.starts[:-1]]
    return np.asarray(np.maximum.reduceat(rows[mixing.sources[taken]], starts, axis=0))
