"""Declared Ray clusters on hosts over SSH, with a real sshd each: hosts go, and come back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from declaring_site import DeclaringSite, until
from fedpilot.fabric.ray_clusters.providers.protocol import ProviderView
from fedpilot.fabric.ray_clusters.providers.ssh import SshMachines
from ssh_hosts import SshHosts, ssh_hosts

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = "object-store-memory: '80000000'"
DEMO = f"""
metadata: {{name: demo}}
spec:
  fedpilot: {{provider: ssh, python: {sys.executable}, sshConfig: CONFIG}}
  headGroupSpec:
    rayStartParams: {{num-cpus: '1', include-dashboard: 'false', {SMALL}}}
    fedpilot: {{hosts: [one, two]}}
  workerGroupSpecs:
    - groupName: workers
      replicas: 1
      rayStartParams: {{num-cpus: '2', {SMALL}}}
      fedpilot: {{hosts: [three, two]}}
"""


@pytest.fixture
def there(tmp_path: Path) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path, "one", "two", "three") as found:
        yield found


def places(site: DeclaringSite) -> dict[str, str]:
    """The hosts of the machines that Ray uses."""
    found = site.seen()["machines"]
    return {each["group"]: each["host"] for each in found if each["state"] == "ready"}


def test_a_host_whose_key_has_changed_is_told_nothing(there: SshHosts, tmp_path: Path) -> None:
    lines = there.known.read_text().splitlines()
    one, two = (line.split() for line in lines[:2])
    there.known.write_text("\n".join([" ".join([one[0], *two[1:]]), *lines[1:]]))

    async def story() -> ProviderView:
        machines = SshMachines(there.declare("one", "two"), "uid", tmp_path / "site")
        found = await machines.look()
        await machines.close()
        return found

    silent = asyncio.run(story()).silent_hosts
    assert silent.keys() == {"one"}
    assert "Host key verification failed" in silent["one"]
    assert not (tmp_path / "one" / "state").exists()


def test_machines_move_from_hosts_that_are_gone_and_take_their_virtual_clusters_along(
    site: DeclaringSite, there: SshHosts, tmp_path: Path
) -> None:
    site.serve()
    site.declare(DEMO.replace("CONFIG", there.config))
    site.done("wait", "demo")
    assert places(site) == {"headgroup": "one", "workers": "three"}
    head, worker = site.machines()
    spec = 'VirtualCluster.from_dict({"flex_resource_min": {"CPU": 1}})'
    made = site.ask(f'clusters.create("team", {spec}, detached=True)', there.on("one"))
    assert made["state"] == "active"

    there.hosts["three"].cut()
    until(lambda: places(site) == {"headgroup": "one", "workers": "two"})
    assert "three" in site.seen()["hosts_silent"]
    there.hosts["three"].mend()
    until(lambda: not site.seen()["hosts_silent"])
    until(lambda: not site.processes_of(site.uid, worker))

    there.hosts["one"].cut()
    until(lambda: places(site).get("headgroup") == "two" and "workers" in places(site))
    states = '[(each["id"], each["state"]) for each in clusters.snapshot()["clusters"]]'
    until(lambda: ["team", "active"] in site.ask(states, there.on("two")))
    there.hosts["one"].mend()
    until(lambda: not site.processes_of(site.uid, head))

    uid = site.uid
    site.done("delete", "demo", "--wait")
    assert not site.processes_of(uid)
    folders = [tmp_path / name / "state/fedpilot/machines" for name in there.hosts]
    assert [[*folder.iterdir()] for folder in folders] == [[], [], []]
    assert not (tmp_path / "clusters" / uid).exists()
