"""A site's store with one declared Ray cluster, and waits for what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
from fedpilot.fabric.ray_clusters.declarations.documents import details
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED, StoredDeclaration
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.declarations.waiting import RayClusterWait, wait_of
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from ray_cluster_documents import Document

NAME = RayClusterName("demo")
PATIENCE_S = 60.0


class OperatedSite:
    """A site's store, and the cluster `demo` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = RayClusterStore(folder / "declared.sqlite")

    def apply(self, document: Document) -> StoredDeclaration:
        found = self.store.find(NAME)
        saw = found.revision if found else UNDECLARED
        filled = ray_cluster_of(document).document
        return self.store.apply(NAME, filled, saw=saw, by="ann", at=1.0)

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
