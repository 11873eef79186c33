"""Weights are whole numbers that sum to 2**16 exactly, and mix as the papers say."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.rounds.exchange_costs import crossings, states_alone
from fedpilot.federated.core.topology.edges import Edges
from fedpilot.federated.core.topology.graphs import GraphOptions, TopologyName, topology
from fedpilot.federated.core.topology.mixing import (
    PUSH_SUM_UNIT,
    UNIT,
    Mixing,
    NotMixable,
    metropolis,
    of_the_graph,
    push_sum_step,
    split_by_the_graph,
    uniform,
)
from mixings import columns, dense, row


@st.composite
def undirected(draw: st.DrawFn) -> Edges:
    nodes = draw(st.integers(1, 30))
    node = st.integers(0, nodes - 1)
    return Edges.undirected(nodes, draw(st.lists(st.tuples(node, node), max_size=80)))


def rows(mixing: Mixing) -> list[int]:
    return [sum(row(mixing, node).values()) for node in range(mixing.nodes)]


@given(undirected(), st.booleans())
def test_metropolis_weights_are_symmetric_and_sum_to_one_both_ways(
    edges: Edges, lazy: bool
) -> None:
    mixing = metropolis(edges, lazy=lazy)
    assert rows(mixing) == columns(mixing) == [UNIT] * edges.nodes
    matrix = dense(mixing)
    assert (matrix == matrix.T).all()
    assert (matrix >= 0).all()
    degrees = edges.received
    for to, of in zip(edges.receivers.tolist(), edges.sources.tolist(), strict=True):
        ideal = 1 / ((1 + max(degrees[to], degrees[of])) * (2 if lazy else 1))
        assert ideal - 1 / UNIT < matrix[to, of] <= ideal
    if lazy:
        assert (matrix.diagonal() >= 0.5).all()


@given(undirected())
def test_a_row_has_a_nodes_neighbors_and_itself(edges: Edges) -> None:
    mixing = metropolis(edges)
    for node in range(edges.nodes):
        neighbors = edges.sources[edges.receivers == node].tolist()
        assert list(row(mixing, node)) == sorted({node, *neighbors})


def test_a_node_with_very_many_neighbors_keeps_a_weight_that_is_not_negative() -> None:
    edges = topology(TopologyName.COMPLETE, 500, GraphOptions(), 0).of_round(1)
    mixing = metropolis(edges)
    assert columns(mixing) == [UNIT] * 500
    assert min(row(mixing, 0).values()) > 0


def test_mixing_again_and_again_ends_at_the_mean() -> None:
    edges = topology(TopologyName.RING, 9, GraphOptions(), 0).of_round(1)
    matrix = dense(metropolis(edges))
    state = np.arange(9.0)
    for _ in range(300):
        state = matrix @ state
    assert state == pytest.approx(np.full(9, 4.0))


def test_a_directed_graph_has_no_metropolis_weights() -> None:
    with pytest.raises(NotMixable, match="the graph is directed"):
        metropolis(Edges.of(3, receivers=[1], sources=[0]))


@st.composite
def directed(draw: st.DrawFn) -> Edges:
    nodes = draw(st.integers(1, 30))
    ends = draw(st.lists(st.tuples(*[st.integers(0, nodes - 1)] * 2), max_size=80))
    return Edges.of(nodes, *np.array(ends, dtype=np.int64).reshape(-1, 2).T)


@given(directed(), st.booleans(), st.data())
def test_splitting_again_and_again_conserves_the_sum_and_leaves_everybody_some(
    edges: Edges, lazy: bool, data: st.DataObject
) -> None:
    mixing = uniform(edges, lazy=lazy)
    assert columns(mixing) == [UNIT] * edges.nodes
    absent = data.draw(st.lists(st.integers(0, edges.nodes - 1), unique=True))
    weights = np.full(edges.nodes, PUSH_SUM_UNIT)
    for _ in range(5):
        taken = mixing.without(np.array(absent, dtype=np.int64)).split(weights)
        assert columns(taken) == weights.tolist()
        assert (taken.weights >= 0).all()
        assert (taken.totals[absent] == weights[absent]).all()
        weights = taken.totals
    assert weights.sum() == edges.nodes * PUSH_SUM_UNIT
    assert (weights > 0).all()


def test_a_node_gives_the_same_to_itself_and_to_all_that_receive_from_it() -> None:
    mixing = uniform(Edges.of(4, receivers=[1, 2, 3], sources=[0, 0, 1]))
    assert row(mixing, 0) == {0: UNIT - 2 * (UNIT // 3)}
    assert row(mixing, 1) == {0: UNIT // 3, 1: UNIT // 2}
    assert row(mixing, 3) == {1: UNIT // 2, 3: UNIT}
    half = uniform(Edges.of(4, receivers=[1, 2, 3], sources=[0, 0, 1]), lazy=True)
    assert row(half, 1) == {0: UNIT // 6, 1: UNIT - UNIT // 4}


def test_own_weights_of_a_directed_graph_are_what_a_node_gives() -> None:
    edges = Edges.of(3, receivers=[1, 2, 0], sources=[0, 1, 2])
    mixing = split_by_the_graph(edges, np.array([0.25, 0.5, 0.75]))
    assert columns(mixing) == [UNIT] * 3
    assert row(mixing, 1) == {0: UNIT // 2, 1: UNIT // 4}
    with pytest.raises(NotMixable, match="node 1 gives all that it has"):
        split_by_the_graph(edges, np.array([0.5, 0.5, 1.0]))


def test_training_moves_a_node_by_its_steps_over_its_weight() -> None:
    before, after = np.array([[1.0, 2.0]]), np.array([[2.0, 1.0], [3.0, 2.0]])
    weights = np.array([PUSH_SUM_UNIT // 2, PUSH_SUM_UNIT * 4])
    moved = push_sum_step(before, after.astype(np.float32), weights)
    assert moved.dtype == np.float32
    assert moved.tolist() == [[3.0, 0.0], [1.5, 2.0]]


def test_an_edge_without_weight_is_refused_by_its_ends() -> None:
    hub = np.zeros(UNIT, dtype=np.int64)
    star = Edges.undirected(UNIT + 1, np.stack([hub, np.arange(1, UNIT + 1)], axis=1))
    with pytest.raises(NotMixable, match=r"from node 1 to node 0 is below 1 / 65536"):
        metropolis(star)
    with pytest.raises(NotMixable) as refused:
        metropolis(star)
    assert "from c1 to c0 is" in refused.value.told(lambda node: f"c{node}")


@given(undirected(), st.randoms())
def test_nodes_in_another_order_mix_as_before(edges: Edges, random: Random) -> None:
    mixing, order = metropolis(edges), list(range(edges.nodes))
    random.shuffle(order)
    matrix, (moved, others) = dense(mixing), mixing.among(np.array(order, dtype=np.int64))
    assert len(others) == 0
    assert (dense(moved) == matrix[np.ix_(order, order)]).all()


@given(undirected(), st.randoms())
def test_some_nodes_mix_as_they_do_among_all(edges: Edges, random: Random) -> None:
    mixing, order = metropolis(edges), list(range(edges.nodes))
    random.shuffle(order)
    cut = random.randint(0, edges.nodes)
    some, rest = (np.array(part, dtype=np.int64) for part in (order[:cut], order[cut:]))
    part, others = mixing.among(some)
    of, to = mixing.edges_between(rest, some)
    assert others.tolist() == sorted(set(of.tolist()))
    assert not set(others) & set(some)
    sources = np.concatenate([some, others])
    elsewhere = mixing.to(some, rest)
    for place, node in enumerate(some.tolist()):
        found = {int(sources[source]): weight for source, weight in row(part, place).items()}
        assert found == row(mixing, node)
        theirs = {int(rest[source]): w for source, w in row(elsewhere, place).items()}
        assert theirs == {source: found[source] for source in of[to == node].tolist()}


TRIANGLE = Edges.undirected(3, [(0, 1), (1, 2), (0, 2)])


def test_a_graphs_own_weights_are_taken_as_they_are() -> None:
    mixing = of_the_graph(TRIANGLE, np.array([0.5, 0.125, 0.5, 0.25, 0.125, 0.25]))
    assert dense(mixing).tolist() == [
        [0.375, 0.5, 0.125],
        [0.5, 0.25, 0.25],
        [0.125, 0.25, 0.625],
    ]


@given(undirected(), st.floats(0.001, 1.0), st.integers(0, 100))
def test_own_weights_that_are_the_same_both_ways_conserve_the_sum(
    edges: Edges, size: float, seed: int
) -> None:
    ends = np.sort(np.stack([edges.receivers, edges.sources]), axis=0)
    each = np.random.default_rng(seed).random((edges.nodes, edges.nodes))
    degree = max(1, int(edges.received.max(initial=1)))
    weights = (0.01 + 0.98 * size * each[ends[0], ends[1]]) / degree
    mixing = of_the_graph(edges, weights)
    assert rows(mixing) == columns(mixing) == [UNIT] * edges.nodes


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([0.5, 0.1, 0.4, 0.1, 0.1, 0.1], "all clients together take 0.9 of node 0, and 1 is"),
        ([0.6, 0.6, 0.6, 0.1, 0.6, 0.1], "weights of the neighbors of node 0 sum to 1.2"),
        ([1.5, 0.1, 1.5, 0.1, 0.1, 0.1], "the edge from node 1 to node 0 is 1.5, and at most 1"),
        ([0.5, 1e-9, 0.5, 0.1, 1e-9, 0.1], "the edge from node 2 to node 0 is below 1 / 65536"),
    ],
)
def test_own_weights_that_would_move_the_mean_are_refused(weights: list[float], said: str) -> None:
    with pytest.raises(NotMixable, match=said):
        of_the_graph(TRIANGLE, np.array(weights))


@given(undirected(), st.integers(1, 4), st.randoms())
def test_a_state_crosses_once_to_each_place_that_takes_it(
    edges: Edges, places: int, random: Random
) -> None:
    place = np.array([random.randrange(places) for _ in range(edges.nodes)], dtype=np.int64)
    mixing = metropolis(edges)
    counted = 0
    for of in range(places):
        for by in set(range(places)) - {of}:
            by_nodes, of_nodes = (np.flatnonzero(place == each) for each in (by, of))
            counted += len(set(mixing.edges_between(of_nodes, by_nodes)[0].tolist()))
    crossing = crossings(edges.sources, edges.receivers, place, places, states_alone)
    assert (crossing.states.sum(), crossing.sums.sum()) == (counted, 0)
