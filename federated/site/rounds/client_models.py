"""The models of a graph's clients at a site: mixed there, and kept for the next round.

They lie in memory, or beyond a limit in files that are mapped, and then are worked on block by
block. Memory is used again: to get as much anew from the system takes as long as to mix.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from fedpilot.common.host.machine import usable_cpus

from ...core.population.sampling import Indices
from ...core.state import Array, State, in_a_row
from ...core.sums.distances import squared_distances
from ...core.sums.partial import RANGE_BITS
from ...core.topology.mixing import SQUARES_BITS, Mixing
from ...engine.compiled.mixing import (
    Floats,
    Summed,
    add_up,
    bound,
    largest,
    mix,
)
from ..states.layouts import PUSH_SUM_WEIGHT, Layout, as_slice
from ..states.shared_memory import SharedStack, Spill

THREADS = min(8, usable_cpus())
"""They mix while the workers wait."""


LARGEST = 1e250
"""Squared distances from here on count for nothing: such a model is useless."""
WIDTH = 1 << 12
"""Bytes of a spilled model that are mixed at a time, at least: fewer are slow to read."""
SUMS_AT_ONCE = 1 << 26
"""Bytes of other sites' sums that are added up at a time."""


class ModelsInMemory:
    """The models after the last round, and room for those of the next.

    A round owns what it takes: it may write into it, and need not return it.
    """

    def __init__(self, layout: Layout, limit_bytes: int, spill: Spill) -> None:
        """For models of this layout; they are spilled if both stacks exceed the limit."""
        self._layout = layout
        self._limit_bytes, self._spill = limit_bytes, spill
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
            fits = 2 * count * self._layout.length <= self._limit_bytes
            return SharedStack(self._layout, count, None if fits else self._spill)
        return spare

    def keep(self, round_number: int, models: SharedStack, spare: SharedStack) -> None:
        """Keep the models after a round, and room for the next; the caller gives up both."""
        with self._lock:
            self._last, self._spare = (round_number, models), spare


def largest_of(
    models: SharedStack, there: slice | Indices, mean: State, names: Iterable[str]
) -> dict[str, Floats]:
    """By name of a tensor: the largest move of each client there from the mean before the round."""
    references = {name: in_a_row(mean[name]) for name in names}
    found: dict[str, list[Floats]] = {name: [np.zeros(0)] for name in references}
    for part in models.parts(there):
        columns = part.columns
        for name, reference in references.items():
            rows = _at_least_float32(columns[name].reshape(len(part), -1))
            found[name].append(largest(rows, reference))
    return {name: np.concatenate(each) for name, each in found.items()}


def column_of(models: SharedStack, there: slice, name: str) -> Array:
    """A copy of one of the small arrays of the models there, (k, size)."""
    kind, columns = models.stack.layout.words(name)
    found = [part.rows.view(kind)[:, columns] for part in models.parts(there)]
    return np.concatenate(found or [np.zeros((0, columns.stop - columns.start), kind)])


def write_column(models: SharedStack, name: str, values: Array) -> None:
    """Write such an array (k, size) into the first models."""
    kind, columns = models.stack.layout.words(name)
    for some in models.blocks(slice(0, len(values))):
        models.stack.rows.view(kind)[some, columns] = values[some]


class SumsElsewhere(Protocol):
    """What nodes take of sources at other sites, as sums."""

    def sizes(self, name: str) -> Floats | None:
        """(nodes,): the largest move in them; None if there are none."""

    def count(self, name: str, most: Array) -> None:
        """Include counters in those of the nodes (nodes, size)."""

    def rows_of(self, nodes: slice) -> Indices:
        """Which of these nodes have a sum."""

    def of(self, name: str, nodes: slice, words: slice, threads: Executor) -> Summed:
        """The sums of some of the nodes, for some numbers of a tensor."""


def beyond_range(
    sizes: Mapping[str, Floats],
    mixing: Mixing,
    exponents: Mapping[str, int],
    elsewhere: SumsElsewhere,
) -> dict[str, int]:
    """By name of a tensor whose sums may leave int64: their bound."""
    most = {
        name: bound(sizes[name], mixing, exponent, elsewhere.sizes(name))
        for name, exponent in exponents.items()
    }
    return {name: each for name, each in most.items() if each >= 1 << RANGE_BITS}


