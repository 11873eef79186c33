"""Ways of cutting a graph that spare slow links: sites with slow ones get their parts first.

METIS gives all cut edges the same weight, whichever parts they are between. So a part for a slow
link is cut off alone, and as small as its limits allow.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from .graph_cuts import Adjacency, by_metis

Indices = npt.NDArray[np.int64]
Prices = npt.NDArray[np.float64]
DEAR = 2.0
"""A link counts as slow if a model takes so many times as long on it as on the fastest one."""
TRIES = 3
"""So many divisions METIS tries when it cuts off the parts of slow sites."""
CENTERS = 3
"""So many clients are tried as the center of a part."""


def lean(goal: Indices, least: Indices, most: Indices, prices: Prices) -> Indices:
    """Sizes (sites,) within their limits by which the largest `size x price` is least.

    They stay as near to `goal` as that allows.
    """
    clients = int(goal.sum())
    low, high = 0.0, float((most * prices).max(initial=0.0)) + 1.0
    for _ in range(64):
        middle = (low + high) / 2
        if _largest(middle, least, most, prices).sum() < clients:
            low = middle
        else:
            high = middle
    largest = _largest(high, least, most, prices)
    sizes = np.minimum(goal, largest)
    room = np.cumsum(largest - sizes)
    added = room * (clients - int(sizes.sum())) // max(1, int(room[-1]))
    return sizes + np.diff(added, prepend=0)


def _largest(limit: float, least: Indices, most: Indices, prices: Prices) -> Indices:
    """The largest sizes for which `size x price` is within a limit, or the least."""
    fits = np.where(prices > 0, limit / np.where(prices > 0, prices, 1.0), most)
    return np.clip(np.floor(fits), least, most).astype(np.int64)


def slow_links(goal: Indices, prices: Prices) -> Indices:
    """The sites with slow links, the slowest first; of those that get clients."""
    used = np.flatnonzero(goal)
    slow = used[prices[used] > DEAR * prices[used].min(initial=np.inf)]
    ranked: Indices = slow[np.argsort(-prices[slow], kind="stable")]
    return ranked


def apart(graph: Adjacency, sizes: Indices, slow: Indices) -> Indices:
    """METIS's parts of these sizes: first the slow sites' together, cut off from all others."""
    others = np.setdiff1d(np.flatnonzero(sizes), slow)
    both = np.array([sizes[slow].sum(), sizes[others].sum()])
    side, parts = (
        by_metis(graph, both, recursive=True, tries=TRIES),
        np.zeros(graph.vertices, dtype=np.int64),
    )
    for number, sites in enumerate((np.sort(slow), others)):
        here = np.flatnonzero(side == number)
        parts[here] = sites[by_metis(graph.among(here), sizes[sites], recursive=False)]
    return parts


def around(graph: Adjacency, sizes: Indices, slow: Indices) -> Indices:
    """Parts of these sizes: for each slow site all that is near to a client, METIS's for the rest.

    On a grid these have fewer clients at their border than parts with the fewest edges.
    """
    others = np.setdiff1d(np.flatnonzero(sizes), slow)
    starts, neighbors = graph.starts.tolist(), graph.neighbors.tolist()
    tried: list[Indices] = []
    for center in range(0, graph.vertices, -(-graph.vertices // CENTERS)):
        grown, last = [-1] * graph.vertices, center
        for site in slow[sizes[slow] > 0].tolist():
            last = _grow(starts, neighbors, site, int(sizes[site]), last, grown)
        tried.append(np.array(grown, dtype=np.int64))
    owners = graph.owners
    parts = min(tried, key=lambda each: int((each[owners] != each[graph.neighbors]).sum()))
    left = np.flatnonzero(parts < 0)
    if len(left):
        parts[left] = others[by_metis(graph.among(left), sizes[others], recursive=False)]
    return parts


def _grow(
    starts: list[int], neighbors: list[int], part: int, size: int, center: int, parts: list[int]
) -> int:
    """Give a part so many vertices without one, breadth first from the first one after a center.

    Returns where to look for the next open one.
    """
    waiting: deque[int] = deque()
    while size:
        while not waiting:
            if parts[center] < 0:
                parts[center] = part
                waiting.append(center)
                size -= 1
            center = (center + 1) % len(parts)
        last = waiting.popleft()
        for near in neighbors[starts[last] : starts[last + 1]]:
            if size and parts[near] < 0:
                parts[near] = part
                waiting.append(near)
                size -= 1
    return center
