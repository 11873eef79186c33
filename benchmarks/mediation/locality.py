"""Cuts of graphs of 100,000 nodes over eight unequal sites, beside METIS and the order of nodes.

    python benchmarks locality [--nodes 100000] [--graphs ring torus ...]

Each graph is cut in a process of its own, which tells its seconds and its largest memory.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping

import networkx as nx
import numpy as np
from measuring import Run, command, measured, parser, result_of, spread, table

from fedpilot.federated.core.topology.graphs import GraphOptions, TopologyName, topology
from fedpilot.mediator.core.assignment import Exchange, SiteCapacity, assign
from fedpilot.mediator.core.assignment.graph_cuts import Adjacency, by_metis, crossing, in_order
from fedpilot.mediator.core.assignment.proportions import proportional
from fedpilot.mediator.core.assignment.shares import members

SECTION = "locality"
VNODES = {f"site_{number}": 2 + 3 * number for number in range(8)}
OPTIONS = {
    "ring": GraphOptions(),
    "torus": GraphOptions(),
    "k_connected": GraphOptions(degree=4),
    "random_regular": GraphOptions(degree=4),
    "small_world": GraphOptions(degree=4, probability=0.1),
}
GRAPHS = (*OPTIONS, "planted", "barabasi_albert")


def edges_of(name: str, nodes: int, blocks: np.ndarray) -> np.ndarray:
    """(m, 2); `planted` has eight edges inside a node's block for each one outside."""
    if name in OPTIONS:
        edges = topology(TopologyName(name), nodes, OPTIONS[name], 7).of_round(1)
        return np.stack([edges.receivers, edges.sources], axis=1)
    if name == "barabasi_albert":
        return np.array(nx.barabasi_albert_graph(nodes, 3, seed=7).edges())
    random, order = np.random.default_rng(7), np.argsort(blocks, kind="stable")
    starts = np.searchsorted(blocks[order], np.arange(len(VNODES) + 1))
    one = np.repeat(np.arange(nodes), 4)
    low, high = starts[blocks[one]], starts[blocks[one] + 1]
    inside = order[low + (random.random(len(one)) * (high - low)).astype(int)]
    out = random.random(len(one)) < 1 / 9
    return np.stack([one, np.where(out, random.integers(0, nodes, len(one)), inside)], axis=1)


def cut(name: str, nodes: int) -> dict[str, float]:
    """Assign the nodes of a graph; the edges cut, and by the other ways alone."""
    counts = proportional(nodes, VNODES)
    goal = np.array([counts[site] for site in sorted(VNODES)])
    blocks = np.random.default_rng(5).permutation(in_order(goal))
    ends = edges_of(name, nodes, blocks)
    exchange = Exchange.between(ends[:, 0], ends[:, 1])
    sites = [SiteCapacity(site, vnodes) for site, vnodes in VNODES.items()]
    started = time.perf_counter()
    shares = assign("locality", nodes, sites, exchange=exchange).shares
    seconds = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    parts = np.empty(nodes, dtype=np.int64)
    for place, site in enumerate(sorted(VNODES)):
        parts[members(shares[site])] = place
    graph = Adjacency.of(nodes, exchange.ends, np.zeros((nodes, len(VNODES)), dtype=np.int64))
    return {
        "edges": graph.edges,
        "cut": crossing(graph, parts),
        "order": crossing(graph, in_order(goal)),
        "k_way": crossing(graph, by_metis(graph, goal, recursive=False)),
        "recursive": crossing(graph, by_metis(graph, goal, recursive=True)),
        "fullest": float((np.bincount(parts, minlength=len(goal)) / goal).max()),
        "rand": rand_index(parts, blocks) if name == "planted" else 0.0,
        "seconds": seconds,
        "gib": memory,
    }


def rand_index(one: np.ndarray, other: np.ndarray) -> float:
    """The adjusted Rand index of two divisions (Hubert and Arabie 1985): 1 if they are alike."""
    both = np.bincount(one * (int(other.max()) + 1) + other)
    pairs, ones, others = (
        (counts * (counts - 1) / 2).sum() for counts in (both, np.bincount(one), np.bincount(other))
    )
    by_chance = ones * others / (len(one) * (len(one) - 1) / 2)
    return float((pairs - by_chance) / ((ones + others) / 2 - by_chance))


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    rows = []
    for name, each in runs.items():
        last = each[-1]
        best = min(last["order"], last["k_way"], last["recursive"])
        cuts = [f"{last[way]:,.0f}" for way in ("cut", "order", "k_way", "recursive")]
        of_best = f"{last['cut'] / best:.3f}" if best else "-"
        rand = f"{last['rand']:.3f}" if name == "planted" else ""
        seconds = spread(run["seconds"] for run in each).text(1)
        fullest, gib = f"{last['fullest']:.3f}", f"{last['gib']:.2f}"
        rows.append([name, *cuts, of_best, fullest, rand, seconds, gib])
    head = ["graph", "cut", "in order", "k-way", "recursive", "of the best", "fullest", "Rand"]
    return table([*head, "s", "GiB"], rows)


def main() -> None:
    options = parser(__doc__ or "", reps=1)
    options.add_argument("--nodes", type=int, default=100_000)
    options.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    arguments = options.parse_args()

    def once(name: str, _turn: int) -> Run:
        return result_of(command("locality:cut", name, arguments.nodes))

    def say(run: Run) -> str:
        return f"{run['cut']:>9,.0f} edges cut in {run['seconds']:.1f} s"

    print("\n" + text(measured(SECTION, arguments.graphs, once, say, arguments)))
