"""FakeMachines: machines without processes, in a time of the caller's; for tests and trials."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...core.ray_clusters.declaration import HEAD, DeclaredRayCluster, MachineName
from ...core.records import BundleGroup, MachineId
from ...core.resources import Resources
from ...errors import ClusterUnreachable, ProviderFailed
from ...ray.control_plane.ray_nodes import RayNode, RayView
from .protocol import MachineOrder, ProvidedMachine, ProviderView

ADDRESS = "fake:6379"


@dataclass(kw_only=True)
class FakeHostedMachine:
    """A machine that is there."""

    order: MachineOrder
    joins_s: float
    """When Ray uses it."""
    reason: str = ""
    """Why it is dead; empty: it is not."""
    draining: bool = False
    busy: bool = False
    idle_from_s: float = 0.0


@dataclass(kw_only=True)
class FakeHosts:
    """What outlives a provider: the machines of all clusters, by the cluster's uid."""

    clock: Callable[[], float]
    boot_s: float = 3.0
    """From the start of a machine until Ray uses it."""
    machines: dict[tuple[str, MachineName], FakeHostedMachine] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """Hosts that do not answer."""
    refuses: str = ""
    """Why no machine can be started; empty: they can."""
    pending: list[BundleGroup] = field(default_factory=list)
    """What Ray has no room for."""
    values: dict[bytes, bytes] = field(default_factory=dict)
    """Of Ray's key-value store."""
    starts: list[MachineName] = field(default_factory=list)
    """All machines that were ever started."""
    buried: set[tuple[str, MachineName]] = field(default_factory=set)
    """Those of which Ray was told that they are dead."""

    def kill(self, uid: str, name: MachineName) -> None:
        """End the processes of a machine."""
        self.machines[uid, name].reason = "its processes have ended"


class FakeMachines:
    """The machines of one declared Ray cluster."""

    def __init__(self, hosts: FakeHosts, uid: str) -> None:
        self._hosts, self._uid = hosts, uid
        self.woken = asyncio.Event()

    async def look(self) -> ProviderView:
        return ProviderView(
            machines={
                (each.order.machine.host, name): ProvidedMachine(
                    name=name, dead=bool(each.reason), reason=each.reason
                )
                for name, each in self._mine.items()
                if each.order.machine.host not in self._hosts.silent
            },
            silent_hosts=dict.fromkeys(self._hosts.silent, "it does not answer"),
        )

    @property
    def _mine(self) -> Mapping[MachineName, FakeHostedMachine]:
        return {name: m for (uid, name), m in self._hosts.machines.items() if uid == self._uid}

    async def start(self, order: MachineOrder) -> None:
        key = self._uid, order.machine.name
        if key in self._hosts.machines:
            return
        if self._hosts.refuses or order.machine.host in self._hosts.silent:
            why = self._hosts.refuses or f"{order.machine.host} does not answer"
            raise ProviderFailed(f"cannot start {order.machine.name}: {why}")
        joins_s = self._hosts.clock() + self._hosts.boot_s
        self._hosts.machines[key] = FakeHostedMachine(
            order=order, joins_s=joins_s, idle_from_s=joins_s
        )
        self._hosts.starts.append(order.machine.name)

    async def stop(self, name: MachineName, host: str) -> None:
        if host in self._hosts.silent:
            raise ProviderFailed(f"cannot end {name}: {host} does not answer")
        self._hosts.machines.pop((self._uid, name), None)

    def declare(self, declared: DeclaredRayCluster) -> None: ...

    async def changed(self) -> None:
        await self.woken.wait()
        self.woken.clear()

    @property
    def address(self) -> str | None:
        return ADDRESS

    @property
    def token(self) -> str:
        return ""

    @property
    def token_file(self) -> str | None:
        return None

    async def forget(self) -> None: ...

    async def close(self) -> None: ...


class FakeNodes:
    """The control plane of a Ray cluster of fake machines."""

    def __init__(self, hosts: FakeHosts, uid: str) -> None:
        self._hosts, self._uid = hosts, uid
        self.address = ADDRESS

    async def look(self) -> RayView:
        now = self._hosts.clock()
        mine = {name: m for (uid, name), m in self._hosts.machines.items() if uid == self._uid}
        up = {
            name: each
            for name, each in mine.items()
            if each.joins_s <= now
            and not each.reason
            and (self._uid, name) not in self._hosts.buried
        }
        heads = {name for name, each in up.items() if each.order.group.name == HEAD}
        if not heads:
            raise ClusterUnreachable(ADDRESS, "nothing listens there")
        nodes: dict[str, RayNode] = {
            name: self._node(name, each, now)
            for name, each in up.items()
            if name in heads or each.order.machine.head in heads
        }
        return RayView(nodes=nodes, pending=tuple(self._hosts.pending))

    def _node(self, name: MachineName, machine: FakeHostedMachine, now: float) -> RayNode:
        return RayNode(
            id=MachineId(name.encode().hex()),
            name=name,
            head=machine.order.group.name == HEAD,
            draining=machine.draining,
            total=machine.order.group.template.resources,
            available=Resources() if machine.busy else machine.order.group.template.resources,
            idle_s=0.0 if machine.busy else max(0.0, now - machine.idle_from_s),
        )

    async def value(self, key: bytes) -> bytes | None:
        return self._hosts.values.get(key)

    async def drain(self, node: MachineId, until_s: float, reason: str) -> str:
        machine = self._hosts.machines[self._uid, MachineName(bytes.fromhex(node).decode())]
        machine.draining = True
        return ""

    async def bury(self, node: MachineId, reason: str) -> None:
        self._hosts.buried.add((self._uid, MachineName(bytes.fromhex(node).decode())))

    async def close(self) -> None: ...
