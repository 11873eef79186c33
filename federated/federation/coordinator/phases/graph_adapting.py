"""GraphAdaptation: which graph a round has, where graphs adapt to what is known of the clients.

An adapted graph is in the journal before any site gets it. A repeated round, a resumed run and a
verification read it there, and call nothing again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ....core.state import Array
from ....core.topology.edges import Edges
from ....core.topology.weighted_edges import WeightedEdges
from ....engine.tensor_files import read_tensors, write_tensors
from ....errors import RunRefused
from ....prepare.adapting import Accuracies, Adapting
from ....prepare.topology import RECEIVERS, SOURCES, WEIGHTS
from ...setup.global_model import GlobalModel
from ..run_context import RunContext
from .node_evaluation import NodeEvaluationPhase

FORMAT = 1


@dataclass(frozen=True)
class AdaptedGraph:
    """A graph, as sites get it with an order."""

    graph: WeightedEdges

    @cached_property
    def tensors(self) -> dict[str, Array]:
        """As in a spec."""
        edges = self.graph.edges
        return {
            RECEIVERS: edges.receivers,
            SOURCES: edges.sources,
            WEIGHTS: self.graph.weights,
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 over edges and weights."""
        weights = self.graph.weights.astype("<f8").tobytes()
        return hashlib.sha256(self.graph.edges.digest.encode() + weights).hexdigest()


class GraphAdaptation:
    """The graphs of one attempt at a run."""

    def __init__(self, run: RunContext, adapting: Adapting, nodes: NodeEvaluationPhase) -> None:
        self._run = run
        self._adapting = adapting
        self._nodes = nodes
        self._last: tuple[int, AdaptedGraph] = 0, AdaptedGraph(adapting.first)

    def graph_after(self, model: GlobalModel) -> AdaptedGraph | None:
        """The graph of the round after this model; None if it is the run's first graph.

        Raises GraphNotAdapted, and RunRefused for a journal that lacks it.
        """
        number = model.round_number + 1
        since = self._adapting.since(number)
        if not since:
            return None
        if self._last[0] != since:
            self._last = since, self._found(since, number, model)
        return self._last[1]

    def _found(self, since: int, number: int, model: GlobalModel) -> AdaptedGraph:
        path = self._path_of(since)
        if path.exists():
            return self._read(path, model.digest if since == number else None)
        if since != number:
            raise RunRefused(f"{path} is missing, which has the graph of round {number}")
        before = self._before(since)
        scores: Accuracies = self._nodes.accuracies(model) if self._adapting.measures else {}
        made = AdaptedGraph(self._adapting.make(before, scores, number))
        header = {"format": FORMAT, "model": model.digest, "clients": before.edges.nodes}
        write_tensors(path, made.tensors, header)
        if made.digest != AdaptedGraph(before).digest:
            old, new = _pairs(before.edges), _pairs(made.graph.edges)
            self._run.emit(
                "graph_adapted",
                round=number,
                by=self._adapting.name,
                edges=len(new),
                new=len(np.setdiff1d(new, old)),
                graph=made.digest,
            )
        return made

    def _before(self, since: int) -> WeightedEdges:
        """The graph of the round before an adaptation."""
        earlier = self._adapting.since(since - 1)
        if not earlier:
            return self._adapting.first
        if self._last[0] == earlier:
            return self._last[1].graph
        return self._read(self._path_of(earlier), None).graph

    def _read(self, path: Path, model: str | None) -> AdaptedGraph:
        header, tensors = read_tensors(path)
        if header.get("format") != FORMAT:
            raise RunRefused(f"{path} has format {header.get('format')!r:.20}, wanted {FORMAT}")
        if model is not None and header.get("model") != model:
            raise RunRefused(
                f"{path} has the graph after model {header.get('model')!s:.12}, and this is "
                f"{model[:12]}: the run before this one came to another model"
            )
        edges = Edges.of(header["clients"], tensors[RECEIVERS], tensors[SOURCES])
        return AdaptedGraph(WeightedEdges(edges, tensors[WEIGHTS]))

    def _path_of(self, number: int) -> Path:
        return self._run.folder.journal / f"round-{number:06d}.graph.safetensors"


def _pairs(edges: Edges) -> Array:
    """Each edge as one number; both directions of an exchange as the same."""
    low = np.minimum(edges.receivers, edges.sources)
    return np.unique(low * edges.nodes + np.maximum(edges.receivers, edges.sources))
