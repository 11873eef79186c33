"""A site whose declared Ray clusters are resources of a small API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_site import QUICK, managed, read
from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
from fedpilot.fabric.core.ray_clusters.operated import OperatedSettings
from fedpilot.fabric.ray_clusters.declarations.documents import details
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED, StoredDeclaration
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.declarations.waiting import RayClusterWait, wait_of
from fedpilot.fabric.ray_clusters.kuberay.kuberay_cluster import KubeRayCluster, KubeRayTimes
from fedpilot.fabric.ray_clusters.lifecycle.manager import LifecycleManager
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from kube_server import KubeServer, kube_server
from ray_cluster_documents import Document, ray_cluster

NAME = RayClusterName("demo")
SOON = OperatedSettings(first_pause_s=0.02, longest_pause_s=0.1, away_s=0.3)
PATIENCE_S = 30.0


def kuberay(**spec: Any) -> Document:
    """A head, and one to four small workers, in KubeRay."""
    document = ray_cluster("kuberay", **spec)
    document["metadata"]["name"] = NAME
    return document


class KubeRaySite:
    """A site's store, and the API server that its clusters are at."""

    def __init__(self, folder: Path, server: KubeServer) -> None:
        self.folder, self.server = folder, server
        self.store = RayClusterStore(folder / "declared.sqlite")
        self.times = KubeRayTimes(call_s=5.0, resync_s=20.0)

    def manager(self, store: RayClusterStore | None = None) -> LifecycleManager:
        """A manager of this site, which does not run yet."""

        def resource(stored: StoredDeclaration, _: object) -> KubeRayCluster:
            return KubeRayCluster(
                document=ray_cluster_of(stored.document),
                uid=stored.uid,
                folder=self.folder / "clusters" / stored.uid,
                settings=SOON,
                times=self.times,
                deleted=stored.deleted,
            )

        def no_machines(stored: StoredDeclaration, _: object) -> Any:
            raise AssertionError(f"{stored.name} has no machines of ours")

        return LifecycleManager(
            store=store or self.store,
            declared=read,
            provider=no_machines,
            nodes_at=lambda address, token: no_machines,  # type: ignore[arg-type,return-value]
            operating=resource,
            clock=time.time,
            times=QUICK,
            operated=SOON,
        )

    def declare(self, document: Document | None = None, **spec: Any) -> StoredDeclaration:
        found = self.store.find(NAME)
        saw = found.revision if found else UNDECLARED
        filled = ray_cluster_of(document or kuberay(**spec)).document
        return self.store.apply(NAME, filled, saw=saw, by="ann", at=1.0)

    def scale(self, replicas: int, **keys: Any) -> StoredDeclaration:
        """Declare another number of workers."""
        found = self.store.find(NAME)
        assert found is not None
        document = kuberay()
        document["spec"] = {**found.document["spec"]}
        group = {**document["spec"]["workerGroupSpecs"][0], "replicas": replicas, **keys}
        document["spec"]["workerGroupSpecs"] = [group]
        return self.declare(document)

    def delete(self) -> None:
        found = self.store.find(NAME)
        assert found is not None
        self.store.delete(NAME, saw=found.revision, by="ann", at=1.0)

    @property
    def now(self) -> dict[str, Any]:
        """What commands show; empty if it is not declared."""
        found = self.store.find(NAME)
        return details(self.store, found) if found is not None else {}

    def events(self, kind: str = "") -> list[str]:
        """The kinds of what has happened, or the reasons of one kind."""
        found = self.store.find(NAME)
        told = self.store.events(found.uid) if found is not None else ()
        return [each.reason if kind else each.kind for each in told if kind in ("", each.kind)]

    def wait(self, state: str = "ready") -> RayClusterWait:
        found = self.store.find(NAME)
        assert found is not None
        return wait_of(self.store, found, state)

    async def until(self, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"it stays {self.now}, {self.events()}") from None

    async def ready(self) -> None:
        await self.until(lambda: self.wait().reached)

    async def stuck(self) -> str:
        """The reason with which a wait ends."""
        await self.until(lambda: bool(self.wait().never))
        return self.wait().never

    async def gone(self) -> None:
        await self.until(lambda: self.store.find(NAME) is None)


@asynccontextmanager
async def kuberay_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeRaySite]:
    async with kube_server(folder, monkeypatch.setenv) as server:
        site = KubeRaySite(folder, server)
        try:
            yield site
        finally:
            site.store.close()


def story(
    folder: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[KubeRaySite], Awaitable[None]]
) -> None:
    """Tell a story of a site that is managed."""

    async def tell() -> None:
        async with kuberay_site(folder, monkeypatch) as site, managed(site.manager()) as task:
            await told(site)
            assert not task.done()

    asyncio.run(tell())
