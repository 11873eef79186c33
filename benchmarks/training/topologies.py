"""Rounds on a ring beside rounds in a star, in which all clients take part as well.

    python benchmarks topologies [--workloads w2 w1]

In a ring each client's model comes from the site to a worker, goes back, is mixed and saved.
"""

from __future__ import annotations

from collections.abc import Mapping

from measuring import Run, measured, parser, ratios, result_of, spread, table
from run import Implementation, rates

SECTION = "topologies"
POPULATIONS = {"w2": 1_000, "w1": 50}
ROUNDS = {"w2": 30, "w1": 5}
RING = ("federation.topology=ring", "federation.aggregation_strategy=dpsgd")
NAMES = ("star", "ring")


def once(name: str, _turn: int) -> Run:
    workload, topology = name.split(": ")
    clients, sets = POPULATIONS[workload], ["federation.clients_per_round=null"]
    if topology == "ring":
        sets += RING
    command = [*Implementation("fedpilot_run.py").command(workload)]
    command += ["--population", str(clients), "--rounds", str(ROUNDS[workload])]
    return result_of([*command, *(word for each in sets for word in ("--set", each))])


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    rows = []
    for name, each in runs.items():
        workload, topology = name.split(": ")
        mine, star = rates(each), rates(runs.get(f"{workload}: star", []))
        share = ratios(mine, star).text(2) if star else ""
        rows.append([workload, topology, spread(mine).text(), share])
    return table(["workload", "topology", "clients/s", "times the star's"], rows)


def main() -> None:
    options = parser(__doc__ or "", reps=5)
    options.add_argument("--workloads", nargs="+", choices=POPULATIONS, default=["w2"])
    arguments = options.parse_args()
    names = [f"{each}: {topology}" for each in arguments.workloads for topology in NAMES]

    def say(run: Run) -> str:
        return f"{rates([run])[0]:>9,.0f} clients/s"

    print("\n" + text(measured(SECTION, names, once, say, arguments)))
