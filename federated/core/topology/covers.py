"""Covers: which states cross from one site to another, and which partial sums take their place.

Sources at one site give to targets at another. A source's state serves all its edges there. A
target's partial sum serves all edges to that target: the giving site adds up what the target takes
of the sources whose states do not cross. So a choice is a vertex cover of the edges, and the
cheapest has the least weight. Both sites derive it from the graph, so it depends on neither the
order of the edges nor on other sites.

Each part of the edges that hangs together is decided alone, by the first of these that applies:

* A target takes so little that the states of its sources are no larger than a sum: they cross.
* Each state is paid for by its targets in equal shares, and no target pays more than its sum would
  cost: no cover is cheaper than all states.
* The same the other way around: no cover is cheaper than all sums.
* At most `FLOW_EDGES` edges: a minimum cut.
* Otherwise the targets with the most sources get sums, as many of them as is cheapest.

Of covers with equal bytes it prefers states.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .edges import Nodes

FLOW_EDGES = 4_000
"""Edges whose minimum cut is found in about a second."""
PEELED = 64
"""How often targets that take little are looked for: each state that crosses makes more of them."""
WHOLE = 1 << 30
"""What one state, or one sum, is divided into when others pay for it."""
REMEMBERED = 64
"""Covers that are kept: of each other site in both directions."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CrossingSizes:
    """Bytes of what crosses between sites for a mixing step."""

    state: int
    """Of a client's model, with its push-sum weight if it has one."""
    partial: int
    """Of a partial sum."""


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """What crosses from one site to another, both ascending."""

    states: Nodes
    """The sources whose states cross."""
    sums: Nodes
    """The targets that get a partial sum over their other sources."""
    alone: int
    """How many states would cross without sums."""
    reason: str = ""

    @classmethod
    def of_states(cls, sources: Nodes, reason: str = "") -> Cover:
        """Every source's state crosses."""
        states = np.unique(sources)
        return cls(states, np.empty(0, np.int64), len(states), reason)

    def nbytes(self, sizes: CrossingSizes) -> int:
        """Bytes that cross."""
        return len(self.states) * sizes.state + len(self.sums) * sizes.partial


CoverOf = Callable[[Nodes, Nodes], Cover]
"""From the sources and the targets of edges (m,)."""


def remembering(sizes: CrossingSizes) -> CoverOf:
    """`cheapest_cover` that keeps its last answers, for graphs that do not change."""
    kept: OrderedDict[bytes, Cover] = OrderedDict()

    def found(sources: Nodes, targets: Nodes) -> Cover:
        key = hashlib.sha256(np.stack([sources, targets]).tobytes()).digest()
        cover = kept.pop(key, None)
        kept[key] = cover = cheapest_cover(sources, targets, sizes) if cover is None else cover
        if len(kept) > REMEMBERED:
            kept.popitem(last=False)
        return cover

    return found


def cheapest_cover(sources: Nodes, targets: Nodes, sizes: CrossingSizes) -> Cover:
    """The cover of edges (m,) with the fewest bytes; never more than all states alone.

    It is the cheapest of all, unless more than `FLOW_EDGES` edges that hang together have to be
    decided by the number of sources.
    """
    givers, of = np.unique(sources, return_inverse=True)
    takers, to = np.unique(targets, return_inverse=True)
    most = int(np.bincount(to).max(initial=0))
    if most * sizes.state <= sizes.partial:
        reason = f"no target takes of more than {most}, which is no more than a sum"
        return Cover.of_states(givers, reason)
    crosses, summed = np.zeros(len(givers), bool), np.zeros(len(takers), bool)
    of, to = _peeled(of, to, len(takers), sizes, crosses)
    label = _parts(of, to, len(givers), len(takers))
    by_states = _pays(of, to, label, sizes.state, sizes.partial)
    by_sums = ~by_states & _pays(to, of, label, sizes.partial, sizes.state)
    crosses[of[by_states]] = True
    summed[to[by_sums]] = True
    rest = ~by_states & ~by_sums
    exact = True
    for some_of, some_to in _part_by_part(of[rest], to[rest], label[rest]):
        exact &= len(some_of) <= FLOW_EDGES
        decide = _minimum_cut if len(some_of) <= FLOW_EDGES else _hubs_first
        some_cross, some_summed = decide(some_of, some_to, sizes)
        crosses[some_cross] = True
        summed[some_summed] = True
    summed &= np.isin(np.arange(len(takers)), to[~crosses[of]])  # the others' sums are empty
    cover = Cover(givers[crosses], takers[summed], len(givers))
    instead = f"{len(cover.states)} states and {len(cover.sums)} sums instead of {cover.alone}"
    how = "the fewest bytes" if exact else "sums for the targets with the most sources"
    return Cover(cover.states, cover.sums, cover.alone, f"{instead} states: {how}")


