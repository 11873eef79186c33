"""How soon a job in its quota has the resources of another project's training, on a real Ray.

Three raylets with two CPUs each. Vision trains on four of the six CPUs, one more than its quota,
and does not end on its notice. Speech submits a job that needs its quota of three; it has them once
three of its tasks run at a time. The same job on an idle Ray says what is not the exchange's.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusters.reserve import own_ray
from measuring import Run, called, measured, parser, spread, table

SECTION = "exchange"
MACHINES, CPUS = 3, 2
GRACE_S = 5.0
PATIENCE_S = 120.0
POLL_S = 0.02
TRAINING_CPUS, CLAIMED_CPUS = 4, 3
TEAMS = {
    "projects": [
        {"name": "vision", "quota": {"default": {"CPU": 3}}},
        {"name": "speech", "quota": {"default": {"CPU": 3}}},
    ],
    "settings": {"grace_s": GRACE_S},
}

TRAINING = """
import os, pathlib, signal, sys, time
import ray

folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
ray.init(logging_level="ERROR")
signal.signal(signal.SIGTERM, signal.SIG_IGN)

@ray.remote(num_cpus=1)
def train(number, attempt):
    (folder / f"trains-{attempt}-{number}").touch()
    time.sleep(600)

ray.get([train.remote(number, os.environ["FEDPILOT_ATTEMPT"]) for number in range(count)])
"""

CLAIM = """
import pathlib, sys, time
import ray

folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
ray.init(logging_level="ERROR")

@ray.remote(num_cpus=1)
def run(number):
    (folder / f"runs-{number}").touch()
    while not all((folder / f"runs-{each}").exists() for each in range(count)):
        time.sleep(0.005)
    return time.time()

found = max(ray.get([run.remote(number) for number in range(count)]))
(folder / "aside").write_text(str(found))
(folder / "aside").rename(folder / "has")
while not (folder / "over").exists():
    time.sleep(0.05)
"""


# -- one process ------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
    return port


@contextlib.contextmanager
def machines() -> Iterator[None]:
    """Three raylets and Ray's job server, with this process as a driver."""
    with own_ray() as folder:
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": CPUS, "object_store_memory": 10**8}
        head = {"include_dashboard": True, "dashboard_port": free_port(), "temp_dir": folder}
        agent = {"dashboard_agent_listen_port": free_port()}
        cluster = Cluster(initialize_head=True, head_node_args={**node, **head, **agent})
        try:
            for _ in range(MACHINES - 1):
                cluster.add_node(**node, dashboard_agent_listen_port=free_port())
            ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until it is so."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(POLL_S)


