"""Mixing: the weights by which nodes mix their neighbors' states into their own.

Weights are whole numbers over 2**16. So a mixed state is a sum of integers, which has the same bits
in any order and grouping, and is divided once, by the sum of its weights. A node's own weight takes
what its neighbors leave of 2**16.

On a directed graph a node splits what it has among those that receive from it (push-sum, Kempe et
al. 2003). Then nodes have unequal weights, which travel with their states: `split`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..state import Array
from .edges import Edges, Nodes

UNIT = 1 << 16
"""What the weights of a node sum to."""
PUSH_SUM_UNIT = 1 << 26
"""The first push-sum weight of a node. Times `UNIT`, two million of them fit int64."""
LEAST_WEIGHT = PUSH_SUM_UNIT >> 12
"""A node of less weight would move thousands of times as far as its training says."""
SETTLED, MOST_WORK = 200, 50_000_000
"""Steps after which weights hardly change, and entries that are worth looking at for that."""
SQUARES_BITS = 128
"""Sums of squared distances are in units of 2**-128."""
EDGE = "the weight of the edge from {} to {}"


class NotMixable(Exception):
    """Weights that an algorithm cannot use; users see the reason, with their names for nodes."""

    def __init__(self, reason: str, *nodes: int) -> None:
        """`reason` has a `{}` for each of the nodes."""
        super().__init__(reason, *nodes)
        self.reason, self.nodes = reason, nodes

    def told(self, name: Callable[[int], str]) -> str:
        """The reason in words, with a name for each node."""
        return self.reason.format(*map(name, self.nodes))

    def __str__(self) -> str:
        return self.told(lambda node: f"node {node}")


@dataclass(frozen=True, slots=True, eq=False)
class Mixing:
    """A sparse matrix of weights: row i holds what node i takes of each state.

    It may be about some nodes of a graph: then there are more sources than rows (`among`).
    """

    starts: Nodes
    """(nodes + 1,): where each node's entries begin."""
    sources: Nodes
    """(m + nodes,): by receiver, its neighbors and itself."""
    weights: Nodes
    """(m + nodes,), in units of 2**-16; none is negative."""
    is_split: bool = False
    """Whether the entries of a source, and not those of a row, sum to 2**16: what a node gives."""
    summed: Nodes | None = None
    """(nodes,): the weights of what other sites have added up; None if they have not."""

    @property
    def nodes(self) -> int:
        """How many rows there are."""
        return len(self.starts) - 1

    def edges_between(self, givers: Nodes, takers: Nodes) -> tuple[Nodes, Nodes]:
        """Sources and targets (m,) of the edges from some nodes to others."""
        entries = self._entries_of(takers)
        targets = np.repeat(takers, np.diff(self.starts)[takers])
        gives = np.zeros(self.nodes, dtype=bool)
        gives[givers] = True
        crossing = gives[self.sources[entries]]
        return self.sources[entries][crossing], targets[crossing]

    def among(self, nodes: Nodes, others: Nodes | None = None) -> tuple[Mixing, Nodes]:
        """The mixing of some nodes, and the others whose states they take, ascending.

        Sources are counted through `nodes`, in their order, and then through the others; more
        others may be given.
        """
        entries = self._entries_of(nodes)
        if others is None:
            others = np.setdiff1d(self.sources[entries], nodes)
        place: Nodes = np.zeros(self.nodes, dtype=np.int64)
        place[np.concatenate([nodes, others])] = np.arange(len(nodes) + len(others))
        starts = np.concatenate([[0], np.cumsum(np.diff(self.starts)[nodes])])
        sources, weights = place[self.sources[entries]], self.weights[entries]
        return Mixing(starts, sources, weights, self.is_split), others

    def _entries_of(self, nodes: Nodes) -> Nodes:
        """The places of these nodes' entries, node by node."""
        counts = np.diff(self.starts)[nodes]
        ends = np.cumsum(counts)
        first: Nodes = np.repeat(self.starts[nodes] - (ends - counts), counts)
        return first + np.arange(len(first))

    def without(self, absent: Nodes) -> Mixing:
        """The mixing of a round in which these nodes neither give nor take: their edges are gone.

        A neighbor of an absent node adds to its own weight what it would take of that node, or give
        to it. An absent node mixes nothing.
        """
        receivers = self._receivers
        gone = np.zeros(self.nodes, dtype=bool)
        gone[absent] = True
        own = receivers == self.sources
        dropped = (gone[receivers] | gone[self.sources]) & ~own
        kept: Nodes = np.zeros(self.nodes, dtype=np.int64)
        keeps = self.sources if self.is_split else receivers
        np.add.at(kept, keeps[dropped], self.weights[dropped])
        weights = self.weights.copy()
        weights[own] += kept
        return replace(self, weights=weights)._only(~dropped)

    def to(self, nodes: Nodes, of: Nodes) -> Mixing:
        """What some nodes take of others alone, which are counted in their order."""
        place: Nodes = np.full(self.nodes, -1)
        place[of] = np.arange(len(of))
        entries = self._entries_of(nodes)
        starts = np.concatenate([[0], np.cumsum(np.diff(self.starts)[nodes])])
        all_ = Mixing(starts, place[self.sources[entries]], self.weights[entries], self.is_split)
        return all_._only(all_.sources >= 0)

    def without_sources(self, sources: Nodes) -> Mixing:
        """The same without what is taken of some sources; a row needs another one."""
        return self._only(~np.isin(self.sources, sources))

    def _only(self, kept: npt.NDArray[np.bool_]) -> Mixing:
        """Some of the entries (m,); a row needs one."""
        starts: Nodes = np.concatenate([[0], np.cumsum(kept)])[self.starts]
        return replace(self, starts=starts, sources=self.sources[kept], weights=self.weights[kept])

    def split(self, push_sum_weights: Nodes) -> Mixing:
        """What each node takes if every node splits its push-sum weight (nodes,) by these weights.

        Amounts are rounded down, and a node keeps the rest: their sum stays as it is. The sum of a
        row, `totals`, is the node's next push-sum weight.
        """
        own = self._receivers == self.sources
        taken = (push_sum_weights[self.sources] * self.weights) // UNIT
        given: Nodes = np.zeros(self.nodes, dtype=np.int64)
        np.add.at(given, self.sources[~own], taken[~own])
        taken[own] = push_sum_weights - given
        return Mixing(self.starts, self.sources, taken)

    @property
    def totals(self) -> Nodes:
        """(nodes,): the sum of each row, with what other sites have added up."""
        found: Nodes = np.add.reduceat(self.weights, self.starts[:-1])
        return found if self.summed is None else found + self.summed

    @property
    def _receivers(self) -> Nodes:
        return np.repeat(np.arange(self.nodes), np.diff(self.starts))


