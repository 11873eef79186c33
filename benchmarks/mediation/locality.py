"""Cuts of graphs of 100,000 nodes over eight unequal sites, beside METIS and the order of nodes.

    python benchmarks locality [--nodes 100000] [--graphs ring torus ...]
    python benchmarks locality --slow 4 [--slow 1 4 7]

Each graph is cut in a process of its own, which tells its seconds and its largest memory. `--slow`
gives some sites a tenth of the others' bandwidth. Then cuts count by the modelled seconds of a
round, beside those of METIS.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
from measuring import Run, command, measured, parser, result_of, spread, table

from fedpilot.federated.core.topology.graphs import GraphOptions, TopologyName, topology
from fedpilot.mediator.core.assignment import (
    Exchange,
    RoundWork,
    SiteCapacity,
    assign,
    places_of,
    round_cost,
)
from fedpilot.mediator.core.assignment.cuts.graph_cuts import (
    Adjacency,
    by_metis,
    crossing,
    in_order,
)
from fedpilot.mediator.core.assignment.proportions import proportional
from fedpilot.mediator.core.links import LinkSpeed

SECTION = "locality"
BYTES_PER_S, SLOWER = 12.5e6, 10
"""100 Mbit/s, and how many times slower the links of `--slow` are."""
WORK = RoundWork(model_bytes=400_000, sum_bytes=800_000)
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
    parts, costs = assigned("locality", nodes, exchange=exchange)
    graph = Adjacency.of(nodes, exchange.ends, np.zeros((nodes, len(VNODES)), dtype=np.int64))
    return {
        "edges": graph.edges,
        "cut": crossing(graph, parts),
        "order": crossing(graph, in_order(goal)),
        "k_way": crossing(graph, by_metis(graph, goal, recursive=False)),
        "recursive": crossing(graph, by_metis(graph, goal, recursive=True)),
        "fullest": float((np.bincount(parts, minlength=len(goal)) / goal).max()),
        "rand": rand_index(parts, blocks) if name == "planted" else 0.0,
        **costs,
    }


def assigned(strategy: str, clients: int, **known: Any) -> tuple[np.ndarray, dict[str, float]]:
    """(clients,) the place of each client's site, by name; and what it took to assign them."""
    sites = [SiteCapacity(site, vnodes) for site, vnodes in sorted(VNODES.items())]
    started = time.perf_counter()
    shares = assign(strategy, clients, sites, **known).shares
    costs = {
        "seconds": time.perf_counter() - started,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "ranges": float(sum(map(len, shares.values()))),
    }
    return places_of(shares, sites, clients), costs


def slow(name: str, nodes: int, *slow_sites: int) -> dict[str, float]:
    """Assign the nodes of a graph over unequal links; seconds of a round, and by METIS alone."""
    counts = proportional(nodes, VNODES)
    goal = np.array([counts[site] for site in sorted(VNODES)])
    ends = edges_of(name, nodes, np.random.default_rng(5).permutation(in_order(goal)))
    exchange = Exchange.between(ends[:, 0], ends[:, 1])
    sites = []
    for number, (site, vnodes) in enumerate(VNODES.items()):
        rate = BYTES_PER_S / (SLOWER if number in slow_sites else 1)
        sites.append(SiteCapacity(site, vnodes, link=LinkSpeed(up=rate, down=rate)))
    started = time.perf_counter()
    shares = assign("locality", nodes, sites, exchange=exchange, work=WORK).shares
    seconds = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    graph = Adjacency.of(nodes, exchange.ends, np.zeros((nodes, len(VNODES)), dtype=np.int64))
    places = places_of(shares, sites, nodes)
    tried = {
        "round_s": places,
        "k_way_s": by_metis(graph, goal, recursive=False),
        "recursive_s": by_metis(graph, goal, recursive=True),
    }
    return {
        **{way: round_cost(each, sites, WORK, exchange).seconds for way, each in tried.items()},
        "fullest": float((np.bincount(places, minlength=len(goal)) / goal).max()),
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


def text_of_slow(runs: Mapping[str, list[Run]]) -> str:
    """The table over unequal links."""
    rows = []
    for name, each in runs.items():
        last = each[-1]
        times = [f"{last[way]:,.4g}" for way in ("round_s", "k_way_s", "recursive_s")]
        ratios = [f"{last['round_s'] / last[way]:.2f}" for way in ("k_way_s", "recursive_s")]
        seconds = spread(run["seconds"] for run in each).text(1)
        rows.append(
            [name, *times, *ratios, f"{last['fullest']:.3f}", seconds, f"{last['gib']:.2f}"]
        )
    head = ["graph", "round s", "k-way s", "recursive s", "of k-way", "of recursive", "fullest"]
    return table([*head, "s", "GiB"], rows)


def main() -> None:
    options = parser(__doc__ or "", reps=1)
    options.add_argument("--slow", nargs="+", type=int, choices=range(len(VNODES)), default=[])
    options.add_argument("--nodes", type=int, default=100_000)
    options.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    arguments = options.parse_args()

    def once(name: str, _turn: int) -> Run:
        return result_of(command("locality:cut", name, arguments.nodes))

    def say(run: Run) -> str:
        return f"{run['cut']:>9,.0f} edges cut in {run['seconds']:.1f} s"

    def once_slow(name: str, _turn: int) -> Run:
        return result_of(command("locality:slow", name, arguments.nodes, *arguments.slow))

    def say_slow(run: Run) -> str:
        return f"{run['round_s']:>9,.1f} s a round, assigned in {run['seconds']:.1f} s"

    if arguments.slow:
        section = f"{SECTION}_slow_{'_'.join(map(str, arguments.slow))}"
        found = measured(section, arguments.graphs, once_slow, say_slow, arguments)
        print("\n" + text_of_slow(found))
        return
    print("\n" + text(measured(SECTION, arguments.graphs, once, say, arguments)))