class TwoProjects:
    """Two projects on one Ray."""

    def __init__(self, folder: Path) -> None:
        from fedpilot.fabric.jobs.jobs import Jobs

        self._folder, self._jobs = folder, Jobs()
        self._jobs.clusters.apply_queues(TEAMS)
        self._scripts = {}
        for name, text in (("training", TRAINING), ("claim", CLAIM)):
            self._scripts[name] = folder / f"{name}.py"
            self._scripts[name].write_text(text)

    def idle(self, turn: str) -> dict[str, float]:
        """Seconds until the claimant has its CPUs, while all are free."""
        folder = self._made(f"idle-{turn}")
        found = self._claimed(folder)
        self._ends(folder, found.pop("id"))
        return found

    def taken(self, turn: str) -> dict[str, float]:
        """The same while the training has them; the seconds of the grace are left out."""
        folder = self._made(f"taken-{turn}")
        training = self._submit("training", folder, TRAINING_CPUS, "vision")
        until(lambda: self._trains(folder, 1), "the training runs")
        found = self._claimed(folder)
        notice = self._cluster(training)["stopped"]
        assert notice["claimant"] == found["id"], notice
        self._ends(folder, found.pop("id"))
        freed = time.time()
        until(lambda: self._trains(folder, 2), "the training runs again")
        back_s = time.time() - freed
        self._jobs.stop(training)
        self._gone(training)
        less = {name: took - GRACE_S for name, took in found.items()}
        return {**less, "back_s": back_s}

    def _made(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder

    def _submit(self, name: str, folder: Path, cpus: int, project: str) -> str:
        from fedpilot.fabric import VirtualCluster

        spec = VirtualCluster(flex_resource_min={"CPU": cpus}, flex_resource_max={"CPU": cpus})
        command = [sys.executable, str(self._scripts[name]), str(folder), str(cpus)]
        return self._jobs.submit(command, spec, project=project)

    def _claimed(self, folder: Path) -> dict[str, Any]:
        """Seconds from the submission, and from the request, until it has its CPUs."""
        submitted = time.time()
        id = self._submit("claim", folder, CLAIMED_CPUS, "speech")
        until(lambda: self._state(id) == "active", "the claimant has its places")
        active = time.time()
        asked = self._cluster(id)["asked_at"]
        until((folder / "has").exists, "the claimant's tasks run")
        has = float((folder / "has").read_text())
        return {
            "id": id,
            "request_to_places_s": active - asked,
            "submission_to_places_s": active - submitted,
            "submission_to_tasks_s": has - submitted,
        }

    def _cluster(self, id: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._jobs.clusters.show(id)
        return found

    def _state(self, id: str) -> str:
        from fedpilot.fabric.errors import NoSuchCluster

        try:
            return str(self._cluster(id)["state"])
        except NoSuchCluster:  # its job has not begun
            return ""

    def _trains(self, folder: Path, attempt: int) -> bool:
        return all((folder / f"trains-{attempt}-{n}").exists() for n in range(TRAINING_CPUS))

    def _ends(self, folder: Path, id: str) -> None:
        (folder / "over").touch()
        self._gone(id)

    def _gone(self, id: str) -> None:
        until(lambda: not self._state(id), "it has ended")


def child(times: int) -> Run:
    """Both by turns, in one Ray."""
    with machines(), tempfile.TemporaryDirectory() as folder:
        exchange = TwoProjects(Path(folder))
        exchange.idle("first")  # to warm up
        found: dict[str, list[dict[str, float]]] = {"idle": [], "taken": []}
        for turn in range(times):
            found["idle"].append(exchange.idle(str(turn)))
            found["taken"].append(exchange.taken(str(turn)))
            print(turn, json.dumps([each[-1] for each in found.values()]), flush=True)
    return {
        f"{name}_{figure}": [each[figure] for each in turns]
        for name, turns in found.items()
        for figure in turns[0]
    }


# -- the rows ---------------------------------------------------------------------------------

NAME = "three raylets"
ROWS = {
    "its virtual cluster is asked for → it has its places": "request_to_places_s",
    "it is submitted → it has its places": "submission_to_places_s",
    "it is submitted → its tasks run": "submission_to_tasks_s",
}


def text(runs: Mapping[str, Sequence[Run]]) -> str:
    """The table that the page shows."""
    done = runs.get(NAME, ())

    def cells(figure: str) -> list[str]:
        every = [took for run in done for took in run[figure]]
        return [spread(every).text(2), f"{max(every):.2f}"]

    count = sum(len(run["taken_back_s"]) for run in done)
    rows = [
        [what, *cells(f"taken_{figure}"), cells(f"idle_{figure}")[0], str(count)]
        for what, figure in ROWS.items()
    ]
    back = "the claimant has ended → the training's tasks run again"
    rows.append([back, *cells("taken_back_s"), "", str(count)])
    header = ["from → to", "less grace, s", "most, s", "on an idle Ray, s", "times"]
    return table(header, rows)


def main() -> None:
    options = parser(__doc__ or "", reps=1)
    options.add_argument("--times", type=int, default=9, help="exchanges in a process")
    arguments = options.parse_args()

    def once(_name: str, _turn: int) -> Run:
        return called("exchange:child", arguments.times, timeout=3600.0)

    def say(run: Run) -> str:
        return f"{statistics.median(run['taken_request_to_places_s']):.2f} s over the grace"

    print("\n" + text(measured(SECTION, (NAME,), once, say, arguments)))
