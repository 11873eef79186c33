"""ClusterLifecycle: keeps one declared Ray cluster as declared. It observes, decides and acts.

What it decides is remembered before it acts. Actions on different machines go on side by side; a
machine has one at a time. All that happens wakes it: a new declaration, a process that ends, an
action that is over; and it looks at Ray from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...core.ray_clusters.declaration import (
    HEAD,
    DeclaredRayCluster,
    GroupName,
    MachineName,
)
from ...core.ray_clusters.lifecycle import (
    DrainMachine,
    LifecycleAction,
    LifecycleSettings,
    LifecycleTurn,
    RayClusterMemory,
    RayClusterView,
    StartMachine,
    StopMachine,
    StopStray,
    turn,
)
from ...core.ray_clusters.machines import MachinePlace, MachineRecord, MachineState, Sighting
from ...core.ray_clusters.metering import IDLE_S
from ...core.records import MachineId
from ...errors import ClusterUnreachable, FabricError, ProviderFailed
from ...ray.control_plane.ray_nodes import RayNode, RayView
from ..providers.protocol import MachineOrder, MachineProvider, ProviderView

log = logging.getLogger(__name__)


class Nodes(Protocol):
    """The control plane of one Ray cluster. Calls raise ClusterUnreachable."""

    @property
    def address(self) -> str:
        """Where it is asked."""

    async def look(self) -> RayView:
        """The living nodes, and what waits for more."""

    async def drain(self, node: MachineId, until_s: float, reason: str, /) -> str:
        """Let a node get no new work; the refusal of Ray, or an empty text."""

    async def bury(self, node: MachineId, reason: str, /) -> None:
        """Tell Ray that a node is dead."""

    async def close(self) -> None: ...


class Remembers(Protocol):
    """Where the memory of one declared Ray cluster is kept; it raises Fenced."""

    def load(self) -> RayClusterMemory:
        """What was last kept."""

    def keep(self, before: RayClusterMemory, found: LifecycleTurn, now: float) -> None:
        """Keep what a turn has decided, and tell of it."""

    def show(self, status: Mapping[str, Any]) -> None:
        """Show what has become of the cluster."""


def ended_heads(nodes: Iterable[RayNode], machines: Iterable[MachineRecord]) -> list[RayNode]:
    """The heads that a control plane takes for alive, and of which nothing is left."""
    known = {each.name for each in machines}
    return [node for node in nodes if node.head and node.name not in known]


def declared_dead(machine: MachineRecord, nodes: Mapping[str, RayNode]) -> bool:
    """Whether a control plane that answers counts a machine as dead which was ready.

    One that has just started may not know any worker yet. It is believed once its head is among its
    nodes.
    """
    believed = machine.name == machine.head or machine.head in nodes
    return believed and machine.state is MachineState.READY and machine.name not in nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleTimes:
    """How often a lifecycle looks without being woken."""

    busy_s: float = 0.1
    """While a machine starts or leaves."""
    quiet_s: float = 1.0


@dataclass(kw_only=True)
class ClusterLifecycle:
    """One declared Ray cluster, kept as declared."""

    declared: DeclaredRayCluster
    revision: int
    provider: MachineProvider
    nodes_at: Callable[[str, str], Nodes]
    """The control plane at an address, with a token."""
    remembers: Remembers
    clock: Callable[[], float]
    settings: LifecycleSettings = field(default_factory=LifecycleSettings)
    times: LifecycleTimes = field(default_factory=LifecycleTimes)
    deleted: bool = False

    def __post_init__(self) -> None:
        self._memory = self.remembers.load()
        self._nodes: Nodes | None = None
        self._seen_nodes: Mapping[str, RayNode] = {}
        self._provided = ProviderView(machines={})
        self._answers = False
        """Whether the control plane answered when last asked."""
        self._silent: dict[str, float] = {}
        """Hosts that do not answer, and since when."""
        self._away: frozenset[str] = frozenset()
        """Those of them that were given up at the last look."""
        self._trouble: dict[MachineName, str] = {}
        """Why a machine could not be started."""
        self._acting: dict[MachinePlace, asyncio.Task[None]] = {}
        self._drained: set[MachineName] = set()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look at once, since something has changed."""
        self._woken.set()

    def declare(self, declared: DeclaredRayCluster, revision: int, *, deleted: bool) -> None:
        """Take another declaration."""
        self.declared, self.revision, self.deleted = declared, revision, deleted
        self.provider.declare(declared)
        self.wake()

    async def run(self) -> None:
        """Keep the cluster as declared, until it is deleted and nothing of it is left. Fenced."""
        following = [
            asyncio.create_task(self._follow_provider()),
            asyncio.create_task(self._follow_ray()),
        ]
        try:
            while (found := await self._try()) is None or not found.finished:
                await self._wait(found)
        finally:
            tasks = [*following, *self._acting.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._nodes is not None:
                await self._nodes.close()
                self._nodes = None
            await self.provider.close()

    async def forget(self) -> None:
        """Keep nothing of the cluster, which has no machines any more."""
        await self.provider.forget()

    async def _try(self) -> LifecycleTurn | None:
        """A turn; None if its provider failed, which is tried again."""
        try:
            return await self.turn()
        except ProviderFailed as error:
            log.warning("%s cannot be looked at: %s", self.declared.name, error)
            return None

    async def turn(self) -> LifecycleTurn:
        """Observe, decide, remember, and begin to act."""
        self._woken.clear()
        view = await self._view()
        now = self.clock()
        found = turn(self.declared, self._memory, view, now, self.settings, deleted=self.deleted)
        if found.memory != self._memory:
            await asyncio.to_thread(self.remembers.keep, self._memory, found, now)
            self._memory = found.memory
        for action in found.actions:
            self._begin(action)
        await asyncio.to_thread(self.remembers.show, self._status(found))
        return found

    # -- observing ---------------------------------------------------------------------------------

    async def _view(self) -> RayClusterView:
        provided, nodes = await self.provider.look(), self._seen_nodes
        self._provided, now = provided, self.clock()
        self._silent = {
            host: self._silent.get(host, now - provided.silent_s.get(host, 0.0))
            for host in provided.silent_hosts
        }
        self._away = frozenset(host for host, at in self._away_at.items() if at <= now)
        known = {each.name: each for each in self._memory.machines}
        found = {
            name: self._sighting(machine, provided, nodes, now) for name, machine in known.items()
        }
        places = {(each.host, each.name) for each in known.values()}
        return RayClusterView(
            machines=found,
            hosts_away=self._away,
            hosts_silent=frozenset(self._silent),
            strays=frozenset(provided.machines.keys() - places),
            head_waits=provided.head_waits,
        )

    @property
    def _away_at(self) -> Mapping[str, float]:
        """When each silent host is given up."""
        timeout_s = self.declared.host_timeout_s
        return {host: since + timeout_s for host, since in self._silent.items()}

    def _sighting(
        self,
        machine: MachineRecord,
        provided: ProviderView,
        nodes: Mapping[str, RayNode],
        now: float,
    ) -> Sighting:
        if machine.host in provided.silent_hosts:
            return Sighting(exists=None)
        there = provided.machines.get((machine.host, machine.name))
        trouble = self._trouble.get(machine.name, "")
        if there is None:
            place = machine.host, machine.name
            starts = place in self._acting and machine.state is MachineState.STARTING
            return Sighting(exists=None if starts else False, trouble=trouble)
        if there.dead:
            trouble = trouble or there.reason
        node = nodes.get(machine.name)
        return Sighting(
            exists=True,
            joined=node is not None and not there.dead,
            dead=self._answers and declared_dead(machine, nodes),
            idle_since_s=now - node.idle_s if node is not None and node.idle_s else None,
            trouble=trouble,
        )

    async def _follow_ray(self) -> None:
        """Keep up with the nodes that Ray knows, however long its control plane takes."""
        while True:
            before = self._seen_nodes, self._answers
            try:
                self._seen_nodes = await self._look_at_ray()
            except Exception:
                log.exception("%s: its control plane cannot be understood", self.declared.name)
                self._seen_nodes, self._answers = {}, False
            if before != (self._seen_nodes, self._answers):
                self.wake()
            await asyncio.sleep(self.times.quiet_s if self._quiet else self.times.busy_s)

    async def _look_at_ray(self) -> Mapping[str, RayNode]:
        """The nodes that the control plane knows; none while it does not answer."""
        address = self.provider.address
        if address is None:
            return {}
        if self._nodes is None or self._nodes.address != address:
            if self._nodes is not None:
                await self._nodes.close()
            self._nodes = self.nodes_at(address, self.provider.token)
        try:
            found = (await self._nodes.look()).nodes
        except ClusterUnreachable:
            self._answers = False
            return {}
        self._answers = True
        for node, reason in self._ended(found):
            with suppress(ClusterUnreachable):
                await self._nodes.bury(node.id, reason)
        return found

    def _ended(self, nodes: Mapping[str, RayNode]) -> Iterator[tuple[RayNode, str]]:
        """The nodes that have ended, or are lost with their host, and that Ray still counts."""
        for node in ended_heads(nodes.values(), self._memory.machines):
            yield node, "it was the head, which has ended"
        for machine in self._memory.machines:
            lost = machine.state is MachineState.STOPPING and machine.host in self._away
            if lost and machine.group != HEAD and machine.name in nodes:
                yield nodes[machine.name], machine.reason

    async def _follow_provider(self) -> None:
        while True:
            await self.provider.changed()
            self.wake()

    @property
    def _quiet(self) -> bool:
        """Whether nothing starts or leaves."""
        return all(each.state is MachineState.READY for each in self._memory.machines)

    async def _wait(self, found: LifecycleTurn | None) -> None:
        """Wait until something happens, or it is time to look."""
        wait_s = self.times.quiet_s if self._quiet or found is None else self.times.busy_s
        now = self.clock()
        wakes = [at for host, at in self._away_at.items() if host not in self._away]
        if found is not None and found.wake_s is not None:
            wakes.append(found.wake_s)
        wait_s = min([wait_s, *(max(0.0, at - now) for at in wakes)])
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._woken.wait()

    # -- acting ------------------------------------------------------------------------------------

    def _begin(self, action: LifecycleAction) -> None:
        """Begin an action, unless one on the same machine goes on."""
        about = action if isinstance(action, StopStray) else action.machine
        place = about.host, about.name
        if place not in self._acting:
            self._acting[place] = asyncio.create_task(self._finish(place, self._act(action)))

    async def _finish(self, place: MachinePlace, action: Coroutine[Any, Any, None]) -> None:
        try:
            await action
        except FabricError as error:
            log.warning("%s: %s", place[1], error)
        except Exception:
            log.exception("%s: an action failed, and is tried again", place[1])
        finally:
            del self._acting[place]
            self.wake()

    async def _act(self, action: LifecycleAction) -> None:
        match action:
            case StartMachine(machine=machine):
                await self._start(machine)
            case DrainMachine(machine=machine, until_s=until_s):
                await self._drain(machine, until_s)
            case StopMachine(machine=machine):
                await self._stop(machine)
            case StopStray(name=name, host=host):
                await self.provider.stop(name, host)

    async def _start(self, machine: MachineRecord) -> None:
        group = next(each for each in self.declared.groups if each.name == machine.group)
        order = MachineOrder(machine=machine, group=group, cluster=self.declared)
        try:
            await self.provider.start(order)
        except FabricError as error:
            self._trouble[machine.name] = str(error)
            raise

    async def _drain(self, machine: MachineRecord, until_s: float) -> None:
        node = self._seen_nodes.get(machine.name)
        if self._nodes is None or node is None or machine.name in self._drained:
            return
        refused = await self._nodes.drain(node.id, until_s, machine.reason)
        if not refused:
            self._drained.add(machine.name)

    async def _stop(self, machine: MachineRecord) -> None:
        """End a machine; of one that has died Ray is told, since it would wait for many seconds."""
        node = self._seen_nodes.get(machine.name)
        there = self._provided.machines.get((machine.host, machine.name))
        died = there is not None and there.dead and machine.group != HEAD
        if died and node is not None and self._nodes is not None:
            with suppress(ClusterUnreachable):
                await self._nodes.bury(node.id, machine.reason)
        await self.provider.stop(machine.name, machine.host)
        self._trouble.pop(machine.name, None)
        self._drained.discard(machine.name)

    # -- telling -----------------------------------------------------------------------------------

    def _idle(self, group: GroupName) -> int:
        """How many ready machines of a group have no work."""
        nodes = self._seen_nodes
        mine = [
            each.name
            for each in self._memory.machines
            if each.group == group and each.name in nodes and each.state is MachineState.READY
        ]
        return sum(nodes[name].idle_s >= IDLE_S for name in mine)

    def _status(self, found: LifecycleTurn) -> dict[str, Any]:
        """What has become of the cluster, as JSON values."""
        machines = found.memory.machines
        groups = {
            each.name: {
                "wanted": each.wanted,
                **{
                    str(state): sum(m.group == each.name and m.state is state for m in machines)
                    for state in MachineState
                    if state is not MachineState.GONE
                },
                **({"idle": self._idle(each.name)} if self._answers else {}),
                "given_up": each.name in found.given_up,
                "reason": found.reasons.get(each.name, ""),
            }
            for each in self.declared.groups
        }
        return {
            "revision": self.revision,
            "state": str(found.memory.state),
            "since": found.memory.state_since_s,
            "address": self.provider.address,
            "token_file": self.provider.token_file,
            "groups": groups,
            "hosts_silent": dict(self._provided.silent_hosts),
        }
