"""Label communities of 100,000 clients over eight unequal sites, beside the order of clients.

    python benchmarks data_affinity [--clients 100000] [--labels 10] [--mixes planted skewed ...]

Each mix of labels is assigned in a process of its own, which tells its seconds and its largest
memory. `planted` has blocks as large as the sites' parts, each with a mix of labels of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from measuring import Run, command, measured, parser, result_of, spread, table
from mediation.locality import VNODES, assigned, rand_index

from fedpilot.mediator.core.assignment.cuts.graph_cuts import in_order
from fedpilot.mediator.core.assignment.cuts.label_cells import label_shares
from fedpilot.mediator.core.assignment.cuts.label_sites import LabelSites
from fedpilot.mediator.core.assignment.proportions import proportional

SECTION = "data_affinity"
SAMPLES = 60
MIXES = ("planted", "skewed", "mild", "alike", "one_label")


def labels_of(mix: str, clients: int, labels: int, blocks: np.ndarray) -> np.ndarray:
    """(clients, labels): samples of each label."""
    random = np.random.default_rng(7)
    if mix == "one_label":
        return np.eye(labels, dtype=np.int64)[random.integers(labels, size=clients)] * SAMPLES
    if mix == "planted":
        shares = random.dirichlet(np.full(labels, 0.2), len(VNODES))[blocks]
    else:
        beta = {"skewed": 0.1, "mild": 1.0, "alike": 1e6}[mix]
        shares = random.dirichlet(np.full(labels, beta), clients)
    return random.multinomial(SAMPLES, shares)


def divide(mix: str, clients: int, labels: int) -> dict[str, float]:
    """Assign the clients; how much of the variation of labels is left within sites."""
    counts = proportional(clients, VNODES)
    goal = np.array([counts[site] for site in sorted(VNODES)])
    blocks = np.random.default_rng(5).permutation(in_order(goal))
    histograms = labels_of(mix, clients, labels, blocks)
    parts, costs = assigned("data_affinity", clients, labels=histograms)
    pinned = [np.arange(0)] * len(goal)
    found = LabelSites.of(label_shares(histograms), np.arange(clients), pinned, goal)
    return {
        "within": found.variation(parts),
        "order": found.variation(in_order(goal)),
        "fullest": float((np.bincount(parts, minlength=len(goal)) / goal).max()),
        "rand": rand_index(parts, blocks) if mix == "planted" else 0.0,
        **costs,
    }


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    rows = []
    for name, each in runs.items():
        last = each[-1]
        rand = f"{last['rand']:.3f}" if name == "planted" else ""
        seconds = spread(run["seconds"] for run in each).text(1)
        figures = [f"{last[key]:.3f}" for key in ("within", "order", "fullest")]
        rows.append([name, *figures, rand, f"{last['ranges']:,.0f}", seconds, f"{last['gib']:.2f}"])
    head = ["labels", "within sites", "in order", "fullest", "Rand", "ranges", "s", "GiB"]
    return table(head, rows)


def main() -> None:
    options = parser(__doc__ or "", reps=1)
    options.add_argument("--clients", type=int, default=100_000)
    options.add_argument("--labels", type=int, default=10)
    options.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    arguments = options.parse_args()

    def once(mix: str, _turn: int) -> Run:
        found = command("data_affinity:divide", mix, arguments.clients, arguments.labels)
        return result_of(found)

    def say(run: Run) -> str:
        return f"{run['within']:.3f} within sites, assigned in {run['seconds']:.1f} s"

    section = SECTION if arguments.labels == 10 else f"{SECTION}_{arguments.labels}"
    print("\n" + text(measured(section, arguments.mixes, once, say, arguments)))
