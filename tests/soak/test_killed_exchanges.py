"""The manager is killed twenty times while one team's jobs leave their places to another team."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from fedpilot.fabric import VirtualCluster
from fedpilot.fabric.jobs.jobs import Jobs
from rays.jobs import clusters, ended, processes, script
from rays.machines import Machines, ray_machines
from rays.tables import differences, nothing_left, over_capacity, table
from real_ray import eventually, free_port

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("FEDPILOT_SOAK_KILLS", "20"))
SEED = int(os.environ.get("FEDPILOT_SOAK_SEED", "7"))
PATIENCE_S = 120.0
GRACE_S = 6.0
TEAMS = {
    "projects": [
        {"name": "vision", "quota": {"default": {"CPU": 2}}},
        {"name": "speech", "quota": {"default": {"CPU": 4}}},
    ],
    "settings": {"grace_s": GRACE_S},
}
TWO = VirtualCluster(flex_resource_min={"CPU": 2}, flex_resource_max={"CPU": 2})

TRAINS = """
import pathlib, signal, sys, time
import ray

over, begun, slow = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])

def leaves(*_):
    time.sleep(slow)
    sys.exit(0)

ray.init(logging_level="ERROR")
signal.signal(signal.SIGTERM, leaves)

@ray.remote(num_cpus=1)
class Trainer:
    def step(self):
        return 1

trainer, steps = Trainer.remote(), 0
with begun.open("a") as file:
    file.write("begun\\n")
while not over.exists():
    steps += ray.get(trainer.step.remote())
    time.sleep(0.2)
"""


@dataclass
class Saved:
    """What the manager's file says of notices, read while the manager writes it."""

    path: Path
    first: dict[tuple[str, str], float] = field(default_factory=dict)
    """By victim and claimant, when the victim leaves at the latest."""
    anew: list[str] = field(default_factory=list)
    """Graces that were begun again."""

    def look(self, claimant: str) -> dict[str, Mapping[str, Any]]:
        """The entries; notices are noted."""
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as file:
            rows = {id: json.loads(what) for id, what in file.execute("SELECT * FROM entries")}
        for id in noticed(rows, claimant):
            at = rows[id]["leaves"]["at"]
            if self.first.setdefault((id, claimant), at) != at:
                self.anew.append(f"{id} for {claimant}")
        return rows


def noticed(entries: Mapping[str, Mapping[str, Any]], claimant: str) -> list[str]:
    """Those that are to leave for a claimant."""
    return [
        id for id, row in entries.items() if row["leaves"] and row["leaves"]["claimant"] == claimant
    ]


