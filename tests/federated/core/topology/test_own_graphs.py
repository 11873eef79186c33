"""Graphs that a user's function returns: all clients, weights that are numbers, or a reason."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.topology.own_graphs import edges_of
from fedpilot.federated.core.topology.weighted_edges import NotAGraph

CLIENTS = ["anna", "ben", "cleo", "dora"]


def ring(**weights: Any) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.cycle_graph(CLIENTS)
    for name, weight in weights.items():
        graph.edges[name, CLIENTS[(CLIENTS.index(name) + 1) % 4]]["weight"] = weight
    return graph


def named(graph: object) -> dict[tuple[str, str], float]:
    """By (who takes, who gives)."""
    found = edges_of(graph, CLIENTS)
    ends = zip(found.edges.receivers.tolist(), found.edges.sources.tolist(), strict=True)
    return dict(zip([(CLIENTS[a], CLIENTS[b]) for a, b in ends], found.weights, strict=True))


def test_nodes_are_clients_by_their_ids_or_numbers() -> None:
    assert named(ring()) == named(nx.cycle_graph(4))
    assert len(named(ring())) == 8


def test_weights_are_those_of_the_edges_or_1() -> None:
    found = named(ring(anna=0.25, cleo=np.float32(0.5)))
    assert found["ben", "anna"] == found["anna", "ben"] == 0.25
    assert found["dora", "cleo"] == 0.5
    assert found["cleo", "ben"] == 1.0


def test_an_edge_of_a_directed_graph_leads_to_who_takes() -> None:
    graph: nx.DiGraph[str] = nx.cycle_graph(CLIENTS, create_using=nx.DiGraph)
    assert list(named(graph)) == [
        ("anna", "dora"),
        ("ben", "anna"),
        ("cleo", "ben"),
        ("dora", "cleo"),
    ]


def test_edges_to_oneself_and_edges_of_weight_0_count_for_nothing() -> None:
    graph = ring(dora=0)
    graph.add_edge("anna", "anna")
    assert len(named(graph)) == 6
    assert edges_of(graph, CLIENTS).loops == 1


def lacking(*names: str) -> nx.Graph[str]:
    graph = ring()
    graph.remove_nodes_from(names)
    return graph


def among(*nodes: Any) -> nx.Graph[Any]:
    graph: nx.Graph[Any] = ring()
    graph.add_nodes_from(nodes)
    return graph


def parallel() -> nx.Graph[str]:
    graph: nx.MultiGraph[str] = nx.MultiGraph(ring())
    graph.add_edge("anna", "ben", weight=2.0)
    return graph


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        pytest.param(None, "nothing", id="nothing"),
        pytest.param([("anna", "ben")], "type list", id="a list of edges"),
        pytest.param(nx.Graph, "type type", id="a class"),
        pytest.param(lacking("ben"), "lacks client ben$", id="a client less"),
        pytest.param(lacking("ben", "dora"), "lacks client ben and 1 more", id="two clients less"),
        pytest.param(nx.Graph(), "lacks client 0", id="no clients"),
        pytest.param(among("eve"), "no client is called 'eve'", id="a stranger"),
        pytest.param(nx.cycle_graph(5), "no client is called '4'", id="a number too many"),
        pytest.param(among(("anna", 1)), "of type tuple", id="a tuple"),
        pytest.param(among(1.0), "of type float", id="a float"),
        pytest.param(among(True), "of type bool", id="a truth value"),
        pytest.param(ring(anna=-1), "ben.*negative", id="a negative weight"),
        pytest.param(ring(anna=float("nan")), "not finite", id="a weight that is no number"),
        pytest.param(ring(anna=float("inf")), "not finite", id="an infinite weight"),
        pytest.param(ring(anna=10**400), "not finite", id="a weight beyond floats"),
        pytest.param(ring(anna="1"), "of type str", id="a text as a weight"),
        pytest.param(ring(anna=None), "nothing", id="no weight"),
        pytest.param(ring(anna=True), "of type bool", id="a truth value as a weight"),
        pytest.param(ring(anna=1 + 0j), "of type complex", id="a complex weight"),
        pytest.param(parallel(), "two weights", id="two edges that differ"),
    ],
)
def test_what_is_no_graph_of_the_clients_is_refused(graph: object, said: str) -> None:
    with pytest.raises(NotAGraph, match=said):
        edges_of(graph, CLIENTS)


NODES = st.one_of(
    st.sampled_from([*CLIENTS, "0", "3", "eve", ""]),
    st.integers(-1, 5),
    st.floats(),
    st.binary(max_size=2),
)
WEIGHTS = st.one_of(st.floats(), st.integers(), st.text(max_size=2), st.none(), st.booleans())


@given(
    st.sampled_from([nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]),
    st.lists(NODES),
    st.lists(st.tuples(NODES, st.sampled_from(CLIENTS), WEIGHTS)),
)
def test_a_graph_of_anything_is_one_of_the_clients_or_a_reason(
    kind: type[nx.Graph[Any]], nodes: list[Any], ends: list[tuple[Any, Any, Any]]
) -> None:
    graph = kind()
    graph.add_nodes_from(nodes)
    for source, receiver, weight in ends:
        graph.add_edge(source, receiver, weight=weight)
    try:
        found = edges_of(graph, CLIENTS)
    except NotAGraph:
        return
    assert np.isfinite(found.weights).all()
    assert (found.weights > 0).all()
    assert (found.edges.receivers < len(CLIENTS)).all()
