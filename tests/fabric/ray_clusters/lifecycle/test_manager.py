"""The lifecycle manager of a site, on machines that take no time of ours."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fake_site import FakeSite, managed
from fedpilot.fabric.core.ray_clusters.declaration import (
    HOST_TIMEOUT_S,
    DeclaredRayCluster,
    RayClusterName,
)
from fedpilot.fabric.errors import Fenced, SpecError
from fedpilot.fabric.ray_clusters.declarations.documents import LIFECYCLE_MANAGER
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED, StoredDeclaration
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.providers.fake import FakeMachines
from fedpilot.fabric.ray_clusters.providers.protocol import ProviderView
from machine_world import declared, group

NAME = RayClusterName("c")


class Site(FakeSite):
    """A site with at most one Ray cluster, whose document says a number of workers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, self.read)

    @staticmethod
    def read(stored: StoredDeclaration) -> DeclaredRayCluster:
        if "n" not in stored.document:
            raise SpecError("it says no number")
        workers = group(
            "small",
            stored.document["n"],
            drain_s=2.0,
            hosts=tuple(stored.document.get("hosts", ())),
        )
        timeout_s = stored.document.get("timeout", HOST_TIMEOUT_S)
        return declared(workers, name=stored.name, host_timeout_s=timeout_s)

    @property
    def uid(self) -> str:
        found = self.store.find(NAME)
        return found.uid if found else ""

    def declare(self, replicas: int, **more: object) -> None:
        found = self.store.find(NAME)
        saw = found.revision if found else UNDECLARED
        self.store.apply(NAME, {"n": replicas, **more}, saw=saw, by="ann", at=self.now)

    def status(self) -> dict[str, object]:
        found = self.store.find(NAME)
        return (found and self.store.status(found.uid)) or {}

    def events(self) -> list[str]:
        found = self.store.find(NAME)
        return [each.kind for each in self.store.events(found.uid)] if found else []


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.005)


def ready(site: Site, workers: int) -> Callable[[], bool]:
    def holds() -> bool:
        found = site.store.find(NAME)
        status = site.status()
        return (
            found is not None
            and status.get("revision") == found.revision
            and status.get("state") == "ready"
            and len(site.machines()) == 1 + workers
        )

    return holds


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def run(story: Awaitable[None]) -> None:
    async def told() -> None:
        await story

    asyncio.run(told())


def test_a_declaration_is_kept_from_its_first_machine_to_its_last(site: Site) -> None:
    async def story() -> None:
        async with managed(site.manager()):
            site.declare(2)
            await until(ready(site, 2))
            assert site.machines() == ["c-headgroup-0", "c-small-1", "c-small-2"]
            site.declare(3)
            await until(ready(site, 3))
            site.declare(1)
            await until(ready(site, 1))
            found = site.store.find(NAME)
            assert found is not None
            site.store.delete(NAME, saw=found.revision, by="ann", at=site.now)
            await until(lambda: site.store.find(NAME) is None)
            assert site.machines() == []

    run(story())


def test_a_machine_that_dies_is_replaced_and_ray_is_told(site: Site) -> None:
    async def story() -> None:
        async with managed(site.manager()):
            site.declare(1)
            await until(ready(site, 1))
            site.hosts.kill(site.uid, site.hosts.starts[-1])
            await until(lambda: "c-small-2" in site.machines())
            await until(lambda: site.events().count("cluster_ready") == 2)
            kinds = site.events()
            assert kinds.count("machine_gone") == 1
            assert kinds[-1] == "cluster_ready"

    run(story())


@pytest.mark.parametrize("timeout_s", [2.0, 200.0])
def test_machines_of_a_silent_host_are_lost_after_its_timeout(site: Site, timeout_s: float) -> None:
    async def story() -> None:
        async with managed(site.manager()):
            site.declare(1, hosts=["a", "b"], timeout=timeout_s)
            await until(ready(site, 1))
            lost = site.hosts.starts[-1]
            since_s = site.now
            site.hosts.silent.add("a")
            await until(lambda: site.hosts.starts[-1] == "c-small-2")
            (at,) = (e.at for e in site.store.events(site.uid) if e.kind == "machine_stopping")
            assert timeout_s <= at - since_s < timeout_s + 5
            await until(lambda: (site.uid, lost) in site.hosts.buried)

    run(story())


def test_a_successor_takes_over_what_runs_and_starts_nothing_twice(site: Site) -> None:
    async def story() -> None:
        async with managed(site.manager()):
            site.declare(3)
            await until(lambda: len(site.machines()) > 2)  # amid the start
        async with managed(site.manager()):
            await until(ready(site, 3))
        before = list(site.hosts.starts)
        async with managed(site.manager()):
            site.declare(2)
            await until(ready(site, 2))
        assert site.hosts.starts == before

    run(story())


def test_a_second_manager_stands_aside_until_the_first_has_ended(site: Site) -> None:
    async def story() -> None:
        other = RayClusterStore(site.store.path)
        async with managed(site.manager()), managed(site.manager(other)) as second:
            site.declare(1)
            await until(ready(site, 1))
            holder = site.store.last_lease(LIFECYCLE_MANAGER)
            await asyncio.sleep(0.05)
            assert not second.done()
            assert site.store.last_lease(LIFECYCLE_MANAGER) == holder
        other.close()

    run(story())


def test_a_declaration_that_cannot_be_read_does_not_disturb_the_others(site: Site) -> None:
    async def story() -> None:
        async with managed(site.manager()) as task:
            odd = site.store.apply(RayClusterName("odd"), {}, saw=UNDECLARED, by="ann", at=1.0)
            site.declare(1)
            await until(ready(site, 1))
            assert not task.done()
            status = site.store.status(odd.uid) or {}
            assert (status["state"], status["reason"]) == ("refused", "it says no number")

    run(story())


def test_a_provider_that_fails_is_asked_again_and_the_reason_is_told(site: Site) -> None:
    async def story() -> None:
        site.hosts.refuses = "no room on the disk"
        async with managed(site.manager()):
            site.declare(1)
            await until(lambda: "machine_stopping" in site.events())
            found = site.store.find(NAME)
            assert found is not None
            told = [each.reason for each in site.store.events(found.uid)]
            assert any("no room on the disk" in each for each in told)
            site.hosts.refuses = ""
            await until(ready(site, 1))

    run(story())


def test_a_manager_that_was_followed_ends(site: Site) -> None:
    async def story() -> None:
        async with managed(site.manager()) as task:
            site.declare(1)
            await until(ready(site, 1))
            with sqlite3.connect(site.store.path) as file:
                file.execute("UPDATE leases SET fence = fence + 1")
            site.declare(2)
            with pytest.raises(Fenced):
                await asyncio.wait_for(task, 120)

    run(story())


def test_an_error_of_one_cluster_does_not_touch_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.fabric.ray_clusters.lifecycle.manager.AGAIN_S", 0.01)
    broken = [True]
    other = RayClusterName("other")

    class Breaking(FakeMachines):
        async def look(self) -> ProviderView:
            if broken[0]:
                raise ValueError("it says something odd")
            return await super().look()

    async def story() -> None:
        manager = site.manager()
        usual = manager.provider
        manager.provider = lambda stored, declared: (
            Breaking(site.hosts, stored.uid) if stored.name == other else usual(stored, declared)
        )
        async with managed(manager) as task:
            site.store.apply(other, {"n": 0}, saw=UNDECLARED, by="ann", at=1.0)
            site.declare(1)
            await until(lambda: "c-small-1" in site.machines())
            assert not task.done()
            broken[0] = False
            await until(lambda: "other-headgroup-0" in site.machines())

    run(story())
