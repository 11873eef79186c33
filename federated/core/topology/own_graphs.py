"""Graphs that a user's function returns: networkx graphs over a run's clients, checked.

Such a function may return anything, so nothing of what it returns is trusted to have a type.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import networkx as nx
import numpy as np

from .graphs import MOST_EDGES
from .weighted_edges import NamedEdge, NotAGraph, WeightedEdges, weighted_edges


def edges_of(graph: object, clients: Sequence[str]) -> WeightedEdges:
    """The edges of a networkx graph whose nodes are all clients, by their ids or numbers from 0.

    Weights are the attribute `weight`, or 1. Raises NotAGraph.
    """
    if not isinstance(graph, nx.Graph):
        raise NotAGraph(f"it is {_kind(graph)}, and no networkx graph")
    if graph.number_of_edges() > MOST_EDGES:
        raise NotAGraph(f"it has {graph.number_of_edges():,} edges, and {MOST_EDGES:,} fit")
    names = [_name(node) for node in itertools.islice(graph, len(clients) + 1)]
    directed = bool(graph.is_directed())
    found = weighted_edges(list(_edges(graph)), clients, directed=directed)
    _check_nodes(names, clients)
    return found


def _edges(graph: nx.Graph[object]) -> Iterator[NamedEdge]:
    for source, receiver, content in graph.edges(data=True):
        of, to = _name(source), _name(receiver)
        where = f"the edge from {of[:60]} to {to[:60]}"
        yield NamedEdge(where, of, to, _weight(content.get("weight", 1.0), where))


def _check_nodes(names: Sequence[str], clients: Sequence[str]) -> None:
    """Raise NotAGraph unless the nodes are all clients, by their ids or else by their numbers."""
    there = set(names)
    numbers = [str(place) for place in range(len(clients))]
    if there in (set(clients), set(numbers)):
        return
    known = clients if there & set(clients) else numbers
    strangers = sorted(there - set(known))
    if strangers:
        raise NotAGraph(
            f"no client is called {strangers[0][:60]!r}; clients are {clients[0]} to "
            f"{clients[-1]}, or 0 to {len(clients) - 1}"
        )
    lacking = [name for name in known if name not in there]
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    raise NotAGraph(f"it lacks client {lacking[0]}{more}")


def _name(node: object) -> str:
    match node:
        case bool():
            pass
        case str():
            return str(node)
        case int() | np.integer():
            return str(int(node))
    raise NotAGraph(f"a node is {_kind(node)}, and no client's id or number")


def _weight(weight: object, where: str) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float | np.integer | np.floating):
        raise NotAGraph(f"{where}: its weight is {_kind(weight)}, and no number")
    try:
        return float(weight)
    except OverflowError:
        raise NotAGraph(f"{where}: its weight is not finite") from None


def _kind(thing: object) -> str:
    return "nothing (None)" if thing is None else f"of type {type(thing).__name__:.60}"
