"""What every provider keeps: the same story told to each of them."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedpilot.common.host.marked_processes import MarkedProcess, marked_processes, signal_all
from fedpilot.fabric.core.ray_clusters.declaration import (
    HEAD,
    MachineGroup,
    MachineName,
    MachineTemplate,
)
from fedpilot.fabric.core.ray_clusters.machines import MachineRecord
from fedpilot.fabric.core.resources import UNIT, Resources
from fedpilot.fabric.errors import ClusterUnreachable
from fedpilot.fabric.ray.control_plane.ray_nodes import RayNodes
from fedpilot.fabric.ray_clusters.lifecycle.cluster_lifecycle import Nodes
from fedpilot.fabric.ray_clusters.providers.fake import FakeHosts, FakeMachines, FakeNodes
from fedpilot.fabric.ray_clusters.providers.local import LocalMachines
from fedpilot.fabric.ray_clusters.providers.protocol import (
    MachineOrder,
    MachineProvider,
    ProvidedMachine,
)
from fedpilot.fabric.ray_clusters.providers.ray_start import MARK
from fedpilot.fabric.ray_clusters.providers.ssh import SshMachines, uid_on
from machine_world import declared, group
from ssh_hosts import ssh_hosts

PATIENCE_S = 240.0
SMALL = {"object-store-memory": "80000000"}


@dataclass
class Provided:
    """A kind of provider, and what may happen to its machines."""

    open: Callable[[str], MachineProvider]
    """The provider of a cluster, by uid; it follows those before."""
    nodes: Callable[[MachineProvider, str], Nodes]
    kill: Callable[[str, MachineName], None]
    """End a machine without being asked to."""
    hosts: Sequence[str] = ("",)
    """Where machines run, by turns."""


def _local(folder: Path) -> Iterator[Provided]:
    uids: set[str] = set()

    def opened(uid: str) -> LocalMachines:
        uids.add(uid)
        return LocalMachines(uid, folder / uid)

    def kill(uid: str, name: MachineName) -> None:
        found = marked_processes(MARK, f"{uid}/{name}")
        signal_all([each for each in found if each.program == "raylet"], signal.SIGKILL)

    def nodes(provider: MachineProvider, uid: str) -> RayNodes:
        return RayNodes(provider.address or "", provider.token)

    try:
        yield Provided(opened, nodes, kill)
        assert not [each for uid in uids for each in marked_processes(MARK, f"{uid}/")]
    finally:
        for uid in uids:
            signal_all(marked_processes(MARK, f"{uid}/"), signal.SIGKILL)


def _ssh(folder: Path) -> Iterator[Provided]:
    uids: set[str] = set()
    with ssh_hosts(folder, "one", "two", "three") as there:
        names = [*there.hosts]

        def opened(uid: str) -> SshMachines:
            uids.add(uid)
            return SshMachines(there.declare(*names), uid, folder / uid)

        def marked(uid: str, name: str = "") -> list[MarkedProcess]:
            marks = [f"{uid_on(host, uid)}/{name}" for host in names]
            return [each for mark in marks for each in marked_processes(MARK, mark)]

        def kill(uid: str, name: MachineName) -> None:
            raylets = [each for each in marked(uid, name) if each.program == "raylet"]
            signal_all(raylets, signal.SIGKILL)

        def nodes(provider: MachineProvider, uid: str) -> RayNodes:
            return RayNodes(provider.address or "", provider.token)

        try:
            yield Provided(opened, nodes, kill, names)
            assert not [each for uid in uids for each in marked(uid)]
        finally:
            for uid in uids:
                signal_all(marked(uid), signal.SIGKILL)


def _fake(folder: Path) -> Iterator[Provided]:
    hosts = FakeHosts(clock=time.monotonic, boot_s=0.01)
    yield Provided(
        lambda uid: FakeMachines(hosts, uid),
        lambda provider, uid: FakeNodes(hosts, uid),
        hosts.kill,
    )
    assert not hosts.machines


@pytest.fixture(
    params=[
        "fake",
        pytest.param("local", marks=[pytest.mark.ray, pytest.mark.soak]),
        pytest.param("ssh", marks=[pytest.mark.ray, pytest.mark.slow]),
    ]
)
def provided(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Provided]:
    yield from {"local": _local, "ssh": _ssh, "fake": _fake}[request.param](tmp_path)


def small(name: str, cpus: int, **parameters: str) -> MachineGroup:
    template = MachineTemplate(
        resources=Resources.of({"CPU": cpus}), parameters={**SMALL, **parameters}
    )
    return group(name, template=template)


HEADS = small(HEAD, 1, **{"include-dashboard": "false"})
WORKERS = small("small", 2)


def order(of: MachineGroup, number: int, host: str = "") -> MachineOrder:
    record = MachineRecord(
        name=MachineName(f"c-{of.name}-{number}"),
        number=number,
        group=of.name,
        host=host,
        template=of.template.digest,
        head=MachineName(f"c-{HEAD}-0"),
        since_s=0.0,
        reason="",
    )
    return MachineOrder(machine=record, group=of, cluster=declared(WORKERS, head=HEADS))


async def seen(provider: MachineProvider) -> dict[MachineName, ProvidedMachine]:
    found = (await provider.look()).machines
    assert len({name for _, name in found}) == len(found)
    return {name: machine for (_, name), machine in found.items()}


async def joined(nodes: Nodes, provider: MachineProvider, *orders: MachineOrder) -> dict[str, Any]:
    """The nodes that Ray knows, once they are these.

    A machine that Ray gives up on a busy computer is started anew, as its manager would.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                found = dict((await nodes.look()).nodes)
            except ClusterUnreachable:
                found = {}
            if found.keys() == {each.machine.name for each in orders}:
                return found
            there = await seen(provider)
            for each in orders:
                if each.machine.name not in found and there[each.machine.name].dead:
                    await provider.stop(each.machine.name, each.machine.host)
                    await provider.start(each)
            await asyncio.sleep(0.05)


