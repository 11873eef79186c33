"""The autoscaler of a site: it edits declarations, and a manager acts on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import yaml

from fake_site import FakeSite, managed
from fedpilot.fabric.core.ray_clusters.autoscaling import AutoscalerSettings, autoscale
from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
from fedpilot.fabric.core.records import Bundle, BundleGroup, SchedulingPolicy
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.ray_clusters.autoscaler.autoscaler import RayClusterAutoscaler
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED
from fedpilot.fabric.ray_clusters.providers.fake import FakeNodes
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of

NAME = RayClusterName("demo")
DEMO = """
metadata: {name: demo}
spec:
  headGroupSpec: {rayStartParams: {num-cpus: '1'}}
  workerGroupSpecs:
    - groupName: small
      replicas: 1
      minReplicas: 0
      maxReplicas: 3
      rayStartParams: {num-cpus: '2'}
      fedpilot: {idleSeconds: 5, drainSeconds: 1}
"""


class ScaledSite(FakeSite):
    """A site with a declared cluster, a manager and an autoscaler."""

    def declare(self, text: str = DEMO) -> None:
        document = ray_cluster_of(yaml.safe_load(text)).document
        self.store.apply(NAME, document, saw=UNDECLARED, by="ann", at=self.now)

    @property
    def uid(self) -> str:
        found = self.store.find(NAME)
        assert found is not None
        return found.uid

    def replicas(self) -> int:
        found = self.store.find(NAME)
        assert found is not None
        return int(found.document["spec"]["workerGroupSpecs"][0]["replicas"])

    def autoscaler(self, **fields: object) -> RayClusterAutoscaler:
        settings = AutoscalerSettings(cooldown_s=1.0)
        given = {"settings": settings, "look_s": 0.005, "clock": self.tick, **fields}
        return RayClusterAutoscaler(
            store=self.store,
            nodes_at=lambda address, token: FakeNodes(self.hosts, self.uid),
            **given,  # type: ignore[arg-type]
        )

    def events(self) -> list[str]:
        return [each.reason for each in self.store.events(self.uid)]


@asynccontextmanager
async def scaling(autoscaler: RayClusterAutoscaler) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(autoscaler.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.fixture
def site(tmp_path: Path) -> ScaledSite:
    return ScaledSite(tmp_path)


def tasks(count: int, cpus: float = 1) -> list[BundleGroup]:
    bundle = Bundle(resources=Resources.of({"CPU": cpus}))
    return [BundleGroup(bundles=(bundle,), policy=SchedulingPolicy.PACK)] * count


def test_work_that_waits_gets_machines_and_idle_ones_go(site: ScaledSite) -> None:
    async def story() -> None:
        async with managed(site.manager()), scaling(site.autoscaler()):
            site.declare()
            await until(lambda: len(site.machines()) == 2)
            site.hosts.pending = tasks(6)
            await until(lambda: len(site.machines()) == 4)
            assert site.replicas() == 3
            assert any("small: 2 more for" in each for each in site.events())
            site.hosts.pending = []
            await until(lambda: site.machines() == ["demo-headgroup-0"])
            assert site.replicas() == 0

    asyncio.run(story())


def test_what_no_group_can_hold_is_told_once(site: ScaledSite) -> None:
    async def story() -> None:
        async with managed(site.manager()), scaling(site.autoscaler()):
            site.declare()
            await until(lambda: len(site.machines()) == 2)
            site.hosts.pending = tasks(1, cpus=64)
            await until(lambda: any("machines cannot help" in each for each in site.events()))
            await asyncio.sleep(0.2)
            told = [each for each in site.events() if "machines cannot help" in each]
            assert told == [
                "ray-0 has no places, and machines cannot help: no group has a machine with 64 CPU"
            ]

    asyncio.run(story())


def test_without_an_autoscaler_nothing_changes_and_another_one_goes_on(site: ScaledSite) -> None:
    async def story() -> None:
        async with managed(site.manager()):
            site.declare()
            await until(lambda: len(site.machines()) == 2)
            site.hosts.pending = tasks(6)
            async with scaling(site.autoscaler()):
                await until(lambda: site.replicas() == 3)
            site.hosts.pending = []
            await asyncio.sleep(0.3)
            assert site.replicas() == 3
            async with scaling(site.autoscaler()):
                await until(lambda: site.replicas() == 0)

    asyncio.run(story())


def test_a_decision_of_the_users_own_takes_its_place(site: ScaledSite) -> None:
    asked: list[int] = []

    def never_less(groups, demand, now, settings):  # type: ignore[no-untyped-def]
        asked.append(len(demand.machines))
        found = autoscale(groups, demand, now, settings)
        edits = {name: edit for name, edit in found.edits.items() if not edit.leaving}
        return type(found)(edits=edits, unmet=found.unmet)

    async def story() -> None:
        async with managed(site.manager()), scaling(site.autoscaler(decide=never_less)):
            site.declare()
            await until(lambda: 1 in asked)
            before = len(asked)
            await until(lambda: len(asked) > before + 50)
            assert site.replicas() == 1

    asyncio.run(story())


def test_a_cluster_with_fixed_numbers_is_left_alone(site: ScaledSite) -> None:
    async def story() -> None:
        async with managed(site.manager()), scaling(site.autoscaler()):
            site.declare(
                DEMO.replace("minReplicas: 0", "minReplicas: 1").replace(
                    "maxReplicas: 3", "maxReplicas: 1"
                )
            )
            site.hosts.pending = tasks(6)
            await until(lambda: len(site.machines()) == 2)
            await asyncio.sleep(0.2)
            assert site.replicas() == 1

    asyncio.run(story())


def test_a_decision_that_fails_does_not_end_the_autoscaler(site: ScaledSite) -> None:
    failures = [ValueError("it is odd"), KeyError("small")]

    def at_first_odd(groups, demand, now, settings):  # type: ignore[no-untyped-def]
        if failures:
            raise failures.pop()
        return autoscale(groups, demand, now, settings)

    async def story() -> None:
        autoscaler = site.autoscaler(decide=at_first_odd)
        async with managed(site.manager()), scaling(autoscaler) as task:
            site.declare()
            site.hosts.pending = tasks(6)
            await until(lambda: task.done() or site.replicas() == 3)
            assert not task.done()

    asyncio.run(story())
