"""The graphs of the page on topologies: what each of them costs a client, and how fast it mixes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpilot.federated.core.topology.graphs import GraphOptions, Topology, TopologyName, topology
from fedpilot.federated.core.topology.mixing import Mixing, metropolis, uniform
from fedpilot.federated.prepare.topology import exchange_of
from fedpilot.mediator.core.assignment import SiteCapacity, assign, crossing_models, places_of

SEED = 0
CLIENTS = (50, 200)
"""The populations of the table."""
SITES = 3
TENTH = 0.1
LOOKED_AT = 8
"""Rounds of a graph that changes."""
_PROBABILITY = {16: 0.3, 50: 0.12, 200: 0.05}
"""Of an edge of `erdos_renyi`: enough for graphs in one part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a graph costs, and how fast it mixes."""

    sent: npt.NDArray[np.int64]
    """(clients,): the models that each client gives to others in a round."""
    gap: float | None
    """1 minus the second largest absolute eigenvalue of the weights; None if the graph changes."""
    rounds: int
    """Of mixing alone, until no model is farther from the mean than a tenth of its distance."""


def shown(name: TopologyName, clients: int) -> Topology:
    """The graphs of a topology with so many clients."""
    options = GraphOptions()
    match name:
        case TopologyName.K_CONNECTED | TopologyName.RANDOM_REGULAR:
            options = GraphOptions(degree=4)
        case TopologyName.SMALL_WORLD:
            options = GraphOptions(degree=4, probability=0.1)
        case TopologyName.ERDOS_RENYI:
            options = GraphOptions(probability=_PROBABILITY[clients])
    return topology(name, clients, options, SEED)


def figures(graphs: Topology) -> Figures:
    """The figures of a topology, of its first round where rounds differ."""
    sent = graphs.of_round(1).given
    if graphs.changes:
        return Figures(sent=sent, gap=None, rounds=_rounds_of_products(graphs))
    second = _second(_dense(metropolis(graphs.of_round(1))))
    rounds = 1 if second <= TENTH else math.ceil(math.log(TENTH) / math.log(second))
    return Figures(sent=sent, gap=1 - second, rounds=rounds)


def crossing(graphs: Topology) -> float:
    """The models that cross between `SITES` equal sites in a round, divided as by default.

    The mean of the first rounds, where rounds differ.
    """
    sites = [SiteCapacity(f"site_{number + 1}", vnodes=1) for number in range(SITES)]
    exchanges = [exchange_of(graphs, r + 1) for r in range(LOOKED_AT if graphs.changes else 1)]
    lasting = None if graphs.changes else exchanges[0]
    shares = assign("locality", graphs.nodes, sites, exchange=lasting).shares
    placed = places_of(shares, sites, graphs.nodes)
    return float(np.mean([crossing_models(placed, SITES, each).sum() for each in exchanges]))


def _second(weights: npt.NDArray[np.float64]) -> float:
    """The second largest absolute eigenvalue of a symmetric matrix whose rows sum to 1."""
    found = float(np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2])
    assert found < 1 - 1e-9, "a graph in one part"
    return found


def _rounds_of_products(graphs: Topology) -> int:
    """Rounds until the product of their weights leaves a tenth of any distance to the mean."""
    product = np.eye(graphs.nodes)
    for number in itertools.count(1):
        edges = graphs.of_round(number)
        weights = metropolis(edges) if edges.is_symmetric else uniform(edges)
        product = _dense(weights) @ product
        if np.linalg.norm(product - 1 / graphs.nodes, 2) <= TENTH:
            return number
    raise AssertionError("unreachable")


def _dense(mixing: Mixing) -> npt.NDArray[np.float64]:
    """(clients, clients): row i holds what client i takes of each."""
    receivers = np.repeat(np.arange(mixing.nodes), np.diff(mixing.starts))
    weights = np.zeros((mixing.nodes, mixing.nodes))
    weights[receivers, mixing.sources] = mixing.weights
    return weights / weights.sum(axis=1, keepdims=True)


def table() -> list[str]:
    """The table of all graphs that have a name."""
    small, large = CLIENTS
    return [
        f"| `topology` | models that a client sends | models that cross between {SITES} sites "
        f"| spectral gap | rounds to a tenth | with {large} clients |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(_row(name, small, large))} |" for name in TopologyName),
    ]


def _row(name: TopologyName, small: int, large: int) -> Iterator[str]:
    graphs = shown(name, small)
    found, many = figures(graphs), figures(shown(name, large))
    yield f"[`{name}`](#{name})"
    yield _amounts(found.sent)
    yield f"{crossing(graphs):,.0f}"
    yield "changes" if found.gap is None else f"{found.gap:.2g}"
    yield from (f"{each.rounds:,}" for each in (found, many))


def _amounts(sent: npt.NDArray[np.int64]) -> str:
    """One number if all clients send as many models, otherwise the mean and the extremes."""
    least, most = int(sent.min()), int(sent.max())
    return f"{least}" if least == most else f"{sent.mean():.2g} ({least} to {most})"
