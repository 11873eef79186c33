"""A site whose declared Ray clusters have machines that take no time of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from fedpilot.fabric.core.ray_clusters.declaration import DeclaredRayCluster
from fedpilot.fabric.errors import Fenced
from fedpilot.fabric.ray_clusters.declarations.documents import is_managed
from fedpilot.fabric.ray_clusters.declarations.records import StoredDeclaration
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.lifecycle.cluster_lifecycle import LifecycleTimes
from fedpilot.fabric.ray_clusters.lifecycle.manager import LifecycleManager, Operating
from fedpilot.fabric.ray_clusters.providers.fake import FakeHosts, FakeMachines, FakeNodes
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of

QUICK = LifecycleTimes(busy_s=0.001, quiet_s=0.01)


def read(stored: StoredDeclaration) -> DeclaredRayCluster:
    return ray_cluster_of(stored.document).declared


class FakeSite:
    """A site's store and hosts, whose time passes as fast as its managers look."""

    def __init__(
        self,
        folder: Path,
        reads: Callable[[StoredDeclaration], DeclaredRayCluster] = read,
        operating: Operating | None = None,
    ) -> None:
        """`operating` has the clusters whose machines are not ours."""
        self.store = RayClusterStore(folder / "declared.sqlite")
        self.now = 1000.0
        self.hosts = FakeHosts(clock=self.tick)
        self._reads, self._operating = reads, operating
        self._uids: list[str] = []

    def tick(self) -> float:
        self.now += 0.05
        return self.now

    def manager(self, store: RayClusterStore | None = None) -> LifecycleManager:
        """A manager of this site, which does not run yet."""

        def provider(stored: StoredDeclaration, _: DeclaredRayCluster) -> FakeMachines:
            self._uids.append(stored.uid)
            return FakeMachines(self.hosts, stored.uid)

        operating = {} if self._operating is None else {"operating": self._operating}
        return LifecycleManager(
            store=store or self.store,
            declared=self._reads,
            provider=provider,
            nodes_at=lambda address, token: FakeNodes(self.hosts, self._uids[-1]),
            clock=self.tick,
            times=QUICK,
            **operating,
        )

    def machines(self) -> list[str]:
        """The machines that are there."""
        return sorted(name for _, name in self.hosts.machines)

    @contextmanager
    def managed(self) -> Iterator[None]:
        """A manager runs in another thread, with a store of its own."""
        running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []
        begun = threading.Event()

        async def run(store: RayClusterStore) -> None:
            task = asyncio.ensure_future(self.manager(store).run())
            running.append((asyncio.get_running_loop(), task))
            while not is_managed(store) and not task.done():
                await asyncio.sleep(0.001)
            begun.set()
            with suppress(asyncio.CancelledError):
                await task

        def live() -> None:
            with RayClusterStore(self.store.path) as store:
                asyncio.run(run(store))

        thread = threading.Thread(target=live)
        thread.start()
        begun.wait(60)
        try:
            yield
        finally:
            loop, task = running[0]
            loop.call_soon_threadsafe(task.cancel)
            thread.join(60)


@asynccontextmanager
async def managed(manager: LifecycleManager) -> AsyncIterator[asyncio.Task[None]]:
    """A manager runs in this event loop."""
    task = asyncio.create_task(manager.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Fenced):
            await task
