"""OperatedCluster: keeps one declared Ray cluster whose machines another operator keeps.

It observes the cluster's resource, decides, and writes the resource. The operator starts, heals and
ends machines; here they are only shown. One write goes on at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...core.ray_clusters.declaration import (
    HEAD,
    DeclaredRayCluster,
    GroupName,
    MachineGroup,
    MachineName,
)
from ...core.ray_clusters.lifecycle import RayClusterState
from ...core.ray_clusters.machines import MachineState
from ...core.ray_clusters.operated import (
    OperatedDeclaration,
    OperatedMachine,
    OperatedMemory,
    OperatedSettings,
    OperatedTurn,
    OperatedView,
    ResourceWrite,
    SeenResource,
    operate,
)
from ...errors import FabricError
from ...spec.ray_cluster.document import RayClusterDocument

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often it looks without being woken."""


class OperatedResource(Protocol):
    """The resource of one cluster at its operator."""

    place: str
    """Where it is, such as a namespace; empty: not known yet."""

    @property
    def declared(self) -> OperatedDeclaration: ...

    def declare(self, document: RayClusterDocument, /, *, deleted: bool) -> None:
        """Take another declaration."""

    def view(self) -> OperatedView:
        """What is known now."""

    def machines(
        self, before: Mapping[MachineName, OperatedMachine], next_number: int, now: float, /
    ) -> tuple[Mapping[MachineName, OperatedMachine], int]:
        """Its machines now, and the number of the next one that is new."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many machines the operator has decided on, by group; also of groups of its own."""

    @property
    def idle(self) -> Mapping[str, int]:
        """How many ready machines have no work, by group; without groups where it is unknown."""

    @property
    def lacks(self) -> str:
        """Why something of it cannot be shown."""

    @property
    def address(self) -> str | None: ...

    @property
    def token_file(self) -> str | None: ...

    @property
    def has_auth(self) -> bool: ...

    async def follow(self) -> None:
        """Keep up with the resource until cancelled."""

    async def changed(self) -> None:
        """Return once something may be known that was not before."""

    async def write(self, write: ResourceWrite, /) -> None:
        """Write the resource; `view` tells how it went. FabricError."""

    async def forget(self) -> None:
        """Keep nothing of it."""

    async def close(self) -> None: ...


class RemembersOperated(Protocol):
    """Where the memory of one such cluster is kept; it raises Fenced."""

    def load(self) -> OperatedMemory:
        """What was last kept."""

    def keep(self, before: OperatedMemory, found: OperatedMemory, now: float, reason: str) -> None:
        """Keep what has changed, and tell of it; `reason` is why its state is no better."""

    def tell(self, now: float, kind: str, reason: str) -> None:
        """Tell of something that has happened."""

    def show(self, status: Mapping[str, Any]) -> None:
        """Show what has become of the cluster."""


