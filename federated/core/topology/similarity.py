"""Graphs between similar nodes: as many edges as before, in one part, between the most alike.

All comparisons are of whole numbers, so every machine finds the same graph.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..randomness import Purpose, stream
from .edges import Edges, Nodes

MOST_NODES = 4_000
"""All pairs are compared: some seconds, and half a gigabyte."""
UNIT = 1 << 16
"""Histograms are compared in fractions of 2**-16."""
_TIE_BITS = 24


def similar(edges: Edges, histograms: Nodes, seed: int) -> Edges:
    """Edges between nodes whose histograms (nodes, classes) are alike; both directions of each.

    A tree of the most similar pairs connects all nodes. Then the most similar of the other pairs
    follow, until there are as many edges as before. They give no node more neighbors than the node
    with the most of them had. Equal pairs come in a random order that `seed` decides.
    """
    nodes, ends = edges.nodes, len(edges) // 2
    apart = _keys(histograms, seed)
    tree = _tree(apart)
    most = max(2, int(edges.received.max(initial=0)))
    neighbors = np.bincount(tree.ravel(), minlength=nodes)
    one, other = np.triu_indices(nodes, 1)
    taken = {(min(pair), max(pair)) for pair in tree.tolist()}
    found = [tuple(pair) for pair in tree.tolist()]
    for at in np.argsort(apart[one, other], kind="stable").tolist():
        if len(found) >= ends:
            break
        a, b = int(one[at]), int(other[at])
        if (a, b) in taken or neighbors[a] >= most or neighbors[b] >= most:
            continue
        neighbors[a] += 1
        neighbors[b] += 1
        found.append((a, b))
    return Edges.undirected(nodes, found)


def _keys(histograms: Nodes, seed: int) -> Nodes:
    """(nodes, nodes): how far any two are apart, and below that a random number for each pair."""
    totals = np.maximum(histograms.sum(axis=1, keepdims=True), 1)
    shares = histograms * UNIT // totals
    apart: Nodes = np.zeros((len(shares), len(shares)), dtype=np.int64)
    for column in shares.T:
        apart += np.abs(column[:, None] - column[None, :])
    ties = stream(seed, Purpose.TOPOLOGY, key=1).integers(1 << _TIE_BITS, size=apart.shape)
    upper: npt.NDArray[np.int64] = np.triu(ties, 1)
    return (apart << _TIE_BITS) + upper + upper.T


def _tree(apart: Nodes) -> Nodes:
    """(nodes - 1, 2): the spanning tree of the smallest keys (Prim 1957)."""
    nodes = len(apart)
    outside = np.ones(nodes, dtype=bool)
    outside[0] = False
    nearest, key = np.zeros(nodes, dtype=np.int64), apart[0].copy()
    ends = np.zeros((max(nodes - 1, 0), 2), dtype=np.int64)
    for at in range(nodes - 1):
        new = int(np.where(outside, key, np.iinfo(np.int64).max).argmin())
        ends[at] = nearest[new], new
        outside[new] = False
        closer = outside & (apart[new] < key)
        key[closer], nearest[closer] = apart[new][closer], new
    return ends