def metropolis(edges: Edges, *, lazy: bool = False) -> Mixing:
    """Metropolis-Hastings weights of a symmetric graph: 1 / (1 + the larger degree of two ends).

    `lazy` halves them; a node then keeps at least half of its own state. Rows and columns sum to
    2**16 exactly (Xiao, Boyd and Lall 2005; Lian et al. 2017).

    Raises NotMixable for a directed graph, or where an edge's weight rounds to 0.
    """
    _refuse_directed(edges)
    degrees = edges.received
    larger = np.maximum(degrees[edges.receivers], degrees[edges.sources])
    # Rounded down, so that no node's neighbors take more than there is.
    return _mixing(edges, UNIT // ((2 if lazy else 1) * (1 + larger)))


def of_the_graph(edges: Edges, fractions: npt.NDArray[np.float64]) -> Mixing:
    """The graph's own weights (m,), fractions of 1, rounded; a node's own is what they leave of 1.

    Raises NotMixable for a directed graph, where a weight is above 1 or rounds to 0, where those of
    a node's neighbors sum to more than 1, or where what all take of a node does not sum to 1: such
    weights would move the mean.
    """
    _refuse_directed(edges)
    mixing = _mixing(edges, _units(edges, fractions))
    given: Nodes = np.zeros(edges.nodes, dtype=np.int64)
    np.add.at(given, mixing.sources, mixing.weights)
    uneven = np.flatnonzero(given != UNIT)
    if len(uneven):
        raise NotMixable(
            f"all clients together take {given[uneven[0]] / UNIT:.4g} of {{}}, and 1 is needed: "
            "the weights are not doubly stochastic",
            int(uneven[0]),
        )
    return mixing


def uniform(edges: Edges, *, lazy: bool = False) -> Mixing:
    """Each node gives the same to itself and to all that receive from it; `lazy` keeps half more.

    The graph may be directed. Raises NotMixable where an edge's weight rounds to 0.
    """
    given = UNIT // ((2 if lazy else 1) * (1 + edges.given))
    return _mixing(edges, given[edges.sources], split=True)


def split_by_the_graph(edges: Edges, fractions: npt.NDArray[np.float64]) -> Mixing:
    """The graph's own weights (m,) as what each source gives, fractions of 1; it keeps the rest.

    Raises NotMixable where a weight rounds to 0, or where a node would keep nothing.
    """
    mixing = _mixing(edges, _units(edges, fractions), split=True)
    own = np.repeat(np.arange(edges.nodes), np.diff(mixing.starts)) == mixing.sources
    nothing = np.flatnonzero(mixing.weights[own] == 0)
    if len(nothing):
        raise NotMixable("{} gives all that it has, and has to keep some", int(nothing[0]))
    return mixing


def push_sum_step(before: Array, after: Array, push_sum_weights: Nodes) -> Array:
    """What nodes' models (k, ...) become by local training, of the type of `after`.

    A node trains its model, and its training moves the model times its weight, which is what
    push-sum conserves (Assran et al. 2019). So a node of half the weight moves twice as far. Only
    trained tensors take steps: running statistics are measured anew, and stay as measured.
    """
    fractions = push_sum_weights.reshape(-1, *[1] * (after.ndim - 1)) / PUSH_SUM_UNIT
    from_ = before.astype(np.float64)
    return np.asarray(from_ + (after - from_) / fractions, dtype=after.dtype)


def least_weight(mixing: Mixing) -> tuple[int, int]:
    """The node whose push-sum weight becomes the least on a static graph, and that weight."""
    weights: Nodes = np.full(mixing.nodes, PUSH_SUM_UNIT)
    for _ in range(min(SETTLED, max(10, MOST_WORK // len(mixing.weights)))):
        weights = mixing.split(weights).totals
    node = int(weights.argmin())
    return node, int(weights[node])


def consensus_distance(squares: int, nodes: int, moved: float) -> float:
    """How far the nodes' states are from their mean: the root of the mean squared distance.

    `squares` is the sum of the squared distances to a point, in units of 2**-`SQUARES_BITS`, and
    `moved` the squared distance of the mean to that point (Kong et al. 2021, "Consensus control for
    decentralized deep learning").
    """
    return math.sqrt(max(0.0, squares / (nodes << SQUARES_BITS) - moved))


def _refuse_directed(edges: Edges) -> None:
    if not edges.is_symmetric:
        raise NotMixable("the graph is directed, and these weights need edges in both directions")


def _units(edges: Edges, fractions: npt.NDArray[np.float64]) -> Nodes:
    """Fractions of 1 in units of 2**-16."""
    units: Nodes = np.rint(np.minimum(fractions, 2.0) * UNIT).astype(np.int64)
    above = np.flatnonzero(units > UNIT)
    if len(above):
        found = f"is {fractions[above[0]]:g}, and at most 1 is allowed"
        raise NotMixable(f"{EDGE} {found}", *_ends(edges, above[0]))
    return units


def _mixing(edges: Edges, weights: Nodes, *, split: bool = False) -> Mixing:
    """Add each node's own weight: what is left of 2**16 by its neighbors, or for it to keep."""
    nothing = np.flatnonzero(weights == 0)
    if len(nothing):
        raise NotMixable(f"{EDGE} is below 1 / {UNIT}", *_ends(edges, nothing[0]))
    given: Nodes = np.zeros(edges.nodes, dtype=np.int64)
    np.add.at(given, edges.sources if split else edges.receivers, weights)
    over = np.flatnonzero(given > UNIT)
    if len(over):
        whose = "what {} gives" if split else "the weights of the neighbors of {}"
        found = f"sum{'s' * split} to {given[over[0]] / UNIT:.4g}, and at most 1 is allowed"
        raise NotMixable(f"{whose} {found}", int(over[0]))
    itself = np.arange(edges.nodes)
    receivers = np.concatenate([edges.receivers, itself])
    sources = np.concatenate([edges.sources, itself])
    order = np.lexsort((sources, receivers))
    starts = np.searchsorted(receivers[order], np.arange(edges.nodes + 1))
    every = np.concatenate([weights, UNIT - given])
    return Mixing(starts.astype(np.int64), sources[order], every[order].astype(np.int64), split)


def _ends(edges: Edges, at: int) -> tuple[int, int]:
    return int(edges.sources[at]), int(edges.receivers[at])
