"""`ray.kill` of the manager, which any driver may do: jobs go on with its successor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
import ray
from ray.autoscaler.sdk import request_resources
from ray.experimental.internal_kv import _internal_kv_get

from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.manager.actor import NAME, NAMESPACE
from rays.drivers import client
from rays.machines import Machines, machines
from real_ray import ENVIRONMENT, eventually, in_session, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE_S = 60.0

WORKS = """
import gc
gc.disable()  # what refers to an actor by mistake does so for good

@ray.remote(num_cpus=1)
class Inside:
    def submits(self):
        return ray.get(number.options(num_cpus=0).remote(7))

@ray.remote(num_cpus=1)
def number(n):
    return n

with VirtualCluster(flex_resource_min={"CPU": 3}, flex_resource_max={"CPU": 3}):
    kept = Inside.remote()
    ray.get(kept.submits.remote())
    say(event="works", found=ray.get([number.remote(n) for n in range(3)]))
    ends = Inside.remote()
    ray.get(ends.submits.remote())
    sys.stdin.readline()
    for turn in range(3):
        began = time.monotonic()
        found = ray.get([number.remote(n) for n in range(3)] + [kept.submits.remote()])
        say(event="worked", found=found, took=time.monotonic() - began)
        sys.stdin.readline()
    del ends
    say(event="ended")
    sys.stdin.readline()
"""


DIES = """
import os, signal, sys
import ray
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters

ray.init(address=sys.argv[1], logging_level="ERROR")
clusters = VirtualClusters()
manager = clusters.call("pid")
os.kill(manager, signal.SIGKILL)
clusters.snapshot()  # from its successor

@ray.remote(num_cpus=0, max_retries=0)
def dies():
    os.kill(os.getpid(), signal.SIGKILL)

try:
    ray.get(dies.remote())
except ray.exceptions.WorkerCrashedError:
    print("manager", manager, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def at() -> Iterator[Machines]:
    with machines(1) as found:
        yield found


def killed() -> None:
    """Kill the manager for good; it answers nobody any more."""
    manager = ray.get_actor(NAME, namespace=NAMESPACE)
    process = psutil.Process(ray.get(manager.pid.remote(), timeout=PATIENCE_S))
    ray.kill(manager)
    process.wait(PATIENCE_S)


def placed(clusters: VirtualClusters) -> int:
    """How much work runs in the one virtual cluster that a job has made."""
    (job,) = [each for each in clusters.snapshot()["clusters"] if each["id"] != "default"]
    return int(job["work"]["placed"])


def test_a_job_goes_on_when_the_manager_is_killed(at: Machines) -> None:
    clusters = VirtualClusters()
    clusters.snapshot()
    with client(WORKS, at.address) as job:
        assert job.wait_for("works")["found"] == [0, 1, 2]
        for _ in range(3):
            killed()
            job.go_on()
            worked = job.wait_for("worked")
            assert worked["found"] == [0, 1, 2, 7]
            eventually(lambda: placed(clusters) == 2, PATIENCE_S, "only the actors are left")
        job.go_on()
        job.wait_for("ended")
        eventually(lambda: placed(clusters) == 1, PATIENCE_S, "the end of an actor is seen")


def test_who_asked_before_the_manager_was_killed_asks_its_successor(at: Machines) -> None:
    clusters = VirtualClusters()
    before = {each["id"] for each in clusters.snapshot()["machines"]}
    killed()
    assert {each["id"] for each in clusters.snapshot()["machines"]} == before


def asked_of_the_autoscaler() -> list[dict[str, float]]:
    """Where Ray's autoscaler reads how large the cluster should be."""
    found: list[dict[str, float]] = json.loads(
        _internal_kv_get(b"autoscaler_resource_request") or b"[]"
    )
    return found


@pytest.mark.soak
def test_what_others_asked_of_the_autoscaler_outlives_our_part_and_the_manager(
    at: Machines,
) -> None:
    theirs = [{"CPU": 1}] * 50
    request_resources(bundles=theirs)
    clusters = VirtualClusters()
    all_of_it = FixedSizeNodes(nodes=(FixedSizeNode(resources={"CPU": 4}),))
    for name in ("holds", "waits"):
        clusters.create(name, VirtualCluster(fixed_size_nodes=(all_of_it,)), wait_s=0)
    beside = [*theirs, {"CPU": 4.0}, {"CPU": 4.0}]
    eventually(lambda: asked_of_the_autoscaler() == beside, PATIENCE_S, "our part comes")
    killed()
    clusters.delete("waits")
    eventually(lambda: asked_of_the_autoscaler() == theirs, PATIENCE_S, "our part goes")
    clusters.delete("holds")
    request_resources(bundles=[])


@pytest.mark.soak
def test_a_manager_that_dies_prints_nothing_into_the_console_of_who_made_it() -> None:
    with (
        ray_head() as address,
        in_session(
            [sys.executable, "-c", DIES, address], env=ENVIRONMENT, stdin=subprocess.PIPE
        ) as driver,
    ):
        assert driver.stdout is not None
        told: list[str] = []
        while not (any("A worker died" in t for t in told) and "manager" in " ".join(told)):
            line = driver.stdout.readline()
            assert line, f"it ended: {told}"
            told.append(line)
        (manager,) = [line.split()[1] for line in told if line.startswith("manager")]
        deaths = [line for line in told if "A worker died" in line]
        assert len(deaths) == 1, "that of the task"
        assert f"Worker PID: {manager} " not in deaths[0]
