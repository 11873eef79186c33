"""The topology of a run: the graph that its config names, over its clients, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpilot.mediator.core.assignment import Exchange

from ..config.schema import Graph, RunConfig
from ..core.population.partitions.partition import Partition
from ..core.state import Array
from ..core.topology.graph_files import read_graph
from ..core.topology.mixing import (
    LEAST_WEIGHT,
    PUSH_SUM_UNIT,
    Mixing,
    NotMixable,
    least_weight,
    metropolis,
    of_the_graph,
    split_by_the_graph,
    uniform,
)
from ..core.topology.weighted_edges import NotAGraph, WeightedEdges
from ..core.user_code.registry import RegistryError, load_dotted
from ..core.user_code.user_errors import account_of
from ..errors import ConfigError, FederatedError
from .inputs.blame import blaming, blaming_users_code

if TYPE_CHECKING:
    from ..core.topology.graphs import Topology

DRAWN = frozenset({"random_regular", "erdos_renyi", "small_world"})
"""Graphs that are drawn at random, once for all rounds; another networkx may draw another one."""
GRAPH = "graph/"
RECEIVERS, SOURCES, WEIGHTS = f"{GRAPH}receivers", f"{GRAPH}sources", f"{GRAPH}weights"
"""Tensors of a spec, or of an order."""
OWN_GRAPH = "a function of (client ids, seed) that returns a networkx graph over all clients"


def topology_of(config: RunConfig, partition: Partition) -> Topology | None:
    """The graphs of a run's rounds; None if clients share one model.

    It calls the user's function, if the config names one. Raises ConfigError where there is no such
    graph with these clients.
    """
    if not config.federation.is_graph:
        return None
    # It imports networkx, which other runs need not wait for.
    from ..core.topology.graphs import GraphOptions, NoSuchGraph, TopologyName, topology

    name, clients = config.federation.topology, partition.number_of_clients
    graph = config.graph or Graph()
    if name == "custom":
        return _from_file(graph.file or "", partition)
    if config.federation.has_own_topology:
        return _from_function(name, partition, config.run.random_seed)
    options = GraphOptions(
        degree=graph.degree,
        probability=graph.probability,
        rows=graph.rows,
        branching=graph.branching,
    )
    try:
        return topology(TopologyName(name), clients, options, config.run.random_seed)
    except NoSuchGraph as error:
        key = f"graph.{error.option}" if error.option else "federation.topology"
        raise ConfigError.about(key, f"`{name}`: {error.found}", error.allowed) from error


def _from_file(file: str, partition: Partition) -> Topology:
    from ..core.topology.graphs import Topology

    names = [partition.client_id(place) for place in range(partition.number_of_clients)]
    try:
        found = read_graph(Path(file), names)
    except NotAGraph as error:
        raise ConfigError.about(
            "graph.file",
            found=f"`{file}`: {error}",
            allowed="an adjacency matrix (`.csv`), GraphML (`.graphml`) or a list of edges, over "
            "the clients' ids or numbers, below the folder in which the run starts",
        ) from error
    return Topology.static(found.edges, found.weights, found.loops)


def _from_function(path: str, partition: Partition, seed: int) -> Topology:
    from ..core.topology.graphs import Topology

    names = [partition.client_id(place) for place in range(partition.number_of_clients)]
    key = "federation.topology"
    with blaming(key, OWN_GRAPH, RegistryError):
        function = load_dotted(path)
    with blaming_users_code(key, OWN_GRAPH), blaming(key, OWN_GRAPH, TypeError):
        made = function(list(names), seed)
    found = checked_graph(made, names, key, f"`{path}` returns no graph of these clients")
    return Topology.static(found.edges, found.weights, found.loops)


def checked_graph(graph: object, clients: Sequence[str], key: str, what: str) -> WeightedEdges:
    """What a user's function returned, as edges; raises ConfigError about the key."""
    from ..core.topology.own_graphs import edges_of

    try:
        return edges_of(graph, clients)
    except Exception as error:  # a class of the user's own may raise anything
        reason = str(error) if isinstance(error, NotAGraph) else account_of(error).reason
        raise ConfigError.about(key, f"{what}: {reason}", OWN_GRAPH) from error


def in_one_part(config: RunConfig) -> bool:
    """Whether a run's graph is connected by construction, or over the rounds."""
    federation = config.federation
    return federation.topology not in DRAWN | {"custom"} and not federation.has_own_topology


def exchange_of(graphs: Topology, round_number: int = 1) -> Exchange:
    """Which clients give their models to which in a round."""
    edges = graphs.of_round(round_number)
    if edges.is_symmetric:
        return Exchange.between(edges.sources, edges.receivers)
    return Exchange.directed(edges.sources, edges.receivers)


def lasting_exchange_of(config: RunConfig, graphs: Topology | None) -> Exchange | None:
    """Which clients exchange in every round, if their assignment asks for that.

    None if clients share one model, or exchange with others in each round.
    """
    if config.federation.assigned_by != "locality" and not config.federation.has_own_assignment:
        return None
    return None if graphs is None or graphs.changes else exchange_of(graphs)


