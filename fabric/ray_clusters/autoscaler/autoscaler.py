"""RayClusterAutoscaler: edits `replicas` and `workersToDelete` in a site's declarations.

It may be killed at any time, and another may decide in its place: the decision is one function.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...core.ray_clusters.autoscaling import (
    AutoscalerPlan,
    AutoscalerSettings,
    Demand,
    autoscale,
)
from ...core.ray_clusters.declaration import GroupName, MachineGroup
from ...errors import ClusterUnreachable, Conflict, FabricError, Fenced, StoreUnusable
from ...ray.control_plane.demand_feed import KEY
from ...ray.control_plane.ray_nodes import RayView
from ...spec.ray_cluster.reading import ray_cluster_of
from ...spec.ray_cluster.scaling import scaled
from ..declarations.documents import AUTOSCALER
from ..declarations.records import Lease, RayClusterUid, StoredDeclaration
from ..declarations.store import RayClusterStore
from .facts import FirstSeen, demand_of

LOOK_S = 1.0
"""How often all clusters are looked at."""
STAND_ASIDE_S = 1.0
SERVES = ("ready", "scaling")
"""The states of a cluster whose control plane answers."""
log = logging.getLogger(__name__)

Decide = Callable[
    [Sequence[MachineGroup], Demand | None, float, AutoscalerSettings], AutoscalerPlan
]
"""A decision like `autoscale`."""


class ScaledRay(Protocol):
    """The control plane of one Ray cluster. Calls raise ClusterUnreachable."""

    @property
    def address(self) -> str:
        """Where it is asked."""

    async def look(self) -> RayView:
        """The living nodes, and what waits for more."""

    async def value(self, key: bytes, /) -> bytes | None:
        """A value of Ray's key-value store."""

    async def close(self) -> None: ...


@dataclass(kw_only=True)
class RayClusterAutoscaler:
    """The autoscaler of a site."""

    store: RayClusterStore
    nodes_at: Callable[[str, str], ScaledRay]
    """The control plane at an address, with a token."""
    clock: Callable[[], float] = time.time
    decide: Decide = autoscale
    settings: AutoscalerSettings = field(default_factory=AutoscalerSettings)
    look_s: float = LOOK_S

    def __post_init__(self) -> None:
        self._nodes: dict[RayClusterUid, ScaledRay] = {}
        self._waiting: dict[RayClusterUid, FirstSeen] = {}
        self._unmet: dict[RayClusterUid, Mapping[str, str]] = {}
        self._said: dict[RayClusterUid, str] = {}
        """The last error of each cluster, which is told once."""

    async def run(self) -> None:
        """Look at all clusters again and again, until this task is cancelled. StoreUnusable."""
        holder = f"{socket.gethostname()}:{os.getpid()}"
        while (lease := self.store.acquire(AUTOSCALER, holder)) is None:
            await asyncio.sleep(STAND_ASIDE_S)
        try:
            with self.store.watch() as watch:
                while True:
                    await self.turn(lease)
                    await watch.wait(self.look_s)
        finally:
            self.store.release(lease)
            for nodes in self._nodes.values():
                await nodes.close()

    async def turn(self, lease: Lease) -> None:
        """Look at each cluster, and change what has to change."""
        there = self.store.declarations()
        await self._forget({each.uid for each in there})
        for stored in there:
            try:
                await self._scale(lease, stored)
            except (Fenced, StoreUnusable):
                raise
            except (ClusterUnreachable, Conflict) as error:
                log.debug("%s is looked at again: %s", stored.name, error)
            except Exception as error:  # of one cluster, or of a user's decision
                if self._said.get(stored.uid) != str(error):
                    log.exception("%s cannot be scaled", stored.name)
                self._said[stored.uid] = str(error)

    async def _forget(self, there: set[RayClusterUid]) -> None:
        for uid in self._nodes.keys() - there:
            await self._nodes.pop(uid).close()
            self._waiting.pop(uid, None)
            self._unmet.pop(uid, None)

    async def _scale(self, lease: Lease, stored: StoredDeclaration) -> None:
        status = self.store.status(stored.uid) or {}
        if stored.deleted or status.get("state") not in SERVES or not status.get("address"):
            return
        document = ray_cluster_of(stored.document)
        groups = document.declared.workers
        if document.declared.in_tree_autoscaling or not any(g.least < g.most for g in groups):
            return
        demand = await self._demand(stored, status)
        plan = self.decide(groups, demand, self.clock(), self.settings)
        self._tell_unmet(lease, stored, plan.unmet)
        if not plan.edits:
            return
        for name, edit in plan.edits.items():
            document = scaled(document, name, replicas=edit.replicas, leaving=edit.leaving)
        now = self.clock()
        self.store.apply(stored.name, document.document, saw=stored.revision, by=AUTOSCALER, at=now)
        for name, edit in plan.edits.items():
            reason = f"{name}: {edit.reason}"
            self.store.add_event(lease, stored.uid, at=now, kind="group_scaled", reason=reason)

    async def _demand(self, stored: StoredDeclaration, status: Mapping[str, Any]) -> Demand:
        nodes = self._nodes.get(stored.uid)
        if nodes is None or nodes.address != status["address"]:
            if nodes is not None:
                await nodes.close()
            nodes = self.nodes_at(status["address"], _token(status))
            self._nodes[stored.uid] = nodes
        view, feed = await asyncio.gather(nodes.look(), nodes.value(KEY))
        waiting = self._waiting.setdefault(stored.uid, FirstSeen())
        return demand_of(
            view,
            feed,
            self.store.machines(stored.uid),
            [GroupName(name) for name, each in status["groups"].items() if each.get("given_up")],
            waiting,
            self.clock(),
        )

    def _tell_unmet(
        self, lease: Lease, stored: StoredDeclaration, unmet: Mapping[str, str]
    ) -> None:
        """Tell of each gang that no group can hold, once."""
        before = self._unmet.get(stored.uid, {})
        self._unmet[stored.uid] = unmet
        for id in sorted(unmet.keys() - before.keys()):
            reason = f"{id} has no places, and machines cannot help: {unmet[id]}"
            self.store.add_event(
                lease, stored.uid, at=self.clock(), kind="gang_unmet", reason=reason
            )


def _token(status: Mapping[str, Any]) -> str:
    """The secret of a cluster; empty if it has none. FabricError if its file cannot be read."""
    if not status.get("token_file"):
        return ""
    try:
        with open(status["token_file"]) as file:
            return file.read()
    except OSError as error:
        raise FabricError(f"the token of a cluster cannot be read: {error}") from error
