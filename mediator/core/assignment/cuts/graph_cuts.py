"""Cuts of a graph into parts of given sizes: by METIS, in order, and refined.

Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning irregular
graphs". METIS knows neither fixed vertices nor hard limits: `within` keeps the limits, and
`refined` moves vertices to where their neighbors and their fixed neighbors are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
PASSES = 4
CUTS = 10
"""So many divisions METIS tries at each level of bisection."""
MANY_EDGES, MOSTLY_CUT, ALIKE = 100_000, 0.25, 0.01
"""Of a graph with more edges two divisions are compared first. If they cut so large a part of all
edges, and nearly as many, the best of ten is hardly better, and takes four times as long."""
SWAPS = 1_000
"""At most so many times in a pass a vertex looks for another one to change places with."""


@dataclass(frozen=True, slots=True, eq=False)
class Adjacency:
    """An undirected graph whose vertices are 0 to n - 1."""

    starts: Indices
    """(n + 1,): where the neighbors of each vertex begin."""
    neighbors: Indices
    """(2 m,)"""
    drawn: Indices
    """(n, parts): edges of each vertex to what is fixed in each part."""

    @classmethod
    def of(cls, vertices: int, ends: Indices, drawn: Indices) -> Adjacency:
        """Edges (m, 2), each pair once."""
        one = np.concatenate([ends[:, 0], ends[:, 1]])
        other = np.concatenate([ends[:, 1], ends[:, 0]])
        order = np.lexsort((other, one))
        starts = np.searchsorted(one[order], np.arange(vertices + 1))
        return cls(starts.astype(np.int64), other[order], drawn)

    @property
    def vertices(self) -> int:
        return len(self.starts) - 1

    @property
    def edges(self) -> int:
        """Among the vertices, and to what is fixed."""
        return len(self.neighbors) // 2 + int(self.drawn.sum())

    @property
    def owners(self) -> Indices:
        """(2 m,): whose neighbors they are."""
        return np.repeat(np.arange(self.vertices), np.diff(self.starts))

    def neighbors_of(self, vertices: Indices) -> Indices:
        """The neighbors of these, one vertex after another."""
        counts = np.diff(self.starts)[vertices]
        ends = np.cumsum(counts)
        first = np.repeat(self.starts[vertices] - (ends - counts), counts)
        return self.neighbors[first + np.arange(len(first))]

    def among(self, vertices: Indices) -> Adjacency:
        """The graph of these vertices alone, ascending and counted anew."""
        place = np.full(self.vertices, -1, dtype=np.int64)
        place[vertices] = np.arange(len(vertices))
        others = place[self.neighbors_of(vertices)]
        inside = others >= 0
        owners = np.repeat(np.arange(len(vertices)), np.diff(self.starts)[vertices])[inside]
        starts = np.searchsorted(owners, np.arange(len(vertices) + 1))
        return Adjacency(starts.astype(np.int64), others[inside], self.drawn[vertices])

    def towards(self, parts: Indices) -> Indices:
        """(n, parts): edges of each vertex into each part."""
        found = self.drawn.copy()
        np.add.at(found, (self.owners, parts[self.neighbors]), 1)
        return found


def crossing(graph: Adjacency, parts: Indices) -> int:
    """The edges between parts, (n,) the part of each vertex."""
    inside = graph.towards(parts)[np.arange(graph.vertices), parts]
    to_fixed = graph.drawn[np.arange(graph.vertices), parts].sum()
    return graph.edges - int((inside.sum() - to_fixed) // 2 + to_fixed)


def in_order(goal: Indices) -> Indices:
    """Parts of these sizes, one after another."""
    return np.repeat(np.arange(len(goal)), goal)


def by_metis(
    graph: Adjacency,
    goal: Indices,
    *,
    recursive: bool,
    tries: int = CUTS,
    sizes: Indices | None = None,
    weights: Indices | None = None,
) -> Indices:
    """METIS's parts, about as large as `goal`; the same on every machine with one version of it.

    Vertices have `sizes`, and edges `weights`, in the order of the neighbors; 1 if left out.
    """
    import pymetis

    used = np.flatnonzero(goal)
    share = (goal[used] / goal.sum()).tolist()
    found = pymetis.part_graph(
        len(used),
        pymetis.CSRAdjacency(graph.starts, graph.neighbors),
        vweights=sizes,
        eweights=weights,
        tpwgts=share,
        recursive=recursive,
        options=pymetis.Options(ncuts=tries) if recursive else None,
        warn_on_copies=False,
    )
    return used[np.asarray(found.vertex_part, dtype=np.int64)]


def by_bisection(graph: Adjacency, goal: Indices, fewest: int) -> Indices:
    """METIS's parts by recursive bisection: the best of many, if more than two are worth a try.

    They are not where another way cuts fewer edges than two, the `fewest`, or where all are alike.
    """
    if graph.edges > MANY_EDGES:
        two = by_metis(graph, goal, recursive=True, tries=2)
        cut = crossing(graph, two)
        if cut > fewest:
            return two
        if cut > MOSTLY_CUT * graph.edges:
            once = crossing(graph, by_metis(graph, goal, recursive=True, tries=1))
            if abs(once - cut) <= ALIKE * once:
                return two
    return by_metis(graph, goal, recursive=True)


def within(graph: Adjacency, parts: Indices, most: Indices) -> Indices:
    """Move vertices out of parts above their limits (parts,), those first that lose the least."""
    parts, towards = parts.copy(), graph.towards(parts)
    sizes = np.bincount(parts, minlength=len(most))
    for part in np.flatnonzero(sizes > most).tolist():
        inside = np.flatnonzero(parts == part)
        open_ = towards[inside] - np.where(sizes < most, 0, graph.edges + 1)
        loss = towards[inside, part] - open_.max(axis=1)
        for vertex in inside[np.argsort(loss, kind="stable")].tolist():
            if sizes[part] <= most[part]:
                break
            options = np.where(sizes < most, towards[vertex], -1)
            _move(graph, vertex, int(options.argmax()), parts, towards, sizes)
    return parts


def refined(graph: Adjacency, parts: Indices, most: Indices) -> Indices:
    """Move vertices where that cuts fewer edges; parts stay within their limits (parts,).

    Vertices are looked at in their order, a few times. If the best part is full, two vertices
    change places (Kernighan and Lin 1970, Fiduccia and Mattheyses 1982, without moves uphill).
    """
    parts, towards = parts.copy(), graph.towards(parts)
    sizes = np.bincount(parts, minlength=len(most))
    every = np.arange(graph.vertices)
    members: dict[
        int, Indices
    ] = {}  # of parts that no vertex came to or left since they were found
    for _ in range(PASSES):
        gains = towards.max(axis=1) - towards[every, parts]
        moved, searched = 0, 0
        for vertex in np.flatnonzero(gains > 0).tolist():
            here, best = int(parts[vertex]), int(towards[vertex].argmax())
            if sizes[best] >= most[best] > 0 and searched < SWAPS:
                searched += 1
                if best not in members:
                    members[best] = np.flatnonzero(parts == best)
                other = _partner(graph, vertex, members[best], best, parts, towards)
                if other is not None:
                    _move(graph, vertex, best, parts, towards, sizes)
                    _move(graph, other, here, parts, towards, sizes)
                    for part in (here, best):
                        members.pop(part, None)
                    moved += 1
                    continue
            open_ = np.where(sizes < most, towards[vertex], -1)
            to = int(open_.argmax())
            if open_[to] > towards[vertex, here]:
                _move(graph, vertex, to, parts, towards, sizes)
                for part in (here, to):
                    members.pop(part, None)
                moved += 1
        if not moved:
            break
    return parts


def _partner(
    graph: Adjacency, vertex: int, inside: Indices, to: int, parts: Indices, towards: Indices
) -> int | None:
    """The vertex `inside` the part `to` with which to change places, if that cuts fewer edges."""
    if not len(inside):
        return None
    here = int(parts[vertex])
    flat, rows = towards.reshape(-1), inside * towards.shape[1]
    gains = flat.take(rows + here) - flat.take(rows + to)
    neighbors = graph.neighbors[graph.starts[vertex] : graph.starts[vertex + 1]]
    gains[np.searchsorted(inside, neighbors[parts[neighbors] == to])] -= 2  # their edge stays cut
    own, best = towards[vertex, to] - towards[vertex, here], int(gains.argmax())
    return int(inside[best]) if own + gains[best] > 0 else None


def _move(
    graph: Adjacency, vertex: int, to: int, parts: Indices, towards: Indices, sizes: Indices
) -> None:
    neighbors = graph.neighbors[graph.starts[vertex] : graph.starts[vertex + 1]]
    here = parts[vertex]
    towards[neighbors, here] -= 1
    towards[neighbors, to] += 1
    sizes[here] -= 1
    sizes[to] += 1
    parts[vertex] = to
