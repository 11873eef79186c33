"""Graphs from files: an adjacency matrix, a list of edges, or GraphML.

The ending of a file's name says which: `.csv` is a matrix, `.graphml` is GraphML, all others are
lists of edges.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from .weighted_edges import NamedEdge, NotAGraph, WeightedEdges, weighted_edges


def read_graph(path: Path, clients: Sequence[str]) -> WeightedEdges:
    """The graph in a file, whose nodes are clients: by their ids, or by numbers from 0.

    In a matrix the entry of row i and column j is the weight of the edge from i to j; 0 is none.
    A line of a list is an edge in both directions: two nodes and perhaps a weight, separated by
    commas or blanks. Edges from a node to itself count for nothing. Raises NotAGraph with the line.
    """
    try:
        found, directed = _read(path, clients)
    except OSError as error:
        raise NotAGraph(f"it cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise NotAGraph(f"it cannot be read: {error}") from error
    return weighted_edges(found, clients, directed=directed)


def _read(path: Path, clients: Sequence[str]) -> tuple[list[NamedEdge], bool]:
    """Edges in the order of the file, and whether they are directed."""
    match path.suffix.lower():
        case ".csv":
            return list(_of_matrix(path.read_text(encoding="utf-8"), clients)), True
        case ".graphml":
            return _of_graphml(path)
        case _:
            return list(_of_lines(path.read_text(encoding="utf-8"))), False


def _of_matrix(text: str, clients: Sequence[str]) -> Iterator[NamedEdge]:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if len(rows) != len(clients):
        raise NotAGraph(
            f"{len(rows)} rows for {len(clients)} clients (a matrix has no line of names)"
        )
    for number, (row, source) in enumerate(zip(rows, clients, strict=True), 1):
        where = f"row {number}"
        if len(row) != len(clients):
            raise NotAGraph(f"{where}: {len(row)} entries for {len(clients)} clients")
        for entry, receiver in zip(row, clients, strict=True):
            if weight := _weight(entry, where):
                yield NamedEdge(where, source, receiver, weight)


def _of_lines(text: str) -> Iterator[NamedEdge]:
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        parts = said.split(",") if "," in said else said.split()
        where = f"line {number}"
        if not said:
            continue
        if len(parts) not in (2, 3):
            raise NotAGraph(f"{where}: {said[:60]!r} is not two nodes and perhaps a weight")
        source, receiver, *weight = (part.strip() for part in parts)
        yield NamedEdge(where, source, receiver, _weight(weight[0], where) if weight else 1.0)


def _of_graphml(path: Path) -> tuple[list[NamedEdge], bool]:
    import networkx as nx

    try:
        graph: Any = nx.read_graphml(path)
    except (ParseError, nx.NetworkXException, ValueError, KeyError, TypeError) as error:
        raise NotAGraph(f"it is no GraphML: {error}") from error
    found = []
    for source, receiver, content in graph.edges(data=True):
        where = f"the edge from {source} to {receiver}"
        weight = _weight(str(content.get("weight", 1.0)), where)
        found.append(NamedEdge(where, str(source), str(receiver), weight))
    return found, bool(graph.is_directed())


def _weight(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise NotAGraph(f"{where}: {text[:60]!r} is not a number") from None
