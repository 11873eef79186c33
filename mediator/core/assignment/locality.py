"""`locality`: clients that exchange with each other lie at one site, as far as its vnodes allow.

No way of cutting a graph is the best for all: METIS cuts planted communities well, and loses to the
plain order of clients on a ring with shortcuts. So several are tried, and the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from .graph_cuts import Adjacency, by_metis, crossing, in_order, refined, within
from .proportions import proportional
from .records import AssignmentProblem, Division
from .shares import members, share_of

Indices = npt.NDArray[np.int64]
WORTH_REFINING = 1.25
"""Cuts of up to so many times the least edges are refined, which takes seconds on large graphs."""
MOST_EDGES = 5_000_000
"""Graphs with more edges are divided in the order of their clients: METIS would take minutes."""
MOST_RANGES = 150_000
"""An order names its clients by ranges, and has room for some 200,000."""
BALANCE = 0.05
"""How far above its part by vnodes a site's number of clients may be."""


def locality(problem: AssignmentProblem) -> Division:
    """Cut the fewest edges between sites, each within 5 % of its part by vnodes.

    Pinned clients stay; a site that has many of them gets fewer others. Without an exchange,
    clients are divided in their order.
    """
    free, names = members(problem.clients), sorted(site.name for site in problem.sites)
    counts = _counts(problem, len(free))
    goal = np.array([counts[name] for name in names], dtype=np.int64)
    graph = _graph_of(problem, free, names)
    most = np.maximum(goal, np.floor(goal * (1 + BALANCE)).astype(np.int64))
    most[goal == 0] = 0
    tried = {way: within(graph, parts, most) for way, parts in _ways(graph, goal)}
    cuts = {way: crossing(graph, parts) for way, parts in tried.items()}
    least = min(cuts.values())
    for way, parts in tried.items():
        if cuts[way] <= least * WORTH_REFINING:
            tried[way] = refined(graph, parts, most)
            cuts[way] = crossing(graph, tried[way])
    best = min(cuts, key=lambda way: cuts[way])
    parts = tried[best]
    shares = {name: share_of(free[parts == place]) for place, name in enumerate(names)}
    if (ranges := sum(map(len, shares.values()))) > MOST_RANGES:
        shares = {name: share_of(free[in_order(goal) == i]) for i, name in enumerate(names)}
        reason = f"by their order: {ranges:,} ranges of clients would not fit into orders"
        return Division(shares=shares, reason=f"dividing {reason}")
    return Division(shares=shares, reason=_why(best, cuts, graph))


def _ways(graph: Adjacency, goal: Indices) -> Iterator[tuple[str, Indices]]:
    yield "their order", in_order(goal)
    if 0 < graph.edges <= MOST_EDGES and np.count_nonzero(goal) > 1:
        yield "k-way METIS", by_metis(graph, goal, recursive=False)
        yield "recursive METIS", by_metis(graph, goal, recursive=True)


def _counts(problem: AssignmentProblem, free: int) -> Mapping[str, int]:
    """How many movable clients each site gets, so that with its pinned ones it has its part."""
    vnodes = {site.name: site.vnodes for site in problem.sites}
    stay = {name: len(members(problem.pinned.get(name, ()))) for name in vnodes}
    if not sum(vnodes.values()):
        vnodes = dict.fromkeys(vnodes, 1)
    wanted = proportional(free + sum(stay.values()), vnodes)
    room = {name: max(0, wanted[name] - stay[name]) for name in vnodes}
    return proportional(free, room if sum(room.values()) else vnodes)


def _graph_of(problem: AssignmentProblem, free: Indices, names: list[str]) -> Adjacency:
    """The exchange among movable clients, and of each with the pinned ones of each site."""
    ends = np.empty((0, 2), np.int64) if problem.exchange is None else problem.exchange.pairs.ends
    drawn = np.zeros((len(free), len(names)), dtype=np.int64)
    inside = np.isin(ends, free)
    for place, name in enumerate(names):
        pinned = members(problem.pinned.get(name, ()))
        for one, other in ((0, 1), (1, 0)):
            here = inside[:, one] & np.isin(ends[:, other], pinned)
            np.add.at(drawn[:, place], np.searchsorted(free, ends[here, one]), 1)
    both = ends[inside.all(axis=1)]
    return Adjacency.of(len(free), np.searchsorted(free, both), drawn)


def _why(best: str, cuts: Mapping[str, int], graph: Adjacency) -> str:
    if not graph.edges:
        return ""
    others = ", ".join(f"{way} {cut:,}" for way, cut in cuts.items() if way != best)
    compared = f" ({others})" if others else ""
    return f"dividing by {best} cuts {cuts[best]:,} of {graph.edges:,} edges{compared}"
