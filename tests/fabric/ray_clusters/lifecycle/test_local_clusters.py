"""Declared Ray clusters on this computer, with real raylets: they heal, with what they had."""

from __future__ import annotations

import os
import subprocess
import sys
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
BOTH = ["headgroup", "workers"]


def next_worker(site: DeclaringSite, head: str, gone: str) -> str:
    """The worker in the place of one that is gone; the head is the same.

    Ray may give up a start on a busy computer, so its number is not known before.
    """
    until(lambda: site.groups() == BOTH and gone not in site.machines())
    still, worker = site.machines()
    assert still == head
    return worker


@pytest.mark.soak
def test_a_cluster_heals_while_its_manager_comes_and_goes(site: DeclaringSite) -> None:
    serving = site.serve()
    site.declare(DEMO)
    site.done("wait", "demo")
    head, worker = site.machines()
    assert site.groups() == BOTH
    spec = 'VirtualCluster.from_dict({"flex_resource_min": {"CPU": 1}})'
    made = site.ask(f'clusters.create("team", {spec}, detached=True)')
    assert made["state"] == "active"
    projects = [{"name": "vision", "quota": {"default": {"CPU": 1}}}]
    site.ask(f"clusters.apply_queues({{'projects': {projects}}})")

    site.kill(worker, "raylet")
    second = next_worker(site, head, worker)

    serving.kill()  # with no time for anything
    serving.wait()
    site.kill(second, "raylet")
    site.serve()
    third = next_worker(site, head, second)

    address = site.seen()["address"]
    site.kill(head, "gcs_server")
    until(lambda: site.groups() == BOTH and not {head, third} & {*site.machines()})
    assert site.seen()["address"] == address
    states = '[(each["id"], each["state"]) for each in clusters.snapshot()["clusters"]]'
    until(lambda: ["team", "active"] in site.ask(states))
    assert site.ask('clusters.queues()["revision"]') == 1

    uid = site.uid
    site.done("delete", "demo", "--wait")
    assert not site.processes_of(uid)


@pytest.mark.soak
def test_an_autoscaler_brings_a_machine_for_work_that_waits_and_takes_it_away(
    site: DeclaringSite,
) -> None:
    site.serve()
    site.declare(DEMO.replace("replicas: 1", "replicas: 0\n      fedpilot: {idleSeconds: 1}"))
    site.done("wait", "demo")
    assert site.groups() == BOTH[:1]
    two = 'FixedSizeNodes(nodes=(FixedSizeNode(resources={"CPU": 1}),) * 2)'
    spec = f"VirtualCluster(fixed_size_nodes=({two},))"
    site.ask(f'clusters.create("team", {spec}, detached=True, wait_s=0)')
    until(lambda: site.groups() == BOTH)
    shown = 'clusters.show("team")["state"]'
    until(lambda: site.ask(shown) == "active")
    site.ask('list(clusters.delete("team"))')
    until(lambda: site.groups() == BOTH[:1])


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