async def dead(provider: MachineProvider, name: MachineName) -> ProvidedMachine:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := (await seen(provider))[name]).dead:
            await asyncio.sleep(0.05)
    return found


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_machines_start_join_die_and_end_and_a_successor_sees_them(provided: Provided) -> None:
    uid, other = secrets.token_hex(4), secrets.token_hex(4)
    groups = enumerate([HEADS, WORKERS, WORKERS])
    hosts = provided.hosts
    head, one, two = (order(each, at, hosts[at % len(hosts)]) for at, each in groups)
    names = [each.machine.name for each in (head, one, two)]

    async def story() -> None:
        provider, neighbour = provided.open(uid), provided.open(other)
        assert await seen(provider) == {}
        for each in (head, one, two):  # the workers wait for the head
            await provider.start(each)
            await provider.start(each)  # once more is the same
        assert (await seen(provider)).keys() == {*names}
        assert not any(each.dead for each in (await seen(provider)).values())
        assert await seen(neighbour) == {}
        nodes = provided.nodes(provider, uid)
        there = await joined(nodes, provider, head, one, two)
        assert [each.name for each in there.values() if each.head] == [names[0]]
        assert there[names[1]].total["CPU"] == 2 * UNIT

        follower = provided.open(uid)
        assert (await seen(follower)).keys() == {*names}
        assert (follower.address, follower.token) == (provider.address, provider.token)
        await follower.start(one)  # it is there
        provided.kill(uid, names[1])
        assert (await dead(follower, names[1])).reason
        assert not (await seen(follower))[names[2]].dead
        await nodes.bury(there[names[1]].id, "its processes have ended")
        await follower.stop(names[1], one.machine.host)
        await follower.stop(names[1], one.machine.host)  # it is gone, which is no error
        await follower.stop(names[2], two.machine.host)
        assert (await seen(follower)).keys() == {names[0]}
        await joined(nodes, follower, head)
        await follower.stop(names[0], head.machine.host)
        assert await seen(follower) == {}
        await nodes.close()
        for each in (provider, follower, neighbour):
            await each.close()
        for each in (follower, neighbour):
            await each.forget()

    run(story())
