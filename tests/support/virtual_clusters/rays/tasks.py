"""Tasks and actors that tell where they ran, and run for as long as a test wants."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from fedpilot import fabric


@dataclass(frozen=True)
class Where:
    """Where a task or an actor ran: its placement group and its machine, as Ray has them."""

    group: str
    machine: str


def here() -> Where:
    """Of this worker."""
    from ray._private.worker import global_worker

    worker: Any = global_worker
    group = worker.core_worker.get_placement_group_id().hex()
    return Where(group, ray.get_runtime_context().get_node_id())


def wait_for(gate: str) -> Where:
    """Run until a file is there."""
    while not Path(gate).exists():
        time.sleep(0.02)
    return here()


def leave_marks(folder: str) -> int:
    """How many run beside this one, itself counted, by the marks that they leave.

    Until three have met once, each waits for the others.
    """
    mark, met = Path(tempfile.mkstemp(prefix="mark", dir=folder)[1]), Path(folder) / "met"
    until = time.monotonic() + 60
    time.sleep(0.1)  # so that others of them overlap
    while (count := len(list(Path(folder).glob("mark*")))) < 3:
        if met.exists() or time.monotonic() > until:
            break
        time.sleep(0.01)
    else:
        met.touch()
    mark.unlink()
    return count


def fibonacci(n: int) -> int:
    """A number by tasks that wait for tasks."""
    again = task(fibonacci)
    return n if n < 2 else sum(ray.get([again.remote(n - 1), again.remote(n - 2)]))


def children(count: int) -> tuple[Where, list[Where]]:
    """Where a task and its children run."""
    return here(), ray.get([task(here).remote() for _ in range(count)])


def seen() -> tuple[dict[str, float], dict[str, float], list[str], str, str]:
    """What a task sees of the cluster."""
    api: Any = ray  # Ray's own annotations say less than it does
    return (
        api.cluster_resources(),
        api.available_resources(),
        [each["NodeID"] for each in api.nodes()],
        fabric.current_cluster().cluster_id(),
        fabric.current_node().node_id(),
    )


def megabytes(count: int) -> bytes:
    """An object of so many megabytes."""
    return bytes(count * 10**6)


class Parent:
    """An actor that makes tasks and actors."""

    def where(self) -> Where:
        return here()

    def children(self) -> list[Where]:
        child = actor(Parent).options(num_cpus=0.5).remote()
        found = [ray.get(child.where.remote()), ray.get(task(here, num_cpus=0.5).remote())]
        ray.kill(child)
        return found

    def label(self) -> str:
        return fabric.current_node().node_labels()["index"]


def task(function: Any, **options: Any) -> Any:
    """A function as a task of one CPU."""
    return ray.remote(**{"num_cpus": 1, **options})(function)


def actor(cls: Any) -> Any:
    """A class as an actor of one CPU."""
    return ray.remote(num_cpus=1)(cls)


class Gates:
    """Files that tasks wait for, by the numbers of the tasks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, number: int) -> str:
        return str(self._folder / f"gate-{number}")

    def open(self, number: int) -> None:
        Path(self.of(number)).touch()

    def open_all(self) -> None:
        for number in range(20):
            self.open(number)
