"""The same work by fedpilot and its peers, by turns: clients per second, and how they compare."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from measuring import Run, measured, parser, ratios, result_of, spread, steady, table, versions
from workload import WORKLOADS, PeerWorkload

SECTION = "peers"
PEERS = Path(__file__).resolve().parent
OURS = "fedpilot, 2 workers"


@dataclass(frozen=True)
class Implementation:
    """One way to do the work."""

    script: str
    options: tuple[str, ...] = ()
    peer: str | None = None
    """Its environment; none for fedpilot's own."""
    processes: int = 1
    """Above one: to be started by torchrun."""

    @property
    def bin(self) -> Path:
        """Where its environment's programs are."""
        return (
            PEERS.parent / ".venvs" / self.peer / "bin"
            if self.peer
            else Path(sys.executable).parent
        )

    @property
    def installed(self) -> bool:
        return (self.bin / "python").exists()

    def does(self, workload: PeerWorkload) -> bool:
        """Whether it finishes a round in a time that can be waited for."""
        return self.peer != "flower" or workload.flower_rounds > 0

    def command(self, workload: str) -> list[str]:
        start = [str(self.bin / "python")]
        if self.processes > 1:
            start = [str(self.bin / "torchrun"), "--nproc-per-node", str(self.processes)]
        return [*start, str(PEERS / self.script), workload, *self.options]


def w2(**options: int) -> list[str]:
    """A process of fedpilot on w2, with options of `fedpilot_run.py`."""
    words = itertools.chain(*((f"--{name}", str(value)) for name, value in options.items()))
    return [*Implementation("fedpilot_run.py").command("w2"), *words]


LOOP, FLOWER, PFL = "plain_loop.py", "flower_run.py", "pfl_run.py"
IMPLEMENTATIONS = {
    "fedpilot, 1 worker": Implementation("fedpilot_run.py", ("--workers", "1")),
    OURS: Implementation("fedpilot_run.py", ("--workers", "2")),
    "plain loop, 1 process": Implementation(LOOP),
    "plain loop, 2 processes": Implementation(LOOP, ("--processes", "2")),
    "lean loop, 1 process": Implementation(LOOP, ("--lean",)),
    "lean loop, 2 processes": Implementation(LOOP, ("--lean", "--processes", "2")),
    "pfl-research, 1 process": Implementation(PFL, peer="pfl"),
    "pfl-research, 2 processes": Implementation(PFL, peer="pfl", processes=2),
    "Flower, 2 actors": Implementation(FLOWER, ("--actors", "2"), peer="flower"),
    "Flower, 4 actors": Implementation(FLOWER, ("--actors", "4"), peer="flower"),
}


def task(workload: str, implementation: str) -> str:
    """What a run is called in the results."""
    return f"{workload}: {implementation}"


def grouped(runs: Mapping[str, list[Run]]) -> dict[str, dict[str, list[Run]]]:
    """Runs by workload and implementation, in the order that both have here."""
    found = {
        workload: {
            name: runs[task(workload, name)]
            for name in IMPLEMENTATIONS
            if runs.get(task(workload, name))
        }
        for workload in WORKLOADS
    }
    return {workload: each for workload, each in found.items() if each}


def rates(runs: list[Run]) -> list[float]:
    """Clients per second of each run: the cohort over the median round."""
    return [run["cohort"] / steady(run["seconds"]) for run in runs]


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table of one workload."""
    ours = rates(runs[OURS]) if OURS in runs else []
    rows = []
    for name, each in runs.items():
        theirs = rates(each)
        times = "" if name == OURS or not ours else ratios(ours, theirs).text(2) + " ×"
        wall = spread(run["wall_s"] for run in each)
        digits = 0 if spread(theirs).median >= 100 else 1
        rows.append([name, spread(theirs).text(digits), times, wall.text(1), str(len(each))])
    header = ["implementation", "clients/s", "fedpilot ÷ this", "whole process, s", "runs"]
    return table(header, rows)


def chosen(only: list[str]) -> dict[str, Implementation]:
    """What is asked for and installed; what is not is said."""
    found = {}
    for name, each in IMPLEMENTATIONS.items():
        if only and not any(part.lower() in name.lower() for part in only):
            continue
        if each.installed:
            found[name] = each
        else:
            print(f"skipped: {name} (not installed: benchmarks/peers/install.sh {each.peer})")
    return found


def main() -> None:
    options = parser(__doc__ or "", reps=9)
    options.add_argument("--workloads", nargs="+", default=["w2"], choices=[*WORKLOADS, "all"])
    options.add_argument("--only", nargs="+", default=[], help="parts of names, such as `flower`")
    options.add_argument("--timeout", type=float, default=600.0, help="seconds for one process")
    arguments = options.parse_args()
    workloads = list(WORKLOADS) if "all" in arguments.workloads else arguments.workloads
    found = chosen(arguments.only)
    todo = {}
    for workload, name in itertools.product(workloads, found):
        if IMPLEMENTATIONS[name].does(WORKLOADS[workload]):
            todo[task(workload, name)] = workload, name
        else:
            print(f"skipped: {name} on {workload} (no round within two minutes)")
    environments = {i.peer or "fedpilot": versions(i.bin / "python") for i in found.values()}

    def once(name: str, _turn: int) -> Run:
        workload, implementation = todo[name]
        return result_of(found[implementation].command(workload), arguments.timeout)

    def say(run: Run) -> str:
        return f"{rates([run])[0]:>9,.1f} clients/s"

    runs = measured(SECTION, todo, once, say, arguments, environments)
    for workload, each in grouped(runs).items():
        print(f"\n{workload}\n\n{text(each)}")