@dataclass(kw_only=True)
class OperatedCluster:
    """One declared Ray cluster whose machines another operator keeps."""

    declared: DeclaredRayCluster
    revision: int
    resource: OperatedResource
    remembers: RemembersOperated
    clock: Callable[[], float]
    settings: OperatedSettings = field(default_factory=OperatedSettings)

    def __post_init__(self) -> None:
        self._memory = self.remembers.load()
        if self._memory.place:
            self.resource.place = self._memory.place
        self._woken = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._refusal = ""
        """The last refusal that was told of."""
        self._said = ""
        """The last failure in the log."""

    def declare(
        self,
        declared: DeclaredRayCluster,
        document: RayClusterDocument,
        revision: int,
        *,
        deleted: bool,
    ) -> None:
        """Take another declaration."""
        self.declared, self.revision = declared, revision
        self.resource.declare(document, deleted=deleted)
        self._woken.set()

    async def run(self) -> None:
        """Keep it as declared, until it is deleted and nothing of it is left. Fenced."""
        following = [
            asyncio.create_task(self.resource.follow()),
            asyncio.create_task(self._follow()),
        ]
        try:
            while not (found := await self.turn()).finished:
                if failed := [each for each in following if each.done()]:
                    await failed[0]
                await self._wait(found)
        finally:
            tasks = [*following, *([self._writing] if self._writing is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writing = None
            await self.resource.close()

    async def forget(self) -> None:
        """Keep nothing of the cluster, which is gone."""
        await self.resource.forget()

    async def turn(self) -> OperatedTurn:
        """Observe, decide, remember, and begin to write."""
        self._woken.clear()
        now, before = self.clock(), self._memory
        declared, view = self.resource.declared, self.resource.view()
        found = operate(declared, before.state, view, now, self.settings)
        machines, number = self.resource.machines(before.machines, before.next_number, now)
        memory = OperatedMemory(
            state=found.state,
            state_since_s=before.state_since_s if found.state is before.state else now,
            place=self.resource.place,
            next_number=number,
            machines={} if found.finished else machines,
        )
        if memory != before or memory.machines != before.machines:
            await asyncio.to_thread(self.remembers.keep, before, memory, now, found.reason)
            self._memory = memory
        if found.write is not None and self._writing is None:
            self._writing = asyncio.create_task(self._write(found.write, found.because))
        await self._tell_refusal(found, now)
        await asyncio.to_thread(self.remembers.show, self._status(found, view))
        return found

    async def _tell_refusal(self, found: OperatedTurn, now: float) -> None:
        """Tell of each refusal once."""
        refusal = found.reason if found.stuck else ""
        if refusal and refusal != self._refusal:
            await asyncio.to_thread(self.remembers.tell, now, "resource_refused", refusal)
        self._refusal = refusal

    async def _write(self, write: ResourceWrite, because: str) -> None:
        """Write, and tell of it; a failure is tried again, as `operate` decides."""
        try:
            await self.resource.write(write)
            done = "applied" if write is ResourceWrite.APPLY else "deleted"
            now = self.clock()
            await asyncio.to_thread(self.remembers.tell, now, f"resource_{done}", because)
        except FabricError as error:
            if str(error) != self._said:
                log.warning("%s: %s", self.declared.name, error)
            self._said = str(error)
        except Exception:
            log.exception("%s: a write failed, and is tried again", self.declared.name)
            await asyncio.sleep(self.settings.first_pause_s)
        finally:
            self._writing = None
            self._woken.set()

    async def _follow(self) -> None:
        while True:
            await self.resource.changed()
            self._woken.set()

    async def _wait(self, found: OperatedTurn) -> None:
        wait_s = LOOK_S
        if found.wake_s is not None:
            wait_s = min(wait_s, max(0.0, found.wake_s - self.clock()))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._woken.wait()

    # -- telling -----------------------------------------------------------------------------------

    def _status(self, found: OperatedTurn, view: OperatedView) -> dict[str, Any]:
        """What has become of the cluster, as JSON values."""
        reason = found.reason
        if not reason and self.resource.lacks:
            reason = self.resource.lacks
        groups: dict[str, MachineGroup] = {each.name: each for each in self.declared.groups}
        groups |= {
            name: MachineGroup(name=GroupName(name))
            for name in sorted(self.resource.counts.keys() - groups.keys())
        }
        return {
            "revision": self.revision,
            "state": str(found.state),
            "since": self._memory.state_since_s,
            "reason": reason,
            "stuck": found.stuck,
            "address": self.resource.address,
            "token_file": self.resource.token_file,
            "auth": "token" if self.resource.has_auth else "disabled",
            "groups": {name: self._group(each, found, view) for name, each in groups.items()},
            "hosts_silent": {},
        }

    def _group(
        self, group: MachineGroup, found: OperatedTurn, view: OperatedView
    ) -> dict[str, Any]:
        mine = [each for each in self._memory.machines.values() if each.group == group.name]
        wanted = self.resource.counts.get(group.name, group.wanted) * group.hosts_per_replica
        counts = {
            str(state): sum(each.state is state for each in mine)
            for state in MachineState
            if state is not MachineState.GONE
        }
        if not mine and isinstance(view.resource, SeenResource):
            counts["ready"] = self._told_ready(group, view.resource)
        if group.name in self.resource.idle:
            counts["idle"] = self.resource.idle[group.name]
        off = self.declared.suspended or found.state is RayClusterState.DELETING
        return {"wanted": 0 if off else wanted, **counts, "given_up": False, "reason": ""}

    def _told_ready(self, group: MachineGroup, resource: SeenResource) -> int:
        """How many the operator counts as ready, where it says so of this group alone."""
        if group.name == HEAD:
            return int(resource.head_ready)
        return resource.ready_workers if len(self.declared.workers) == 1 else 0


def remembered(memory: OperatedMemory) -> dict[str, Any]:
    """All that is remembered but the machines, as JSON values."""
    return {
        "state": str(memory.state),
        "state_since_s": memory.state_since_s,
        "place": memory.place,
        "next_number": memory.next_number,
    }


def recalled(
    cluster: Mapping[str, Any] | None, machines: Mapping[MachineName, Mapping[str, Any]]
) -> OperatedMemory:
    """What was remembered; of a new cluster, nothing."""
    if cluster is None:
        return OperatedMemory()
    rows = {
        name: OperatedMachine(**{**row, "state": MachineState(row["state"])})
        for name, row in machines.items()
    }
    found = OperatedMemory(**{**cluster, "state": RayClusterState(cluster["state"])})
    return replace(found, machines=rows)