def mix_models(
    models: SharedStack,
    into: SharedStack,
    sources: int,
    mean: State,
    sizes: Mapping[str, Floats],
    mixing: Mixing,
    exponents: Mapping[str, int],
    elsewhere: SumsElsewhere,
    threads: Executor,
) -> None:
    """Write each mixture into its row of a stack of the same layout; of counters, the maxima.

    The first rows of `models` are the `sources` of the mixing.
    """
    layout, there = models.stack.layout, slice(0, sources)
    for name, *_ in layout.arrays:
        if name == PUSH_SUM_WEIGHT:
            write_column(into, name, mixing.totals[:, None])
            continue
        if name not in exponents:
            counted = _most_of_neighbors(column_of(models, there, name), mixing)
            elsewhere.count(name, counted)
            write_column(into, name, counted)
            continue
        exponent, reference = exponents[name], mean[name]
        most = bound(sizes[name], mixing, exponent, elsewhere.sizes(name))
        grid = _Grid(exponent, most)
        _mix_tensor(name, models, into, sources, reference, mixing, grid, elsewhere, threads)


@dataclass(frozen=True, slots=True)
class _Grid:
    exponent: int
    most: int
    """The limit of all sums on it."""


def _mix_tensor(
    name: str,
    models: SharedStack,
    into: SharedStack,
    sources: int,
    mean: Array,
    mixing: Mixing,
    grid: _Grid,
    elsewhere: SumsElsewhere,
    threads: Executor,
) -> None:
    kind, columns = models.stack.layout.words(name)
    reference, at_once = in_a_row(mean), models.at_once

    def mix_some(
        mixing: Mixing, nodes: slice, rows: Array, some: slice, made: Array, where: slice
    ) -> None:
        within = slice(some.start - columns.start, some.stop - columns.start)
        mixed = partial(
            mix,
            rows,
            reference[within],
            mixing,
            grid.exponent,
            grid.most,
            made,
            columns=where,
            summed=elsewhere.of(name, nodes, within, threads),
        )
        list(threads.map(mixed, _shared_out(mixing.nodes)))

    if at_once is None and kind.itemsize >= 4:
        rows, made = models.stack.rows.view(kind), into.stack.rows.view(kind)
        nodes = slice(0, mixing.nodes)
        for some in _strips(columns, len(elsewhere.rows_of(nodes))):
            mix_some(mixing, nodes, rows, some, made, some)
        return
    room = sources + 2 * len(elsewhere.rows_of(slice(0, mixing.nodes)))
    for some, nodes in _blocks(at_once, kind, columns, room, mixing):
        part, taken = _part_of(mixing, nodes)
        rows = _at_least_float32(models.read(kind, taken, some, threads))
        made = np.empty((part.nodes, rows.shape[1]), rows.dtype)
        mix_some(part, nodes, rows, some, made, slice(0, rows.shape[1]))
        into.write(made.astype(kind, copy=False), nodes.start, some, threads)


