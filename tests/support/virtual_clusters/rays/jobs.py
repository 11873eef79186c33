"""Unmodified Ray scripts as jobs on a real Ray, and what becomes of them."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest import mock

import psutil
import ray

from fedpilot.fabric import VirtualCluster
from fedpilot.fabric.jobs.jobs import ENDED, Job, Jobs
from rays.machines import PATIENCE_S, ray_machines
from real_ray import ENVIRONMENT, REPOSITORY, eventually, free_port

ONE = VirtualCluster(flex_resource_min={"CPU": 1}, flex_resource_max={"CPU": 1})

SLEEPER = """
import pathlib, sys, time
import ray
ray.init(logging_level="ERROR")
@ray.remote
def hold(): time.sleep(600)
held = hold.remote()
print("it runs", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""

HOLDS = """
import pathlib, sys, time
import ray
ray.init(logging_level="ERROR")
print("it holds", ray.cluster_resources()["CPU"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""

LOOK_S = 0.5
"""Seconds between two questions to Ray's job server, which three processes answer."""


@contextlib.contextmanager
def two_machines() -> Iterator[str]:
    """A Ray of two machines with two CPUs each, and a dashboard; this process is a driver of it."""
    with _with_dashboard(2) as address:
        yield address


@contextlib.contextmanager
def three_machines() -> Iterator[str]:
    """The same with three machines."""
    with _with_dashboard(3) as address:
        yield address


@contextlib.contextmanager
def _with_dashboard(count: int) -> Iterator[str]:
    dashboard = {
        "include_dashboard": True,
        "include_log_monitor": False,
        "dashboard_port": free_port(),
        "dashboard_agent_listen_port": free_port(),
    }
    with _job_server_alone(), ray_machines(1, 2, **dashboard) as cluster:
        node = {"num_cpus": 2, "object_store_memory": 10**8}
        for _ in range(count - 1):
            cluster.add_node(**node, dashboard_agent_listen_port=free_port())
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield str(cluster.address)


@contextlib.contextmanager
def _job_server_alone() -> Iterator[None]:
    """A dashboard that starts meanwhile serves jobs alone; its agents do not measure processes."""
    services: Any = importlib.import_module("ray._private.services")
    start = services.start_ray_process

    def started(command: list[str], kind: str, *args: Any, **options: Any) -> Any:
        more = ["--modules-to-load=JobHead,NodeHead"] if kind == "dashboard" else []
        return start([*command, *more], kind, *args, **options)

    seldom = mock.patch.dict(os.environ, REPORTER_UPDATE_INTERVAL_MS="600000")
    with mock.patch.object(services, "start_ray_process", started), seldom:
        yield


def script(folder: Path, text: str) -> list[str]:
    """A command that runs a script."""
    file = folder / "script.py"
    file.write_text(dedent(text))
    return [sys.executable, str(file)]


def ended(jobs: Jobs, id: str) -> Job:
    """The job, once it has ended and its virtual cluster too."""

    def over() -> bool:
        job = jobs.show(id)
        return job.status in ENDED and (job.joined or id not in clusters(jobs))

    try:
        eventually(over, PATIENCE_S, f"{id} has ended", every_s=LOOK_S)
    except AssertionError as error:
        raise AssertionError(f"{jobs.show(id)}\n{jobs.logs(id)}") from error
    return jobs.show(id)


def says(jobs: Jobs, id: str, text: str, within_s: float = PATIENCE_S) -> None:
    """Wait until a job's log has a text."""

    def said() -> bool:
        return text in jobs.logs(id)

    eventually(said, within_s, f"{id} says {text!r}", every_s=LOOK_S)


def clusters(jobs: Jobs) -> dict[str, Mapping[str, Any]]:
    return {each["id"]: each for each in jobs.clusters.snapshot()["clusters"]}


def printed(jobs: Jobs, id: str) -> Any:
    """The document that a script has printed last."""
    return json.loads([line for line in jobs.logs(id).splitlines() if line.startswith("{")][-1])


def processes(marker: str) -> list[psutil.Process]:
    """The live processes whose command line names something."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and any(marker in word for word in process.cmdline()):
                found.append(process)
    return found


def submitted(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedpilot", "job", "submit", "--address", address, *arguments],
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
