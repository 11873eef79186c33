"""LifecycleManager: keeps all declared Ray clusters of a site as declared, one loop for each.

A loop has machines (`ClusterLifecycle`), or a resource of an operator that has them
(`OperatedCluster`).

One process per site has the role; a second one stands aside until the first has ended, and then
takes over what runs. When it ends, machines go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...core.ray_clusters.declaration import DeclaredRayCluster
from ...core.ray_clusters.lifecycle import LifecycleSettings, LifecycleTurn, RayClusterMemory
from ...core.ray_clusters.machines import MachineState
from ...core.ray_clusters.operated import OperatedMemory, OperatedSettings
from ...errors import FabricError, Fenced, SpecError, StoreUnusable
from ...spec.ray_cluster.reading import ray_cluster_of
from ..declarations.documents import LIFECYCLE_MANAGER
from ..declarations.records import Lease, RayClusterUid, StoredDeclaration, UntoldEvent
from ..declarations.store import RayClusterStore
from ..providers.choice import OPERATED, check_same_provider
from ..providers.protocol import MachineProvider
from .cluster_lifecycle import ClusterLifecycle, LifecycleTimes, Nodes
from .memory import cluster_row, machine_row, memory_of
from .operated_cluster import OperatedCluster, OperatedResource, recalled, remembered

STAND_ASIDE_S = 1.0
"""How often a second manager looks whether the first has ended."""
AGAIN_S = 5.0
"""The pause after an error of the loop of one cluster."""
log = logging.getLogger(__name__)

Providing = Callable[[StoredDeclaration, DeclaredRayCluster], MachineProvider]
"""Makes the provider of a declared Ray cluster."""
Operating = Callable[[StoredDeclaration, DeclaredRayCluster], OperatedResource]
"""Makes the resource of a declared Ray cluster whose machines another operator keeps."""
ClusterLoop: TypeAlias = ClusterLifecycle | OperatedCluster


def _no_operator(stored: StoredDeclaration, declared: DeclaredRayCluster) -> OperatedResource:
    raise SpecError(f"Ray cluster {stored.name!r}: there is no operator {declared.provider} here")


@dataclass(kw_only=True)
class LifecycleManager:
    """The lifecycle manager of a site."""

    store: RayClusterStore
    declared: Callable[[StoredDeclaration], DeclaredRayCluster]
    """Reads a document."""
    provider: Providing
    nodes_at: Callable[[str, str], Nodes]
    operating: Operating = _no_operator
    clock: Callable[[], float] = time.time
    settings: LifecycleSettings = field(default_factory=LifecycleSettings)
    operated: OperatedSettings = field(default_factory=OperatedSettings)
    times: LifecycleTimes = field(default_factory=LifecycleTimes)

    def __post_init__(self) -> None:
        self._loops: dict[RayClusterUid, ClusterLoop] = {}

    async def run(self) -> None:
        """Keep all clusters as declared, until this task is cancelled. Fenced; StoreUnusable."""
        lease = await self._role()
        try:
            async with asyncio.TaskGroup() as tasks:
                async for _ in self.store.changes(declarations_only=True):
                    self._look(lease, tasks)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            self.store.release(lease)

    async def _role(self) -> Lease:
        holder = f"{socket.gethostname()}:{os.getpid()}"
        told = False
        while (lease := self.store.acquire(LIFECYCLE_MANAGER, holder)) is None:
            if not told:
                other = self.store.last_lease(LIFECYCLE_MANAGER)
                log.info("standing aside: %s manages this site", other and other.holder)
                told = True
            await asyncio.sleep(STAND_ASIDE_S)
        return lease

    def _look(self, lease: Lease, tasks: asyncio.TaskGroup) -> None:
        """Begin a loop for each new declaration, and tell the others what they are declared now."""
        for stored in self.store.declarations():
            found = self._loops.get(stored.uid)
            try:
                declared = self.declared(stored)
                if found is not None:
                    check_same_provider(found.declared, declared)
                    _tell(found, stored, declared)
                else:
                    self._loops[stored.uid] = self._loop(lease, stored, declared)
                    tasks.create_task(self._keep(self._loops[stored.uid], lease, stored))
            except FabricError as error:
                self._refuse(lease, stored, str(error))

    def _loop(
        self, lease: Lease, stored: StoredDeclaration, declared: DeclaredRayCluster
    ) -> ClusterLoop:
        if declared.provider in OPERATED:
            return OperatedCluster(
                declared=declared,
                revision=stored.revision,
                resource=self.operating(stored, declared),
                remembers=_StoredOperated(self.store, lease, stored.uid),
                clock=self.clock,
                settings=self.operated,
            )
        return ClusterLifecycle(
            declared=declared,
            revision=stored.revision,
            provider=self.provider(stored, declared),
            nodes_at=self.nodes_at,
            remembers=_StoredMemory(self.store, lease, stored.uid),
            clock=self.clock,
            settings=self.settings,
            times=self.times,
            deleted=stored.deleted,
        )

    def _refuse(self, lease: Lease, stored: StoredDeclaration, reason: str) -> None:
        """Tell why a declaration cannot be used; what runs of its cluster goes on."""
        log.warning("%s: its declaration cannot be used: %s", stored.name, reason)
        status = {"state": "refused", "revision": stored.revision, "reason": reason}
        self.store.put_status(lease, stored.uid, status)

    async def _keep(self, loop: ClusterLoop, lease: Lease, stored: StoredDeclaration) -> None:
        """Keep one cluster as declared until it is deleted; then nothing of it is kept.

        What goes wrong with one cluster does not touch the others: it is tried again.
        """
        while True:
            try:
                await loop.run()
                await loop.forget()
                await asyncio.to_thread(self.store.finish, lease, stored.name, stored.uid)
                break
            except (Fenced, StoreUnusable):
                raise
            except Exception:
                log.exception("%s is kept no more, and will be again in %g s", stored.name, AGAIN_S)
                await asyncio.sleep(AGAIN_S)
        del self._loops[stored.uid]


def _tell(loop: ClusterLoop, stored: StoredDeclaration, declared: DeclaredRayCluster) -> None:
    """Tell a loop what is declared now."""
    if isinstance(loop, ClusterLifecycle):
        loop.declare(declared, stored.revision, deleted=stored.deleted)
    else:
        document = ray_cluster_of(stored.document)
        loop.declare(declared, document, stored.revision, deleted=stored.deleted)


@dataclass(frozen=True, slots=True)
class _Stored:
    """What one cluster has in the store."""

    store: RayClusterStore
    lease: Lease
    uid: RayClusterUid

    def show(self, status: Mapping[str, Any]) -> None:
        self.store.put_status(self.lease, self.uid, status)

    def _changes(
        self, was: Mapping[Any, Any], kept: Mapping[Any, Any], now: float
    ) -> Iterator[UntoldEvent]:
        """What happened to the machines that are in another state, or gone."""
        for name, machine in kept.items():
            if name not in was or was[name].state is not machine.state:
                kind = f"machine_{machine.state}"
                yield UntoldEvent(at=now, kind=kind, machine=name, reason=machine.reason)
        for name in sorted(was.keys() - kept.keys()):
            unseen = was[name].state is MachineState.READY  # it has left without a word
            reason = "it is not seen any more" if unseen else was[name].reason
            yield UntoldEvent(at=now, kind="machine_gone", machine=name, reason=reason)


@dataclass(frozen=True, slots=True)
class _StoredMemory(_Stored):
    """The memory of a cluster of machines."""

    def load(self) -> RayClusterMemory:
        return memory_of(self.store.memory(self.uid), self.store.machines(self.uid))

    def keep(self, before: RayClusterMemory, found: LifecycleTurn, now: float) -> None:
        was = {each.name: each for each in before.machines}
        kept = {each.name: each for each in found.memory.machines}
        changed = [each for each in kept.values() if was.get(each.name) != each]
        events = [*self._changes(was, kept, now)]
        if before.state is not found.memory.state:
            events.append(UntoldEvent(at=now, kind=f"cluster_{found.memory.state}"))
        self.store.remember(
            self.lease,
            self.uid,
            cluster_row(found.memory),
            {
                **{each.name: machine_row(each) for each in changed},
                **{name: None for name in was.keys() - kept.keys()},
            },
            events,
        )


@dataclass(frozen=True, slots=True)
class _StoredOperated(_Stored):
    """The memory of a cluster whose machines another operator keeps."""

    def load(self) -> OperatedMemory:
        return recalled(self.store.memory(self.uid), self.store.machines(self.uid))

    def keep(self, before: OperatedMemory, found: OperatedMemory, now: float, reason: str) -> None:
        was, kept = before.machines, found.machines
        events = [*self._changes(was, kept, now)]
        if before.state is not found.state:
            events.append(UntoldEvent(at=now, kind=f"cluster_{found.state}", reason=reason))
        self.store.remember(
            self.lease,
            self.uid,
            remembered(found),
            {
                **{name: machine_row(m) for name, m in kept.items() if was.get(name) != m},
                **{name: None for name in was.keys() - kept.keys()},
            },
            events,
        )

    def tell(self, now: float, kind: str, reason: str) -> None:
        self.store.add_event(self.lease, self.uid, at=now, kind=kind, reason=reason)
