"""Topologies by name: which graph a number of nodes forms, and in which round.

A static topology has one graph for all rounds; `matching` and `exponential` have another one in
each round. Graphs drawn at random come from (seed, round) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import networkx as nx
import numpy as np
import numpy.typing as npt

from ..randomness import Purpose, stream
from .edges import Edges

MOST_EDGES = 20_000_000
"""About a gigabyte of weights."""


class TopologyName(StrEnum):
    """The graphs that can be named; each is described by its function."""

    RING = "ring"
    TORUS = "torus"
    K_CONNECTED = "k_connected"
    COMPLETE = "complete"
    RANDOM_REGULAR = "random_regular"
    ERDOS_RENYI = "erdos_renyi"
    SMALL_WORLD = "small_world"
    TREE = "tree"
    MATCHING = "matching"
    EXPONENTIAL = "exponential"


class NoSuchGraph(Exception):
    """Options of which there is no graph with so many nodes."""

    def __init__(self, found: str, allowed: str, option: str = "") -> None:
        """`option` is the one of `GraphOptions` to blame, if it is one."""
        super().__init__(found, allowed, option)
        self.found, self.allowed, self.option = found, allowed, option

    def __str__(self) -> str:
        return f"{self.found}; allowed: {self.allowed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """What the topologies with parameters need; None for what is not set."""

    degree: int | None = None
    probability: float | None = None
    rows: int | None = None
    branching: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The graphs of a run's rounds."""

    nodes: int
    of_round: Callable[[int], Edges]
    """By round number, from 1 on."""
    changes: bool = False
    """Whether each round has another graph."""
    weights: npt.NDArray[np.float64] | None = None
    """Of each edge, in a graph that has weights of its own."""
    loops: int = 0
    """Edges from a node to itself that were found, and count for nothing."""

    @classmethod
    def static(
        cls, edges: Edges, weights: npt.NDArray[np.float64] | None = None, loops: int = 0
    ) -> Topology:
        """One graph for all rounds."""
        return cls(edges.nodes, lambda _: edges, weights=weights, loops=loops)


def topology(name: TopologyName, nodes: int, options: GraphOptions, seed: int) -> Topology:
    """The topology of that name; raises NoSuchGraph with the reason and what is possible."""
    if nodes < 2:
        raise NoSuchGraph(f"{nodes} client, which has no neighbors", "at least 2 clients")
    edges = _edges(name, nodes, options)
    if edges > MOST_EDGES:
        raise NoSuchGraph(
            f"about {edges:,.0f} edges among {nodes:,} clients",
            f"at most {MOST_EDGES:,} edges, which fit into memory",
        )
    return _MADE[name](nodes, options, seed)


def _edges(name: TopologyName, nodes: int, options: GraphOptions) -> float:
    """About how many edges there will be."""
    match name:
        case TopologyName.COMPLETE:
            return nodes * (nodes - 1) / 2
        case TopologyName.ERDOS_RENYI:
            return (options.probability or 0.0) * nodes * (nodes - 1) / 2
        case _:
            return nodes * (options.degree or 4) / 2


