"""Adapting: how a run's graph changes by what is known of its clients, between rounds.

The coordinator alone adapts. A function of the user's own may return anything or raise: then the
run ends with its name and the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.schema import Graph, RunConfig
from ..config.schema.learning import ADAPT_EVERY
from ..core.topology.weighted_edges import WeightedEdges
from ..core.user_code.registry import RegistryError, load_dotted
from ..core.user_code.user_errors import account_of
from ..errors import ConfigError, GraphNotAdapted
from .inputs.blame import blaming
from .inputs.labels import labels_of, labels_stay
from .inputs.run_inputs import RunInputs
from .topology import check_graph, checked_graph

if TYPE_CHECKING:
    import networkx as nx

KEY = "graph.adapt"
OWN = "`similar`, or a function of (graph, measures, round) that returns a networkx graph"

Accuracies = Mapping[int, float]
"""By a client's place: how good its own model is; of those whose model is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapting:
    """The rule by which a run's graph changes."""

    name: str
    """`similar`, or `module:function`."""
    every: int
    first: WeightedEdges
    measures: bool
    """Whether it needs the clients' accuracies."""
    make: Callable[[WeightedEdges, Accuracies, int], WeightedEdges]
    """Adapt the graph of the round before to this round; raises GraphNotAdapted."""

    def since(self, round_number: int) -> int:
        """The round of the last adaptation up to a round; 0 if there is none."""
        return (round_number - 1) // self.every * self.every + 1 if round_number > self.every else 0


def adapting_of(config: RunConfig, inputs: RunInputs) -> Adapting | None:
    """The rule of a run; None if its graph does not adapt. Raises ConfigError for none that is."""
    graph, graphs = config.graph or Graph(), inputs.graphs
    if graph.adapt is None or graphs is None:
        return None
    edges = graphs.of_round(1)
    weights = np.ones(len(edges)) if graphs.weights is None else graphs.weights
    first = WeightedEdges(edges, weights)
    make = _similar(config, inputs) if graph.adapt == "similar" else _own(config, inputs)
    return Adapting(
        name=graph.adapt,
        every=graph.adapt_every or ADAPT_EVERY,
        first=first,
        measures=graph.adapt != "similar" and config.evaluated_nodes != "none",
        make=make,
    )


def _similar(
    config: RunConfig, inputs: RunInputs
) -> Callable[[WeightedEdges, Accuracies, int], WeightedEdges]:
    from ..core.topology.similarity import MOST_NODES, similar

    if inputs.union is not None and inputs.union.without_labels:
        raise labels_stay(KEY, "`similar`", inputs, "your own function")
    if inputs.population > MOST_NODES:
        found = f"`similar` with {inputs.population:,} clients, all pairs of which it compares"
        raise ConfigError.about(KEY, found, f"at most {MOST_NODES:,} clients")

    def make(before: WeightedEdges, accuracies: Accuracies, number: int) -> WeightedEdges:
        labels = labels_of(inputs)
        assert labels is not None  # checked before the start
        edges = similar(before.edges, labels, config.run.random_seed)
        return _checked(config, inputs, number, WeightedEdges(edges, np.ones(len(edges))))

    return make


def _own(
    config: RunConfig, inputs: RunInputs
) -> Callable[[WeightedEdges, Accuracies, int], WeightedEdges]:
    path = (config.graph or Graph()).adapt or ""
    with blaming(KEY, OWN, RegistryError):
        function = load_dotted(path)
    names = [inputs.data.partition.client_id(place) for place in range(inputs.population)]

    def make(before: WeightedEdges, accuracies: Accuracies, number: int) -> WeightedEdges:
        try:
            returned = function(graph_of(before, names), _measures(inputs, accuracies), number)
        except Exception as error:
            raise GraphNotAdapted(path, number, account_of(error).reason) from error
        try:
            found = checked_graph(returned, names, KEY, "it returns no graph of these clients")
        except ConfigError as error:
            raise GraphNotAdapted(path, number, error.problems[0].found) from error
        return _checked(config, inputs, number, found)

    return make


def graph_of(weighted: WeightedEdges, names: list[str]) -> nx.Graph[str]:
    """A copy for the user's function; directed if an edge lacks its reverse."""
    import networkx as nx

    edges = weighted.edges
    graph: nx.Graph[str] = nx.Graph() if edges.is_symmetric else nx.DiGraph()
    graph.add_nodes_from(names)
    ends = zip(edges.sources.tolist(), edges.receivers.tolist(), strict=True)
    for (source, receiver), weight in zip(ends, weighted.weights.tolist(), strict=True):
        graph.add_edge(names[source], names[receiver], weight=weight)
    return graph


def _measures(inputs: RunInputs, accuracies: Accuracies) -> dict[str, dict[str, Any]]:
    """By client id, what is known of each client, exactly."""
    partition = inputs.data.partition
    found: dict[str, dict[str, Any]] = {}
    for place, known in enumerate(_counts(inputs)):
        if place in accuracies:
            known["accuracy"] = accuracies[place]
        found[partition.client_id(place)] = known
    return found


def _counts(inputs: RunInputs) -> list[dict[str, Any]]:
    """Samples and labels of each client, as far as known; of data at sites, as these disclose."""
    if (labels := labels_of(inputs)) is None:
        found: list[dict[str, Any]] = [{} for _ in range(inputs.population)]
    else:
        found = [{"labels": tuple(each)} for each in labels.tolist()]
    if inputs.union is not None:
        samples = inputs.union.exact_samples()
    else:
        samples = None if labels is None else labels.sum(axis=1)
    for known, count in zip(found, [] if samples is None else samples.tolist(), strict=False):
        if count >= 0:
            known["samples"] = count
    return found


def _checked(
    config: RunConfig, inputs: RunInputs, number: int, found: WeightedEdges
) -> WeightedEdges:
    """Raise GraphNotAdapted for a graph on which the run's algorithm does not work."""
    from ..core.topology.graphs import Topology

    path = (config.graph or Graph()).adapt or ""
    named = path if ":" in path else f"fedpilot:{path}"
    federation = config.federation.model_copy(update={"topology": named})
    graph = (config.graph or Graph()).model_copy(update={"file": None})
    as_own = config.model_copy(update={"federation": federation, "graph": graph})
    try:
        check_graph(as_own, Topology.static(found.edges, found.weights), inputs.data.partition)
    except ConfigError as error:
        raise GraphNotAdapted(path, number, error.problems[0].found) from error
    return found