def _peeled(
    of: Nodes, to: Nodes, takers: int, sizes: CrossingSizes, crosses: Mask
) -> tuple[Nodes, Nodes]:
    """Let the states of targets that take little cross; returns the edges that are left.

    A sum for such a target could be replaced by the states of its sources, at no cost.
    """
    for _ in range(PEELED):
        degrees = np.bincount(to, minlength=takers)
        little = degrees * sizes.state <= sizes.partial
        if not little[to].any():
            break
        crosses[of[little[to]]] = True
        left = ~crosses[of]
        of, to = of[left], to[left]
    return of, to


def _parts(of: Nodes, to: Nodes, givers: int, takers: int) -> Nodes:
    """(m,): a number for each edge, the same for edges that hang together."""
    label: Nodes = np.arange(givers + takers)
    one, other = of, givers + to
    while (apart := label[one] != label[other]).any():
        a, b = label[one[apart]], label[other[apart]]
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        while (label[label] != label).any():
            label = label[label]
    return label[one]


def _pays(of: Nodes, to: Nodes, label: Nodes, price: int, most: int) -> Mask:
    """(m,): whether all on the one side of an edge's part cost as little as any cover of it.

    Each of these costs `price`, and is paid for by its neighbors in equal shares. If no neighbor
    pays more than its own price, `most`, that is a dual solution of the same cost.
    """
    shares = -(-WHOLE // np.maximum(np.bincount(of), 1)) if len(of) else of
    paid: Nodes = np.zeros(int(to.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(paid, to, shares[of])
    over = paid > min(most * WHOLE // price, 1 << 62)
    return ~np.isin(label, label[over[to]])


def _part_by_part(of: Nodes, to: Nodes, label: Nodes) -> list[tuple[Nodes, Nodes]]:
    order = np.lexsort((to, of, label))
    cuts = np.flatnonzero(np.diff(label[order])) + 1
    if not len(order):
        return []
    return list(zip(np.split(of[order], cuts), np.split(to[order], cuts), strict=True))


def _minimum_cut(of: Nodes, to: Nodes, sizes: CrossingSizes) -> tuple[Nodes, Nodes]:
    """The sources and targets of a cheapest cover, with the fewest sums.

    What a minimum cut leaves on the sink's side is the least possible, for any maximum flow: so
    every version of networkx finds the same.
    """
    import networkx as nx

    givers, takers = np.unique(of).tolist(), np.unique(to).tolist()
    graph: nx.DiGraph[tuple[str, int]] = nx.DiGraph()
    begin, end = ("begin", 0), ("end", 0)
    graph.add_edges_from((begin, ("to", each), {"capacity": sizes.partial}) for each in takers)
    graph.add_edges_from((("of", each), end, {"capacity": sizes.state}) for each in givers)
    pairs = zip(of.tolist(), to.tolist(), strict=True)
    graph.add_edges_from((("to", target), ("of", source)) for source, target in pairs)
    _, (reached, _) = nx.minimum_cut(graph, begin, end)
    states = [each for each in givers if ("of", each) in reached]
    sums = [each for each in takers if ("to", each) not in reached]
    return np.array(states, dtype=np.int64), np.array(sums, dtype=np.int64)


def _hubs_first(of: Nodes, to: Nodes, sizes: CrossingSizes) -> tuple[Nodes, Nodes]:
    """Sums for the targets with the most sources, as many as cost least with the other states."""
    takers, places = np.unique(to, return_inverse=True)
    order = np.argsort(-np.bincount(places), kind="stable")
    rank = np.empty(len(takers), dtype=np.int64)
    rank[order] = np.arange(len(takers))
    givers, whose = np.unique(of, return_inverse=True)
    last: Nodes = np.zeros(len(givers), dtype=np.int64)
    np.maximum.at(last, whose, rank[places])
    # With sums for the first k targets, the sources whose last target is none of them cross.
    saved = np.concatenate([[0], np.cumsum(np.bincount(last, minlength=len(takers)))])
    costs = np.arange(len(takers) + 1) * sizes.partial - saved * sizes.state
    best = int(costs.argmin())
    return givers[last >= best], np.sort(takers[order[:best]])
