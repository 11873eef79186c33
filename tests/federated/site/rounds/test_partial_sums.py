"""Mixing with partial sums of another site gives the bits of mixing with its states."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.rounds.exchange_costs import crossing_sizes
from fedpilot.federated.core.state import Array, State, TensorRole, nbytes
from fedpilot.federated.core.topology.covers import CrossingSizes, cheapest_cover
from fedpilot.federated.core.topology.edges import Edges
from fedpilot.federated.core.topology.mixing import PUSH_SUM_UNIT, Mixing, metropolis, uniform
from fedpilot.federated.site.rounds.client_models import beyond_range, largest_of, mix_models
from fedpilot.federated.site.rounds.partial_sums import (
    LARGEST,
    MOST,
    SUM,
    WEIGHT,
    SumForm,
    TakenSums,
    made,
)
from fedpilot.federated.site.states.layouts import PUSH_SUM_WEIGHT, Layout
from fedpilot.federated.site.states.shared_memory import SharedStack, Spill
from fedpilot.mediator.core.assignment.shares import share_of

ROLES = {
    "b": TensorRole.TRAINED,
    "seen": TensorRole.COUNTER,
    "t": TensorRole.STATISTIC,
    "w": TensorRole.TRAINED,
}


class Clients:
    """Clients of a graph with models of their own, at any sites."""

    def __init__(self, edges: Edges, kind: str, *, pushes: bool, wide: int, size: float) -> None:
        random = np.random.default_rng(edges.nodes + len(edges))
        shapes: dict[str, tuple[int, ...]] = {"w": (2, wide), "b": (3,), "t": ()}
        self.models: dict[str, Array] = {
            name: np.clip(random.normal(size=(edges.nodes, *shape)) * size, -6e4, 6e4).astype(kind)
            for name, shape in shapes.items()
        }
        self.models["seen"] = random.integers(0, 9, (edges.nodes, 2))
        self.mean: State = {name: array[0] for name, array in self.models.items()}
        exponents = {"b": 30, "t": 32, "w": 25}
        self.form = SumForm(mean=self.mean, roles=ROLES, exponents=exponents, pushes=pushes)
        self.mixing = metropolis(edges)
        if pushes:
            weights = random.integers(PUSH_SUM_UNIT // 4, PUSH_SUM_UNIT, edges.nodes)
            self.models[PUSH_SUM_WEIGHT] = weights
            self.mixing = uniform(edges).split(weights)
        self.layout = Layout.of({name: array[0] for name, array in self.models.items()})

    def stack(self, clients: Array, spill: Spill | None) -> SharedStack:
        stack = SharedStack(self.layout, len(clients), spill)
        for name, column in stack.stack.columns.items():
            column[...] = self.models[name][clients]
        return stack

    def mixed_at(
        self, here: Array, others: Array, sums: TakenSums, mixing: Mixing, spill: Spill | None
    ) -> tuple[bytes, dict[str, int]]:
        """The models after mixing at a site, and which of its sums leave their range."""
        models = self.stack(np.concatenate([here, others]), spill)
        into = self.stack(here, spill)
        exponents, count = self.form.exponents, len(here) + len(others)
        sizes = largest_of(models, slice(0, count), self.mean, exponents)
        elsewhere = np.setdiff1d(np.arange(len(here), count), mixing.sources)
        for name, each in sizes.items():  # nothing has come of these
            each[elsewhere] = 0
            models.stack.columns[name][elsewhere] = np.nan
        beyond = beyond_range(sizes, mixing, exponents, sums)
        if beyond:
            return b"", beyond
        with ThreadPoolExecutor(2) as threads:
            mix_models(models, into, count, self.mean, sizes, mixing, exponents, sums, threads)
        return into.stack.rows.tobytes(), beyond

    def sums_of(self, givers: Array, mixing: Mixing, spill: Spill | None) -> State:
        models = self.stack(givers, spill)
        sizes = largest_of(models, slice(0, len(givers)), self.mean, self.form.exponents)
        with ThreadPoolExecutor(2) as threads:
            return made(models, mixing, self.form, sizes, threads)


def by_sums(
    clients: Clients, places: Array, sizes: CrossingSizes, spill: Spill | None
) -> list[tuple[bytes, dict[str, int]]]:
    """The mixtures at each place, where sums cross as is cheapest."""
    found = []
    for place in range(3):
        here = np.flatnonzero(places == place)
        if not len(here):
            continue
        sums, summed, others = TakenSums(len(here), clients.form), [], clients.mixing.among(here)[1]
        for other in set(range(3)) - {place}:
            givers = np.flatnonzero(places == other)
            of, to = clients.mixing.edges_between(givers, here)
            cover = cheapest_cover(of, to, sizes)
            if not len(cover.sums):
                continue
            rest = np.setdiff1d(of, cover.states)
            mixing = clients.mixing.to(cover.sums, givers)
            mixing = mixing.without_sources(np.flatnonzero(np.isin(givers, cover.states)))
            tensors = clients.sums_of(givers, mixing, spill)
            assert {
                name: (array.dtype, array.shape) for name, array in tensors.items()
            } == clients.form.of(len(cover.sums))
            assert clients.form.problem(tensors, mixing.totals, 1 << 62) == ""
            beside = clients.stack(here, spill)
            rows, of_other = np.searchsorted(here, cover.sums), share_of(givers)
            for _ in range(2):  # an order that comes twice changes nothing
                sums.add(of_other, rows, mixing.totals, tensors, beside)
            summed.append(rest)
        mixing, _ = clients.mixing.among(here)
        if summed:
            gone = len(here) + np.searchsorted(others, np.concatenate(summed))
            mixing = replace(mixing.without_sources(gone), summed=sums.weights)
        found.append(clients.mixed_at(here, others, sums, mixing, spill))
    return found


def by_states(clients: Clients, places: Array) -> list[tuple[bytes, dict[str, int]]]:
    found = []
    for place in range(3):
        if len(here := np.flatnonzero(places == place)):
            mixing, others = clients.mixing.among(here)
            nothing = TakenSums(len(here), clients.form)
            found.append(clients.mixed_at(here, others, nothing, mixing, None))
    return found


@st.composite
def apart(draw: st.DrawFn) -> tuple[Edges, Array]:
    """A graph with hubs, and the site of each of its clients."""
    nodes = draw(st.integers(1, 16))
    ends = st.tuples(st.integers(0, nodes - 1), st.integers(0, min(2, nodes - 1)))
    pairs = draw(st.lists(ends, max_size=60))
    places = draw(st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes))
    return Edges.undirected(nodes, np.array(pairs, dtype=np.int64)), np.array(places)


@settings(max_examples=settings().max_examples // 3)
@given(
    apart(),
    st.sampled_from(["float16", "float32", "float64"]),
    st.booleans(),
    st.sampled_from([1, 20, 300]),
    st.sampled_from([1e-3, 1.0, 3e4]),
    st.sampled_from([None, 1, 1 << 14]),
)
def test_mixing_by_sums_is_mixing_by_states_in_every_bit(
    graph: tuple[Edges, Array],
    kind: str,
    pushes: bool,
    partial: int,
    size: float,
    at_once: int | None,
) -> None:
    """Sums that leave their range do so in both, and the largest limit is the same."""
    edges, places = graph
    wide = 3000 if at_once == 1 << 14 else 5
    clients = Clients(edges, kind, pushes=pushes, wide=wide, size=size)
    with tempfile.TemporaryDirectory() as folder:
        spill = None if at_once is None else Spill(Path(folder), at_once)
        summed = by_sums(clients, places, CrossingSizes(100, partial), spill)
    states = by_states(clients, places)
    assert [mixed for mixed, _ in summed] == [mixed for mixed, _ in states]
    assert [beyond for _, beyond in summed] == [beyond for _, beyond in states]


@pytest.mark.parametrize("pushes", [False, True])
def test_a_sum_is_as_large_as_the_plan_says(pushes: bool) -> None:
    edges = Edges.undirected(6, [(0, other) for other in range(1, 6)])
    clients = Clients(edges, "float32", pushes=pushes, wide=7, size=1.0)
    givers = np.arange(1, 6)
    tensors = clients.sums_of(givers, clients.mixing.to(np.array([0]), givers), None)
    sizes = crossing_sizes(clients.mean, ROLES, pushes=pushes)
    assert nbytes(tensors.values()) == sizes.partial
    state = clients.stack(givers[:1], None).stack.columns
    assert nbytes(state.values()) == sizes.state


def spoilt(tensors: State, name: str, value: Any) -> State:
    array = np.array(tensors[name])
    array.reshape(-1)[-1] = value
    return {**tensors, name: array}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        pytest.param(LARGEST, np.nan, "no size", id="a largest move that is no number"),
        pytest.param(LARGEST, -1.0, "no size", id="a negative largest move"),
        pytest.param(LARGEST, 0.0, "its largest move allow 0", id="a largest move too small"),
        pytest.param(SUM + "w", 1 << 61, "of w reaches 2305843009213693952", id="a huge sum"),
        pytest.param(SUM + "b", -(1 << 63), "of b reaches 9223372036854775808", id="the least sum"),
        pytest.param(WEIGHT, -1, "between 0 and", id="a negative weight"),
        pytest.param(WEIGHT, 7 * PUSH_SUM_UNIT, "between 0 and", id="all weight and more"),
    ],
)
def test_what_no_sum_can_be_is_seen(name: str, value: Any, said: str) -> None:
    edges = Edges.undirected(6, [(0, other) for other in range(1, 6)])
    clients, givers = Clients(edges, "float32", pushes=True, wide=7, size=1.0), np.arange(1, 6)
    tensors = clients.sums_of(givers, clients.mixing.to(np.array([0]), givers), None)
    most = 6 * PUSH_SUM_UNIT
    assert clients.form.problem(tensors, tensors[WEIGHT], most) == ""
    lie = spoilt(tensors, name, value)
    assert said in clients.form.problem(lie, lie[WEIGHT], most)


def test_a_move_that_leaves_its_type_is_no_lie() -> None:
    """The round is repeated on a coarser grid, as with states."""
    edges = Edges.undirected(3, [(0, 1), (0, 2)])
    clients, givers = Clients(edges, "float32", pushes=False, wide=1, size=1.0), np.arange(1, 3)
    clients.models["w"][1], clients.models["w"][0] = 3e38, -3e38
    clients.mean = {**clients.mean, "w": clients.models["w"][0]}
    clients.form = replace(clients.form, mean=clients.mean)
    mixing = clients.mixing.to(np.array([0]), givers)
    tensors = clients.sums_of(givers, mixing, None)
    assert np.isinf(tensors[LARGEST]).any()
    assert not tensors[SUM + "w"].any()
    assert clients.form.problem(tensors, mixing.totals, 1 << 62) == ""
    sums = TakenSums(1, clients.form)
    beside = clients.stack(givers, None)
    sums.add(share_of(givers), np.array([0]), mixing.totals, tensors, beside)
    alone, _ = clients.mixing.among(np.array([0]))
    own = replace(alone.without_sources(np.array([1, 2])), summed=sums.weights)
    _, beyond = clients.mixed_at(np.array([0]), givers, sums, own, None)
    assert list(beyond) == ["w"]


def test_counters_are_the_largest_of_all_who_give() -> None:
    edges = Edges.undirected(4, [(0, 1), (0, 2), (0, 3)])
    clients, givers = Clients(edges, "float32", pushes=False, wide=1, size=1.0), np.arange(1, 4)
    tensors = clients.sums_of(givers, clients.mixing.to(np.array([0]), givers), None)
    assert (tensors[MOST + "seen"][0] == clients.models["seen"][1:].max(axis=0)).all()
