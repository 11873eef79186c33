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
from fedpilot.fabric.core.ray_clusters.operated import OperatedSettings
from fedpilot.fabric.ray_clusters.declarations.records import StoredDeclaration
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.kuberay.kuberay_cluster import KubeRayCluster, KubeRayTimes
from fedpilot.fabric.ray_clusters.lifecycle.manager import LifecycleManager
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from kube_server import KubeServer, kube_server
from operated_site import NAME, OperatedSite
from ray_cluster_documents import Document, ray_cluster

SOON = OperatedSettings(first_pause_s=0.02, longest_pause_s=0.1, away_s=0.3)


def kuberay(**spec: Any) -> Document:
    """A head, and one to four small workers, in KubeRay."""
    document = ray_cluster("kuberay", **spec)
    document["metadata"]["name"] = NAME
    return document


class KubeRaySite(OperatedSite):
    """A site's store, and the API server that its clusters are at."""

    def __init__(self, folder: Path, server: KubeServer) -> None:
        super().__init__(folder)
        self.server = server
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
        return self.apply(document or kuberay(**spec))

    def scale(self, replicas: int, **keys: Any) -> StoredDeclaration:
        """Declare another number of workers."""
        found = self.store.find(NAME)
        assert found is not None
        document = kuberay()
        document["spec"] = {**found.document["spec"]}
        group = {**document["spec"]["workerGroupSpecs"][0], "replicas": replicas, **keys}
        document["spec"]["workerGroupSpecs"] = [group]
        return self.declare(document)


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