def graph_digest(config: RunConfig, graphs: Topology | None) -> str:
    """The digest of a graph that the config does not determine alone; empty for any other."""
    if graphs is None or in_one_part(config):
        return ""
    edges = graphs.of_round(1).digest
    if graphs.weights is None or (config.graph or Graph()).weights != "own":
        return edges
    return hashlib.sha256(edges.encode() + graphs.weights.astype("<f8").tobytes()).hexdigest()


def graph_of_spec(config: RunConfig, graphs: Topology | None) -> dict[str, Array]:
    """The tensors of a spec that hold a graph which the config alone does not determine.

    A site may have another version of networkx, and lacks the file or the user's code. Empty for
    any other graph.
    """
    if graphs is None or in_one_part(config):
        return {}
    edges = graphs.of_round(1)
    weights = {} if graphs.weights is None else {WEIGHTS: graphs.weights}
    return {RECEIVERS: edges.receivers, SOURCES: edges.sources, **weights}


def topology_at_site(
    config: RunConfig, partition: Partition, told: Mapping[str, Array]
) -> Topology | None:
    """The graphs of a run's rounds at a site, by what its spec says; None if there are none.

    Raises ConfigError as `topology_of`, and FederatedError for tensors that are no graph.
    """
    ends, weights = [told.get(RECEIVERS), told.get(SOURCES)], told.get(WEIGHTS)
    if all(each is None for each in ends):
        return topology_of(config, partition)
    from ..core.topology.edges import Edges
    from ..core.topology.graphs import Topology

    nodes = partition.number_of_clients
    for each in ends:
        if each is None or each.dtype != np.int64 or not ((each >= 0) & (each < nodes)).all():
            raise FederatedError(f"the edges of a spec's graph are not between {nodes} clients")
    arrays = [each for each in (*ends, weights) if each is not None]
    if len({each.shape for each in arrays}) > 1 or arrays[0].ndim != 1:
        raise FederatedError("the ends and weights of a spec's graph have different lengths")
    edges = Edges.of(nodes, *ends)
    if len(edges) != len(arrays[0]):
        raise FederatedError("a spec's graph has an edge twice, or from a client to itself")
    return Topology.static(edges, None if weights is None else weights.astype(np.float64))


def mixing_of(config: RunConfig, graphs: Topology, round_number: int) -> Mixing:
    """The weights of a round's graph; raises NotMixable."""
    edges, weights = graphs.of_round(round_number), (config.graph or Graph()).weights
    pushes = config.federation.pushes
    if weights == "own" and graphs.weights is not None:
        return (split_by_the_graph if pushes else of_the_graph)(edges, graphs.weights)
    return (uniform if pushes else metropolis)(edges, lazy=weights == "lazy")


def check_graph(config: RunConfig, graphs: Topology, partition: Partition) -> None:
    """Raise ConfigError for a graph that is not connected, or whose weights cannot be used."""
    name, graph = config.federation.topology, config.graph or Graph()
    try:
        mixing_of(config, graphs, 1)
    except NotMixable as error:
        pushes, key, allowed = config.federation.pushes, "federation.topology", "fewer neighbors"
        if graph.weights == "own":
            key, allowed = "graph.weights", "weights of edges in both directions that sum to 1"
            if pushes:
                allowed = "weights of which each client keeps some, of 1 in all"
        elif name == "custom":
            key, allowed = "graph.file", "edges in both directions, and few enough for each client"
            if pushes:
                allowed = "fewer edges from each client"
        found = f"`{graph.file or name}`: {error.told(partition.client_id)}"
        raise ConfigError.about(key, found, allowed) from error
    if not in_one_part(config):
        _check_connected(name, graph, graphs, partition)
    if config.federation.pushes and not graphs.changes:
        _check_weights(mixing_of(config, graphs, 1), graph, name, partition)


def _check_connected(name: str, graph: Graph, graphs: Topology, partition: Partition) -> None:
    """Raise ConfigError for parts that never hear of each other."""
    from ..core.topology.connectivity import components, in_words

    parts = components(graphs.of_round(1))
    if len(parts) > 1:
        named = in_words([[partition.client_id(node) for node in part] for part in parts])
        key, allowed = "federation.topology", ": more edges, or another `run.random_seed`"
        if name == "custom":
            key, allowed = "graph.file", ""
        raise ConfigError.about(
            key,
            found=f"`{graph.file or name}` in {len(parts)} parts that never meet: {named}",
            allowed=f"a connected graph{allowed}",
        )


def _check_weights(mixing: Mixing, graph: Graph, name: str, partition: Partition) -> None:
    """Raise ConfigError if a client comes to hold next to nothing of all that is pushed."""
    node, weight = least_weight(mixing)
    if weight < LEAST_WEIGHT:
        client, share = partition.client_id(node), weight / PUSH_SUM_UNIT
        raise ConfigError.about(
            "graph.file" if name == "custom" else "federation.topology",
            found=f"`{graph.file or name}`: the push-sum weight of {client} becomes {share:.2g}, "
            "since it gives much more than it receives",
            allowed=f"a graph in which no weight falls below {LEAST_WEIGHT / PUSH_SUM_UNIT:.2g}",
        )
