"""Bytes that cross between sites in a mixing step: states alone, and with partial sums.

    python benchmarks partial_sums [--nodes 1000] [--sites 4] [--graphs star complete ...]

Nothing runs: the bytes are the plan's, which a test compares with those that cross.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import networkx as nx
import numpy as np
from measuring import Run, called, measured, parser, spread, table

from fedpilot.federated.core.population.shares import Share
from fedpilot.federated.core.rounds.exchange_costs import ExchangeCosts
from fedpilot.federated.core.topology.covers import CrossingSizes, remembering
from fedpilot.federated.core.topology.edges import Edges
from fedpilot.mediator.core.assignment import Exchange, SiteCapacity, assign

SECTION = "partial_sums"
PARAMETERS, TENSORS = 100_000, 4
SIZES = CrossingSizes(state=4 * PARAMETERS, partial=8 * (PARAMETERS + TENSORS))
"""Of a model of float32."""
HUBS = 4
SEED = 7


def graph_of(name: str, nodes: int) -> nx.Graph[int]:
    """`hubs`: a few nodes exchange with all; `hubs_and_ring`: the others also in a ring."""
    match name:
        case "star":
            return nx.star_graph(nodes - 1)
        case "hubs":
            return nx.complete_bipartite_graph(HUBS, nodes - HUBS)
        case "hubs_and_ring":
            ring = nx.cycle_graph(range(HUBS, nodes))
            return nx.compose(ring, nx.complete_bipartite_graph(HUBS, nodes - HUBS))
        case "barabasi_albert_1" | "barabasi_albert_3" | "barabasi_albert_10":
            return nx.barabasi_albert_graph(nodes, int(name.rpartition("_")[2]), seed=SEED)
        case "tree":
            return nx.full_rary_tree(30, nodes)
        case "complete":
            return nx.complete_graph(nodes)
        case "erdos_renyi":
            return nx.gnp_random_graph(nodes, 0.02, seed=SEED)
        case "random_regular":
            return nx.random_regular_graph(8, nodes, seed=SEED)
        case "small_world":
            return nx.connected_watts_strogatz_graph(nodes, 8, 0.1, seed=SEED)
        case _:
            return nx.cycle_graph(nodes)


GRAPHS = (
    "ring",
    "random_regular",
    "small_world",
    "erdos_renyi",
    "complete",
    "tree",
    "barabasi_albert_1",
    "barabasi_albert_3",
    "barabasi_albert_10",
    "star",
    "hubs",
    "hubs_and_ring",
)
STRATEGIES = ("locality", "round_robin")


def crossing(name: str, strategy: str, nodes: int, sites: int) -> dict[str, float]:
    """What crosses with that assignment, and how long it takes to find out."""
    edges = Edges.from_graph(graph_of(name, nodes))
    capacities = [SiteCapacity(f"site_{number}", 1) for number in range(sites)]
    exchange = Exchange.between(edges.sources, edges.receivers)
    shares: Mapping[str, Share] = assign(strategy, nodes, capacities, exchange=exchange).shares
    costs = ExchangeCosts(
        graph=lambda _: edges,
        sizes=SIZES,
        cover=remembering(SIZES),
        steps=1,
        evaluated=lambda _: np.empty(0, np.int64),
    )
    alone = costs.crossings(1, shares, older=list(shares))
    started = time.perf_counter()
    found = costs.crossings(1, shares)
    return {
        "alone": int(alone.nbytes(SIZES).sum()),
        "bytes": int(found.nbytes(SIZES).sum()),
        "models": int(found.states.sum()),
        "sums": int(found.sums.sum()),
        "seconds": time.perf_counter() - started,
    }


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    rows = []
    for name, each in runs.items():
        first = each[-1]
        ratio = first["bytes"] / first["alone"] if first["alone"] else 1.0
        rows.append(
            [
                *name.split(": "),
                f"{first['alone'] / 1e6:,.1f}",
                f"{first['bytes'] / 1e6:,.1f}",
                f"{ratio:.2f}",
                f"{first['models']:,.0f}",
                f"{first['sums']:,.0f}",
                spread(run["seconds"] for run in each).text(2),
            ]
        )
    header = ["graph", "assignment", "MB of states", "MB", "ratio", "models", "sums", "seconds"]
    return table(header, rows)


def main() -> None:
    options = parser(__doc__ or "", reps=1)
    options.add_argument("--nodes", type=int, default=1_000)
    options.add_argument("--sites", type=int, default=4)
    options.add_argument("--graphs", nargs="+", choices=GRAPHS, default=GRAPHS)
    options.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    arguments = options.parse_args()
    names = [f"{graph}: {by}" for graph in arguments.graphs for by in arguments.strategies]

    def once(name: str, _turn: int) -> Run:
        graph, strategy = name.split(": ")
        return called("partial_sums:crossing", graph, strategy, arguments.nodes, arguments.sites)

    def say(run: Run) -> str:
        return f"{run['alone'] / 1e6:>9,.1f} MB, {run['bytes'] / 1e6:,.1f} with sums"

    print("\n" + text(measured(SECTION, names, once, say, arguments)))
