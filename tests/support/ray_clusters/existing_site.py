"""A site whose declared Ray clusters run already: Rays without processes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_site import QUICK, read
from fedpilot.fabric.core.ray_clusters.operated import OperatedSettings
from fedpilot.fabric.core.records import MachineId
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.errors import ClusterRefuses, ClusterUnreachable
from fedpilot.fabric.ray.control_plane.ray_nodes import RayNode, RayView
from fedpilot.fabric.ray_clusters.declarations.records import StoredDeclaration
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.existing.existing_cluster import ExistingRayCluster, ExistingTimes
from fedpilot.fabric.ray_clusters.lifecycle.manager import LifecycleManager
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from operated_site import NAME, OperatedSite
from ray_cluster_documents import Document

ADDRESS = "head.example:6379"
SOON = OperatedSettings(away_s=0.3)
TIMES = ExistingTimes(look_s=0.01, silent_s=0.05)


def existing(address: str = ADDRESS, **ours: Any) -> Document:
    """A Ray that runs already."""
    ours = {"provider": "existing", "address": address, **ours}
    return {"metadata": {"name": NAME}, "spec": {"fedpilot": ours}}


def living(name: str, id: str = "", *, head: bool = False, **labels: str) -> RayNode:
    """A raylet with two CPUs."""
    return RayNode(
        id=MachineId(id or name * 8),
        name=name,
        head=head,
        draining=False,
        total=Resources.of({"CPU": 2.0}),
        available=Resources.of({"CPU": 2.0}),
        labels=labels,
        host=f"host-{name}",
    )


@dataclass
class FakeRay:
    """What the control plane of a Ray says."""

    nodes: list[RayNode] = field(default_factory=lambda: [living("h", head=True), living("w")])
    token: str = ""
    away: str = ""
    """Why it does not answer; empty: it does."""
    calls: int = 0


@dataclass
class FakeRays:
    """The Rays that run, by address."""

    at: dict[str, FakeRay] = field(default_factory=lambda: {ADDRESS: FakeRay()})
    here: str = ""
    """What the address `auto` means; empty: there is none."""

    def cluster(self, stored: StoredDeclaration, _: object) -> ExistingRayCluster:
        return ExistingRayCluster(
            document=ray_cluster_of(stored.document),
            nodes_at=lambda address, token: FakeRayNodes(self, address, token),
            found_here=self.found_here,
            times=TIMES,
            deleted=stored.deleted,
        )

    def found_here(self) -> str:
        if not self.here:
            raise ClusterUnreachable("auto", "no Ray was started on this machine")
        return self.here


@dataclass
class FakeRayNodes:
    """The control plane of one of them. It has no call that changes anything."""

    rays: FakeRays
    address: str
    token: str

    async def look(self) -> RayView:
        ray = self.rays.at.get(self.address)
        if ray is None or ray.away:
            raise ClusterUnreachable(self.address, ray.away if ray else "nothing listens there")
        ray.calls += 1
        if ray.token != self.token:
            raise ClusterRefuses(self.address, "InvalidAuthToken")
        nodes = {each.name: each for each in ray.nodes}
        others = tuple(each for each in ray.nodes if nodes[each.name] is not each)
        return RayView(nodes=nodes, namesakes=others)

    async def close(self) -> None:
        pass


class ExistingSite(OperatedSite):
    """A site's store, and the Rays that its clusters are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rays = FakeRays()

    @property
    def ray(self) -> FakeRay:
        """The Ray at the usual address."""
        return self.rays.at[ADDRESS]

    def manager(self, store: RayClusterStore | None = None) -> LifecycleManager:
        """A manager of this site, which does not run yet."""

        def no_machines(stored: StoredDeclaration, _: object) -> Any:
            raise AssertionError(f"{stored.name} has no machines of ours")

        return LifecycleManager(
            store=store or self.store,
            declared=read,
            provider=no_machines,
            nodes_at=lambda address, token: no_machines,  # type: ignore[arg-type,return-value]
            operating=self.rays.cluster,
            clock=time.time,
            times=QUICK,
            operated=SOON,
        )

    def machines(self) -> list[str]:
        """The machines that are shown, with their states."""
        return [f"{each['name']} {each['state']}" for each in self.now["machines"]]
