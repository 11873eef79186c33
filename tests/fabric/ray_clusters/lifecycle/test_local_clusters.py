"""Declared Ray clusters on this computer, with real raylets: they heal, with what they had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedpilot.common.host.marked_processes import marked_processes, signal_all
from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
from fedpilot.fabric.ray_clusters.declarations.documents import details, is_managed
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.providers.ray_start import MARK
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 300.0
SMALL = "object-store-memory: '80000000'"
DEMO = f"""
metadata: {{name: demo}}
spec:
  headGroupSpec:
    rayStartParams: {{num-cpus: '1', include-dashboard: 'false', {SMALL}}}
  workerGroupSpecs:
    - groupName: workers
      replicas: 1
      maxReplicas: 3
      rayStartParams: {{num-cpus: '2', {SMALL}}}
"""
ASK = """
import json, sys
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster, VirtualClusters
import ray
ray.init(logging_level=50, log_to_driver=False)
clusters = VirtualClusters()
print("ANSWER", json.dumps(eval(sys.argv[1])))
"""


class LocalSite:
    """A store, and the commands on it."""

    def __init__(self, folder: Path) -> None:
        self.store = RayClusterStore(folder / "declared.sqlite")
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self.processes: list[subprocess.Popen[bytes]] = []

    def fedpilot(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedpilot", "raycluster", arguments[0]]
        process = subprocess.Popen(
            [*command, "--store", str(self.store.path), *arguments[1:]], env=self.environment
        )
        self.processes.append(process)
        return process

    def done(self, *arguments: str) -> None:
        assert self.fedpilot(*arguments).wait(PATIENCE_S) == 0

    def serve(self) -> subprocess.Popen[bytes]:
        serving = self.fedpilot("serve")
        until(lambda: is_managed(self.store) or serving.poll() is not None)
        return serving

    def declare(self, text: str) -> None:
        document = ray_cluster_of(yaml.safe_load(text)).document
        name = RayClusterName("demo")
        found = self.store.find(name)
        saw = found.revision if found else UNDECLARED
        self.store.apply(name, document, saw=saw, by="ann", at=time.time())

    @property
    def uid(self) -> str:
        found = self.store.find(RayClusterName("demo"))
        return found.uid if found else ""

    def seen(self) -> dict[str, Any]:
        found = self.store.find(RayClusterName("demo"))
        return details(self.store, found) if found else {}

    def machines(self) -> list[str]:
        return [each["name"] for each in self.seen()["machines"] if each["state"] == "ready"]

    def kill(self, machine: str, program: str) -> None:
        found = marked_processes(MARK, f"{self.uid}/{machine}")
        signal_all([each for each in found if each.program == program], signal.SIGKILL)

    def ask(self, question: str) -> Any:
        """What the manager of the cluster's virtual clusters answers."""
        seen = self.seen()
        environment = {
            **self.environment,
            "RAY_ADDRESS": seen["address"],
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": seen["token_file"],
        }
        done = subprocess.run(
            [sys.executable, "-c", ASK, question],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        line = next(each for each in done.stdout.splitlines() if each.startswith("ANSWER "))
        return json.loads(line.removeprefix("ANSWER "))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it has not come to that in time"
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LocalSite]:
    site = LocalSite(tmp_path)
    try:
        yield site
    finally:
        uids = [each.uid for each in site.store.declarations()]
        for process in site.processes:
            process.kill()
            process.wait()
        for uid in uids:
            signal_all(marked_processes(MARK, f"{uid}/"), signal.SIGKILL)
        site.store.close()


def test_a_cluster_heals_while_its_manager_comes_and_goes(site: LocalSite) -> None:
    serving = site.serve()
    site.declare(DEMO)
    site.done("wait", "demo")
    assert site.machines() == ["demo-headgroup-0", "demo-workers-1"]
    spec = 'VirtualCluster.from_dict({"flex_resource_min": {"CPU": 1}})'
    made = site.ask(f'clusters.create("team", {spec}, detached=True)')
    assert made["state"] == "active"
    projects = [{"name": "vision", "quota": {"default": {"CPU": 1}}}]
    site.ask(f"clusters.apply_queues({{'projects': {projects}}})")

    site.kill("demo-workers-1", "raylet")
    until(lambda: site.machines() == ["demo-headgroup-0", "demo-workers-2"])

    serving.kill()  # with no time for anything
    serving.wait()
    site.kill("demo-workers-2", "raylet")
    site.serve()
    until(lambda: site.machines() == ["demo-headgroup-0", "demo-workers-3"])

    address = site.seen()["address"]
    site.kill("demo-headgroup-0", "gcs_server")
    before = {"demo-headgroup-0", "demo-workers-3"}
    until(lambda: len(site.machines()) == 2 and not before & {*site.machines()})
    assert site.seen()["address"] == address
    states = '[(each["id"], each["state"]) for each in clusters.snapshot()["clusters"]]'
    until(lambda: ["team", "active"] in site.ask(states))
    assert site.ask('clusters.queues()["revision"]') == 1

    uid = site.uid
    site.done("delete", "demo", "--wait")
    assert not marked_processes(MARK, f"{uid}/")


def test_an_autoscaler_brings_a_machine_for_work_that_waits_and_takes_it_away(
    site: LocalSite,
) -> None:
    site.serve()
    site.declare(DEMO.replace("replicas: 1", "replicas: 0\n      fedpilot: {idleSeconds: 1}"))
    site.done("wait", "demo")
    assert site.machines() == ["demo-headgroup-0"]
    two = 'FixedSizeNodes(nodes=(FixedSizeNode(resources={"CPU": 1}),) * 2)'
    spec = f"VirtualCluster(fixed_size_nodes=({two},))"
    site.ask(f'clusters.create("team", {spec}, detached=True, wait_s=0)')
    until(lambda: site.machines() == ["demo-headgroup-0", "demo-workers-1"])
    shown = 'clusters.show("team")["state"]'
    until(lambda: site.ask(shown) == "active")
    site.ask('list(clusters.delete("team"))')
    until(lambda: site.machines() == ["demo-headgroup-0"])
