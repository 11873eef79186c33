"""Edges: who receives from whom, as arrays in one order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import networkx as nx

Nodes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Edges between different nodes, one for each direction, by receiver and then by source."""

    nodes: int
    receivers: Nodes
    """(m,)"""
    sources: Nodes
    """(m,): the receiver's neighbors, whose states it mixes into its own."""

    @classmethod
    def of(cls, nodes: int, receivers: Any, sources: Any) -> Self:
        """Edges in any order; self-loops and repetitions count for nothing."""
        to, of = np.asarray(receivers, dtype=np.int64), np.asarray(sources, dtype=np.int64)
        keys = np.unique(to[to != of] * nodes + of[to != of])
        return cls(nodes, keys // max(nodes, 1), keys % max(nodes, 1))

    @classmethod
    def undirected(cls, nodes: int, ends: Any) -> Self:
        """Both directions of edges (m, 2)."""
        a, b = np.asarray(ends, dtype=np.int64).reshape(-1, 2).T
        return cls.of(nodes, np.concatenate([a, b]), np.concatenate([b, a]))

    @classmethod
    def from_graph(cls, graph: nx.Graph[int] | nx.DiGraph[int]) -> Self:
        """Those of a graph whose nodes are 0 to n - 1; a directed edge leads to its receiver."""
        ends = np.array(list(graph.edges()), dtype=np.int64).reshape(-1, 2)
        if graph.is_directed():
            return cls.of(len(graph), ends[:, 1], ends[:, 0])
        return cls.undirected(len(graph), ends)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the edges, the same on every machine."""
        ends = np.stack([self.receivers, self.sources]).astype("<i8")
        return hashlib.sha256(ends.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.receivers)

    @property
    def is_symmetric(self) -> bool:
        """Whether every edge has its reverse."""
        back = Edges.of(self.nodes, self.sources, self.receivers)
        return len(back) == len(self) and bool(
            (back.receivers == self.receivers).all() and (back.sources == self.sources).all()
        )

    @property
    def received(self) -> Nodes:
        """(nodes,): how many neighbors each node receives from."""
        return np.bincount(self.receivers, minlength=self.nodes)

    @property
    def given(self) -> Nodes:
        """(nodes,): how many neighbors receive from each node."""
        return np.bincount(self.sources, minlength=self.nodes)

    def among(self, some: Nodes) -> Edges:
        """The edges between some nodes, ascending, which are counted anew from 0."""
        place: Nodes = np.full(self.nodes, -1)
        place[some] = np.arange(len(some))
        to, of = place[self.receivers], place[self.sources]
        both = (to >= 0) & (of >= 0)
        return Edges(len(some), to[both], of[both])