def _strips(columns: slice, sums: int) -> Iterator[slice]:
    """Columns that are mixed at a time, so that few enough sums are added up; all without sums."""
    width = max(WIDTH, SUMS_AT_ONCE // (8 * sums)) if sums else columns.stop - columns.start
    for begin in range(columns.start, columns.stop, max(1, width)):
        yield slice(begin, min(begin + width, columns.stop))


def add_up_models(
    name: str,
    models: SharedStack,
    into: Array,
    reference: Array,
    mixing: Mixing,
    exponent: int,
    threads: Executor,
) -> None:
    """Write the sum of a tensor (nodes, n), of int64, for each row of a mixing.

    Its sources are the first models. No sum may leave int64.
    """
    kind, columns = models.stack.layout.words(name)

    def add_some(mixing: Mixing, rows: Array, within: slice, made: Array, where: slice) -> None:
        added = partial(add_up, rows, reference[within], mixing, exponent, made, columns=where)
        list(threads.map(added, _shared_out(mixing.nodes)))

    if models.at_once is None and kind.itemsize >= 4:
        add_some(mixing, models.stack.rows.view(kind), slice(None), into, columns)
        return
    room = int(mixing.sources.max()) + 1 + mixing.nodes
    for some, nodes in _blocks(models.at_once, kind, columns, room, mixing):
        part, taken = _part_of(mixing, nodes)
        rows = _at_least_float32(models.read(kind, taken, some, threads))
        made = np.empty((part.nodes, rows.shape[1]), np.int64)
        within = slice(some.start - columns.start, some.stop - columns.start)
        add_some(part, rows, within, made, slice(0, rows.shape[1]))
        into[nodes, within] = made


def _blocks(
    at_once: int | None, kind: np.dtype[Any], columns: slice, sources: int, mixing: Mixing
) -> Iterator[tuple[slice, slice]]:
    """Words and nodes that are mixed at a time, with few enough bytes; all without a limit.

    A block has all nodes where that leaves it wide enough: then each number is read once.
    """
    if at_once is None:
        yield columns, slice(0, mixing.nodes)
        return
    numbers = at_once // max(4, kind.itemsize)
    width = max(WIDTH // kind.itemsize, numbers // (sources + mixing.nodes))
    for begin in range(columns.start, columns.stop, width):
        some = slice(begin, min(begin + width, columns.stop))
        for nodes in _nodes_at_once(mixing, sources, numbers // (some.stop - some.start)):
            yield some, nodes


def _nodes_at_once(mixing: Mixing, sources: int, most: int) -> Iterator[slice]:
    """Parts of the nodes that have at most so many rows with those that they take of, or one."""
    first = 0
    while first < mixing.nodes:
        last = mixing.nodes
        if sources + last - first > most:
            ends = np.arange(first + 1, mixing.nodes + 1)
            rows = mixing.starts[ends] - mixing.starts[first] + ends - first
            last = first + max(1, int(np.searchsorted(rows, most, side="right")))
        yield slice(first, last)
        first = last


def _part_of(mixing: Mixing, nodes: slice) -> tuple[Mixing, Indices]:
    """The mixing of some nodes, and the sources that they take of, in its order."""
    starts = mixing.starts[nodes.start : nodes.stop + 1]
    entries = slice(int(starts[0]), int(starts[-1]))
    taken, sources = np.unique(mixing.sources[entries], return_inverse=True)
    summed = None if mixing.summed is None else mixing.summed[nodes]
    weights = mixing.weights[entries]
    return Mixing(starts - starts[0], sources, weights, summed=summed), taken


def _shared_out(nodes: int) -> list[slice]:
    """A part of the nodes for each thread."""
    ends = np.linspace(0, nodes, THREADS + 1).astype(int).tolist()
    return [slice(first, last) for first, last in pairwise(ends)]


def squares_of(models: SharedStack, there: Indices, mean: State, names: Iterable[str]) -> int:
    """The sum of some models' squared distances to a model, over the tensors of these names.

    It is exact, in units of 2**-`SQUARES_BITS`: sites' sums add up to the same in any grouping.
    """
    references, total = {name: in_a_row(mean[name]) for name in names}, 0
    for part in models.parts(as_slice(there)):
        of_clients: Floats = np.zeros(len(part))
        for name, reference in references.items():
            kind, columns = part.layout.words(name)
            rows = part.rows.view(kind)
            if kind.itemsize < 4:
                rows, columns = _at_least_float32(rows[:, columns]), slice(None)
            of_clients += squared_distances(rows, reference, columns)
        squares = np.nan_to_num(of_clients).tolist()
        total += sum(int(math.ldexp(each, SQUARES_BITS)) for each in squares if each < LARGEST)
    return total


def _at_least_float32(rows: Array) -> Array:
    return rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)


def _most_of_neighbors(rows: Array, mixing: Mixing) -> Array:
    """The elementwise maxima of counters over each client and those that it takes of."""
    taken = mixing.weights > 0
    taken |= mixing.sources == np.repeat(np.arange(mixing.nodes), np.diff(mixing.starts))
    starts = np.concatenate([[0], np.cumsum(taken)])[mixing.starts[:-1]]
    return np.asarray(np.maximum.reduceat(rows[mixing.sources[taken]], starts, axis=0))
