"""Declared Ray clusters on this computer, with real raylets: they heal, with what they had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from declaring_site import DeclaringSite, until
from fedpilot.common.host.marked_processes import marked_processes
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.providers.ray_start import MARK

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

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


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DeclaringSite]:
    site = DeclaringSite(tmp_path)
    try:
        yield site
    finally:
        site.end()


def test_a_cluster_heals_while_its_manager_comes_and_goes(site: DeclaringSite) -> None:
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
    assert not site.processes_of(uid)


def test_an_autoscaler_brings_a_machine_for_work_that_waits_and_takes_it_away(
    site: DeclaringSite,
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


def test_a_command_has_a_cluster_of_its_own_which_ends_however_the_command_ends(
    tmp_path: Path,
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(DEMO)
    asks = "import ray; ray.init(); print('CPUS', ray.cluster_resources()['CPU'])"
    own = [sys.executable, "-m", "fedpilot", "raycluster", "run", str(file), "--"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*own, sys.executable, "-c", asks]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout) == (0, "CPUS 3.0\n")
    assert not [*tmp_path.glob("fedpilot-*")]

    began = tmp_path / "began"
    command = [*own, "sh", "-c", f"touch {began}; sleep 600"]
    process = subprocess.Popen(command, env=environment)
    try:
        until(began.exists)
        (folder,) = tmp_path.glob("fedpilot-own-*")
        with RayClusterStore(folder / "declared.sqlite") as store:
            (declared,) = store.declarations()
        assert marked_processes(MARK, f"{declared.uid}/")
    finally:
        process.kill()  # with no time for anything
        process.wait()
    until(lambda: not folder.exists())
    assert not marked_processes(MARK, f"{declared.uid}/")
    assert not [*tmp_path.glob("fedpilot-*")]