def ring(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """Each node exchanges with the one before it and the one behind it."""
    return Topology.static(Edges.from_graph(nx.cycle_graph(nodes)))


def torus(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """Nodes lie in `rows` rows of equal length, and exchange with four neighbors around the edges.

    Without `rows` the grid is as square as the number allows.
    """
    rows = options.rows or max(r for r in range(1, math.isqrt(nodes) + 1) if nodes % r == 0)
    if nodes % rows or min(rows, nodes // rows) < 2:
        possible = _listed(_divisors(nodes))
        raise NoSuchGraph(
            f"{nodes} clients in {options.rows or 'equal'} rows",
            f"rows of equal length, at least 2 of at least 2: {possible}"
            if possible
            else "a number of clients that is no prime",
            "rows" if options.rows else "",
        )
    place = np.arange(nodes).reshape(rows, -1)
    right = np.stack([place, np.roll(place, -1, axis=1)], axis=-1)
    below = np.stack([place, np.roll(place, -1, axis=0)], axis=-1)
    ends = np.concatenate([right.reshape(-1, 2), below.reshape(-1, 2)])
    return Topology.static(Edges.undirected(nodes, ends))


def k_connected(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """A ring in which each node exchanges with its `degree` nearest, half of them on each side.

    Any `degree` - 1 nodes can fail, and the rest is still connected (Harary 1962).
    """
    degree = _degree(nodes, options, even=True)
    graph = nx.circulant_graph(nodes, range(1, degree // 2 + 1))
    return Topology.static(Edges.from_graph(graph))


def complete(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """Every node exchanges with all others."""
    receivers, sources = np.divmod(np.arange(nodes * nodes), nodes)
    return Topology.static(Edges.of(nodes, receivers, sources))


def random_regular(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """A random graph in which each node has `degree` neighbors."""
    degree = _degree(nodes, options)
    if nodes * degree % 2:
        raise NoSuchGraph(
            f"{degree} neighbors for each of {nodes} clients: each edge has two ends, and "
            f"{degree * nodes} is odd",
            _listed([each for each in (degree - 1, degree + 1) if 0 < each < nodes]),
            "degree",
        )
    # Dense graphs are hard to draw: the edges that are missing are drawn in their place.
    few = degree if degree <= nodes // 2 else nodes - 1 - degree
    graph = nx.random_regular_graph(few, nodes, seed=_drawn(seed))
    return Topology.static(Edges.from_graph(graph if few == degree else nx.complement(graph)))


def erdos_renyi(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """Each two nodes exchange with this `probability`."""
    graph = nx.fast_gnp_random_graph(nodes, _probability(options), seed=_drawn(seed))
    return Topology.static(Edges.from_graph(graph))


def small_world(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """A ring of `degree` nearest, each edge moved elsewhere with this `probability`.

    Watts and Strogatz 1998.
    """
    degree = _degree(nodes, options, even=True)
    graph = nx.connected_watts_strogatz_graph(
        nodes, degree, _probability(options), seed=_drawn(seed)
    )
    return Topology.static(Edges.from_graph(graph))


def tree(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """Node 0 is the root; each node has up to `branching` children (2 if not set)."""
    return Topology.static(Edges.from_graph(nx.full_rary_tree(options.branching or 2, nodes)))


def matching(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """In each round random pairs exchange; of an odd number one node stays alone (Boyd 2006)."""

    def of_round(number: int) -> Edges:
        order = stream(seed, Purpose.TOPOLOGY, round=number).permutation(nodes)
        return Edges.undirected(nodes, order[: nodes // 2 * 2].reshape(-1, 2))

    return Topology(nodes, of_round, changes=True)


def exponential(nodes: int, options: GraphOptions, seed: int) -> Topology:
    """Directed, one receiver per node: 1 further on in the first round, then 2, 4, 8, and again.

    Each node reaches all others within as many rounds as the number of nodes has bits (the
    time-varying directed exponential graph of Assran et al. 2019).
    """
    period = max(1, (nodes - 1).bit_length())
    source = np.arange(nodes)

    def of_round(number: int) -> Edges:
        return Edges.of(nodes, (source + (1 << (number - 1) % period)) % nodes, source)

    return Topology(nodes, of_round, changes=True)


_MADE: Mapping[TopologyName, Callable[[int, GraphOptions, int], Topology]] = {
    TopologyName.RING: ring,
    TopologyName.TORUS: torus,
    TopologyName.K_CONNECTED: k_connected,
    TopologyName.COMPLETE: complete,
    TopologyName.RANDOM_REGULAR: random_regular,
    TopologyName.ERDOS_RENYI: erdos_renyi,
    TopologyName.SMALL_WORLD: small_world,
    TopologyName.TREE: tree,
    TopologyName.MATCHING: matching,
    TopologyName.EXPONENTIAL: exponential,
}


def _degree(nodes: int, options: GraphOptions, *, even: bool = False) -> int:
    degree = options.degree
    if degree is None:
        raise NoSuchGraph("no degree", "a number", "degree")
    if even and nodes < 3:
        raise NoSuchGraph("2 clients", "at least 3 clients")
    if not 0 < degree < nodes or (even and degree % 2):
        most = nodes - 1
        raise NoSuchGraph(
            f"{degree} neighbors for each of {nodes} clients",
            f"an even number from 2 to {most - most % 2}" if even else f"a number from 1 to {most}",
            "degree",
        )
    return degree


def _probability(options: GraphOptions) -> float:
    if options.probability is None:
        raise NoSuchGraph("no probability", "a number", "probability")
    return options.probability


def _drawn(seed: int) -> int:
    return int(stream(seed, Purpose.TOPOLOGY).integers(1 << 63))


def _divisors(number: int) -> list[int]:
    return [rows for rows in range(2, number // 2 + 1) if number % rows == 0]


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, ..." if len(numbers) > 8 else shown
