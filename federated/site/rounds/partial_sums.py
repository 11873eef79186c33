"""Partial sums between sites: made for another site's clients, checked where they come, and held.

A partial sum is what a client of another site takes of some clients here: their moves from the mean
before the round, weighted and added as the mixing adds them. With it go the largest move in it, so
that the other site knows whether its own sum can leave int64, and with push-sum the weight that is
taken. Less can be checked of it than of models: its form, and that no number is larger than its
weight times that largest move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.population.sampling import Indices
from ...core.population.shares import Share
from ...core.state import Array, Roles, State, averaged, counters, in_a_row
from ...core.sums.partial import RANGE_BITS
from ...core.topology.mixing import Mixing
from ...engine.compiled.mixing import Floats, Summed
from ..states.layouts import Layout
from ..states.shared_memory import SharedStack
from .client_models import add_up_models, column_of

SUM, MOST = "partial/sum/", "partial/max/"
"""What names of tensors begin with: their sums, and the largest values of counters."""
LARGEST, WEIGHT = "partial/largest", "partial/weight"
"""(k, summed tensors) and (k,), of each partial sum."""

Form = tuple[np.dtype[Any], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumForm:
    """What partial sums of a run look like."""

    mean: State
    """The mean before the round."""
    roles: Roles
    exponents: Mapping[str, int]
    pushes: bool

    def of(self, count: int) -> dict[str, Form]:
        """By name, the type and shape of the tensors of so many sums."""
        int64 = np.dtype(np.int64)
        found: dict[str, Form] = {
            SUM + name: (int64, (count, *self.mean[name].shape)) for name in self.exponents
        }
        found[LARGEST] = np.dtype(np.float64), (count, len(self.exponents))
        for name in counters(self.roles):
            like = np.asarray(self.mean[name])
            found[MOST + name] = like.dtype, (count, *like.shape)
        if self.pushes:
            found[WEIGHT] = int64, (count,)
        return found if count else {}

    def problem(self, tensors: State, weights: Indices, most_weight: int) -> str:
        """What is wrong with sums of this form, which weigh so much; empty if nothing is seen."""
        largest = tensors[LARGEST]
        if not (largest >= 0).all():
            return "the largest move in one of its sums is no size"
        if not ((weights >= 0) & (weights <= most_weight)).all():
            return f"the weight of one of its sums is not between 0 and {most_weight}"
        for at, (name, exponent) in enumerate(self.exponents.items()):
            sums = tensors[SUM + name].reshape(len(weights), -1)
            tops, ends = sums.max(axis=1, initial=0).tolist(), sums.min(axis=1, initial=0).tolist()
            units = np.rint(np.ldexp(largest[:, at], exponent))
            for unit, weight, top, end in zip(units, weights.tolist(), tops, ends, strict=True):
                limit = (1 << RANGE_BITS) - 1
                if np.isfinite(unit):
                    limit = min(limit, int(unit) * weight)
                if max(top, -end) > limit:
                    return (
                        f"one of its sums of {name} reaches {max(top, -end)}, "
                        f"and its weight and its largest move allow {limit}"
                    )
        return ""


def made(
    models: SharedStack,
    mixing: Mixing,
    form: SumForm,
    sizes: Mapping[str, Floats],
    threads: Executor,
) -> State:
    """The sums of each row of a mixing, whose sources are the first models.

    `sizes` (sources,) are their largest moves. Where a sum could leave int64 its numbers are 0: the
    largest move says that the round has to be repeated.
    """
    tensors: dict[str, Array] = {}
    largest = np.zeros((mixing.nodes, len(form.exponents)))
    for at, (name, exponent) in enumerate(form.exponents.items()):
        moves = np.maximum.reduceat(sizes[name][mixing.sources], mixing.starts[:-1])
        largest[:, at] = moves
        with np.errstate(over="ignore", invalid="ignore"):
            most = np.rint(np.ldexp(moves, exponent)) * mixing.totals
        shape = (mixing.nodes, *form.mean[name].shape)
        sums = np.zeros((mixing.nodes, form.mean[name].size), dtype=np.int64)
        if (most < 1 << RANGE_BITS).all():
            reference = in_a_row(form.mean[name])
            add_up_models(name, models, sums, reference, mixing, exponent, threads)
        tensors[SUM + name] = sums.reshape(shape)
    tensors[LARGEST] = largest
    for name in counters(form.roles):
        rows = column_of(models, slice(0, int(mixing.sources.max()) + 1), name)
        least = np.iinfo(rows.dtype).min
        taken = np.where((mixing.weights > 0)[:, None], rows[mixing.sources], least)
        most_of = np.maximum.reduceat(taken, mixing.starts[:-1], axis=0)
        tensors[MOST + name] = most_of.reshape(mixing.nodes, *np.shape(form.mean[name]))
    if form.pushes:
        tensors[WEIGHT] = mixing.totals
    return tensors


@dataclass(frozen=True, slots=True, eq=False)
class _Come:
    """The sums of one site."""

    of: Share
    rows: Indices
    """(k,): which clients here they are for, in the order of their models."""
    weights: Indices
    sizes: Mapping[str, Floats]
    counted: Mapping[str, Array]
    sums: SharedStack


class TakenSums:
    """The partial sums that came for the clients here, before a mixing step."""

    def __init__(self, clients: int, form: SumForm) -> None:
        self._clients = clients
        self._form = form
        self._come: dict[Share, _Come] = {}
        """By the clients of the site that gave them."""
        self._layout = Layout.of(
            {
                name: np.broadcast_to(np.int64(0), form.mean[name].shape)
                for name in averaged(form.roles)
            }
        )

    def add(
        self, of: Share, rows: Indices, weights: Indices, tensors: State, beside: SharedStack
    ) -> None:
        """Hold a site's sums for these clients, which have been checked, where `beside` lies.

        If that site's have come before, these take their place.
        """
        sums = beside.room_for(self._layout, len(rows))
        for some in sums.blocks(slice(0, len(rows))):
            for name, column in sums.stack.columns.items():
                column[some] = tensors[SUM + name][some]
        largest = np.array(tensors[LARGEST])
        sizes = {name: largest[:, at] for at, name in enumerate(self._form.exponents)}
        counted = {name: np.array(tensors[MOST + name]) for name in counters(self._form.roles)}
        self._come[of] = _Come(of, rows, np.array(weights), sizes, counted, sums)

    @property
    def weights(self) -> Indices:
        """(clients,): of what each takes."""
        return self.weights_without(())

    def weights_without(self, of: Share) -> Indices:
        """(clients,): the same without the sums of one site."""
        found: Indices = np.zeros(self._clients, dtype=np.int64)
        for each in self._come.values():
            found[each.rows] += each.weights if each.of != of else 0
        return found

    def sizes(self, name: str) -> Floats | None:
        """(clients,): the largest move in what each takes; None if there are no sums."""
        if not self._come:
            return None
        found: Floats = np.zeros(self._clients)
        for each in self._come.values():
            found[each.rows] = np.maximum(found[each.rows], each.sizes[name])
        return found

    def count(self, name: str, most: Array) -> None:
        """Include counters in those of the clients (clients, size)."""
        for each in self._come.values():
            theirs = each.counted[name].reshape(len(each.rows), -1)
            most[each.rows] = np.maximum(most[each.rows], theirs)

    def rows_of(self, nodes: slice) -> Indices:
        """Which of these clients have a sum, ascending."""
        every: Sequence[Indices] = [np.empty(0, np.int64), *(c.rows for c in self._come.values())]
        rows: Indices = np.unique(np.concatenate(every))
        inside: Indices = rows[(rows >= nodes.start) & (rows < nodes.stop)]
        return inside

    def of(self, name: str, nodes: slice, words: slice, threads: Executor) -> Summed:
        """The sums of some of the clients, for some numbers of a tensor."""
        rows = self.rows_of(nodes)
        sums = np.zeros((len(rows), words.stop - words.start), dtype=np.int64)
        for each in self._come.values():
            kind, place = self._layout.words(name)
            some = np.flatnonzero((each.rows >= nodes.start) & (each.rows < nodes.stop))
            where = slice(place.start + words.start, place.start + words.stop)
            sums[np.searchsorted(rows, each.rows[some])] += each.sums.read(
                kind, some, where, threads
            )
        places: Indices = np.full(nodes.stop - nodes.start, -1)
        places[rows - nodes.start] = np.arange(len(rows))
        return Summed(sums, places)