@dataclass
class Exchanges:
    """Three jobs of one team that hold all machines, and claims of another team."""

    at: Machines
    jobs: Jobs
    dice: random.Random
    over: Path
    trains: dict[str, Path]
    """The jobs, each with the file in which its command says that it has begun."""
    saved: Saved
    claims: int = 0
    told: int = 0
    """How often a victim had been told before a kill that should come before that."""

    # -- moments of a kill; each returns once the manager is dead -------------------------------

    def before_saving(self, claimant: str, manager: int) -> None:
        """It has decided, and cannot save: another process holds the file for a while."""
        with contextlib.closing(sqlite3.connect(self.saved.path, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            time.sleep(0.3 + self.dice.random())
            kill(manager)
            file.execute("ROLLBACK")
        assert not noticed(self.saved.look(claimant), claimant)

    def before_notice(self, claimant: str, manager: int) -> None:
        """It has saved who leaves; they have not looked yet."""
        self._until(lambda rows: bool(noticed(rows, claimant)), claimant)
        kill(manager)
        mine = noticed(self.saved.look(claimant), claimant)
        self.told += any(f"its places to {claimant}" in self.jobs.logs(id) for id in mine)

    def in_grace(self, claimant: str, manager: int) -> None:
        """The victims end their work."""
        self._until(lambda rows: bool(noticed(rows, claimant)), claimant)
        time.sleep(self.dice.random() * 1.5)
        kill(manager)

    def after_leaving(self, claimant: str, manager: int) -> None:
        """The victims have left by the file, and Ray has perhaps not heard of it."""
        self._until(lambda rows: bool(noticed(rows, claimant)), claimant)
        self._until(lambda rows: not noticed(rows, claimant), claimant)
        time.sleep(self.dice.choice([0, 0, 0.002, 0.01, 0.05]))
        kill(manager)

    def _until(self, true: Callable[[Mapping[str, Any]], bool], claimant: str) -> None:
        eventually(
            lambda: true(self.saved.look(claimant)), PATIENCE_S, "the moment", every_s=0.0005
        )

    # -- an exchange ----------------------------------------------------------------------------

    def claim(self, moment: Callable[[str, int], None]) -> None:
        """Speech claims one job's places or two, and the manager is killed on the way."""
        self.claims += 1
        claimant, cpus = f"claim-{self.claims}", self.dice.choice([2, 4])
        spec = VirtualCluster(flex_resource_min={"CPU": cpus}, flex_resource_max={"CPU": cpus})
        manager = self.jobs.clusters.call("pid")
        begun = {id: count(file) for id, file in self.trains.items()}
        with ThreadPoolExecutor(1) as asking:
            killing = asking.submit(moment, claimant, manager)
            time.sleep(0.05)
            self.jobs.clusters.create(claimant, spec, project="speech", wait_s=0, detached=True)
            killing.result(PATIENCE_S)
        assert self.jobs.clusters.call("pid") != manager
        self._watched(lambda: self._state(claimant) == "active", claimant)
        left = {id for id in self.trains if self._state(id) == "waiting"}
        assert len(left) == cpus // 2, self._said()
        for id in left:
            eventually(lambda id=id: not commands(id), PATIENCE_S, f"{id} runs no command")
        self.agreed()
        self.jobs.clusters.delete(claimant)
        wanted = {id: begun[id] + (id in left) for id in self.trains}

        def again() -> bool:
            there = all(count(file) >= wanted[id] for id, file in self.trains.items())
            return there and all(self._runs(id) for id in self.trains)

        self._watched(again, claimant)
        assert wanted == {id: count(file) for id, file in self.trains.items()}, self._said()
        assert not self.saved.anew
        self.agreed()

    def _watched(self, true: Callable[[], bool], claimant: str) -> None:
        """Wait; nothing runs twice or is over capacity meanwhile."""

        def watched() -> bool:
            self.saved.look(claimant)
            assert over_capacity(self.jobs.clusters.snapshot(), table()) == []
            twice = [id for id in self.trains if len(commands(id)) > 1]
            assert not twice
            return true()

        try:
            eventually(watched, PATIENCE_S, claimant, every_s=0.2)
        except AssertionError as error:
            raise AssertionError(self._said()) from error

    def agreed(self) -> None:
        """The manager and Ray say the same."""
        found: list[str] = []

        def same() -> bool:
            found[:] = differences(self.jobs.clusters)
            return not found

        try:
            eventually(same, PATIENCE_S, "the manager and Ray say the same")
        except AssertionError as error:
            raise AssertionError(f"{found}\n{self._said()}") from error

    def _state(self, id: str) -> str:
        return str(clusters(self.jobs)[id]["state"])

    def _runs(self, id: str) -> bool:
        return self._state(id) == "active" and len(commands(id)) == 1

    def _said(self) -> str:
        return "\n".join(map(str, self.jobs.clusters.history()[-60:]))


def kill(manager: int) -> None:
    os.kill(manager, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(manager).wait(PATIENCE_S)


def count(file: Path) -> int:
    return file.read_text().count("begun") if file.exists() else 0


def commands(marker: str) -> list[psutil.Process]:
    """The running commands of a job, without `confine`."""
    return [p for p in processes(f"begun-{marker}") if "confine" not in " ".join(p.cmdline())]


@contextlib.contextmanager
def exchanges(folder: Path, dice: random.Random) -> Iterator[Exchanges]:
    """Three machines of two CPUs; in the end all jobs succeed, and nothing is left."""
    over, trains = folder / "over", dict[str, Path]()
    command = script(folder, TRAINS)
    dashboard = {
        "include_dashboard": True,
        "dashboard_port": free_port(),
        "dashboard_agent_listen_port": free_port(),
    }
    with ray_machines(1, 2, **dashboard) as cluster:
        for _ in range(2):
            node = {"num_cpus": 2, "object_store_memory": 10**8}
            cluster.add_node(**node, dashboard_agent_listen_port=free_port())
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        at, jobs = Machines(cluster), Jobs()
        jobs.clusters.apply_queues(TEAMS)
        for name in ("a", "b", "c"):
            file = folder / f"begun-train-{name}"
            slow = dice.choice([0, 0.5, 60])
            asked = [*command, str(over), str(file), str(slow)]
            trains[jobs.submit(asked, TWO, project="vision", id=f"train-{name}")] = file
        found = Exchanges(at, jobs, dice, over, trains, Saved(at.ledger))
        eventually(lambda: all(map(count, trains.values())), PATIENCE_S, "the jobs run")
        yield found
        over.touch()
        for id in trains:
            assert ended(jobs, id).status == "SUCCEEDED", jobs.logs(id)
        eventually(lambda: not processes(str(folder)), PATIENCE_S, "no process is left")
        left: list[str] = []

        def clean() -> bool:
            left[:] = nothing_left(jobs.clusters, at, held=0)
            return not left

        with contextlib.suppress(AssertionError):
            eventually(clean, PATIENCE_S, "nothing is left")
        assert left == []


def test_managers_are_killed_at_all_moments_of_an_exchange(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with exchanges(tmp_path, dice) as found:
        moments = [found.before_saving, found.before_notice, found.in_grace, found.after_leaving]
        order = [moments[number % len(moments)] for number in range(KILLS)]
        dice.shuffle(order)
        for number, moment in enumerate(order):
            began = time.monotonic()
            found.claim(moment)
            took = time.monotonic() - began
            print(f"{number + 1} of {KILLS}: {moment.__name__}, {took:.1f} s", flush=True)
        print(f"{found.told} victims had been told before the kill", flush=True)
