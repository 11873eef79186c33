"""Virtual clusters on a real Ray of three machines: never over capacity, and nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import ray

from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, SchedulingPolicy, VirtualCluster
from fedpilot.fabric.core.cluster_state import JobId
from fedpilot.fabric.core.places.groups import CarriedBundle, GroupId, PlacementGroupRecord
from fedpilot.fabric.core.records import ClusterId
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.errors import NeverFits, NoSuchCluster
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.ray.control_plane.gcs import Gcs
from rays.drivers import client, crowd
from rays.machines import CPUS, PATIENCE_S, Machines, Steady, foreign, machines
from rays.tables import DEFAULT, nothing_left, table
from real_ray import eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def at() -> Iterator[Machines]:
    with machines() as found:
        yield found


@pytest.fixture(scope="module")
def somebody(at: Machines) -> Iterator[Steady]:
    """What must survive everything here."""
    with foreign(at) as found:
        yield found
        found.check()


@pytest.fixture
def clusters(at: Machines, somebody: Steady) -> Iterator[VirtualClusters]:
    found = VirtualClusters()
    yield found
    somebody.check()
    left: list[str] = []

    def clean() -> bool:
        left[:] = nothing_left(found, at, held=1)
        return not left

    with contextlib.suppress(AssertionError):
        eventually(clean, 60, "nothing is left")
    assert left == []


def fixed(*sizes: float, policy: SchedulingPolicy = SchedulingPolicy.PACK) -> VirtualCluster:
    wanted = tuple(FixedSizeNode(resources={"CPU": size}) for size in sizes)
    group = FixedSizeNodes(nodes=wanted, scheduling_policy=policy)
    return VirtualCluster(fixed_size_nodes=(group,))


def placed(document: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(machine, CPUs) of each node, by the manager; empty bundles are none."""
    return sorted((each["machine"], each["total"]["CPU"]) for each in document["nodes"])


def made(
    clusters: VirtualClusters, name: str, spec: VirtualCluster, **how: Any
) -> Mapping[str, Any]:
    """Reserve, and show what was got."""
    clusters.create(name, spec, **how)
    return clusters.show(name)


def really(document: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(machine, CPUs) of each bundle of its placement groups, by Ray."""
    of_it = [
        each
        for each in table().values()
        if f":{document['id']}:" in each["name"] and each["state"] == "CREATED"
    ]
    return sorted(
        (each["bundles_to_node_id"][index], bundle["CPU"])
        for each in of_it
        for index, bundle in each["bundles"].items()
    )


@pytest.mark.parametrize(
    ("spec", "machines_used"),
    [
        pytest.param(fixed(1), {1}, id="a node"),
        pytest.param(fixed(0.5, 2, 1, policy=SchedulingPolicy.STRICT_PACK), {1}, id="packed"),
        pytest.param(fixed(3, 1, 3, policy=SchedulingPolicy.STRICT_SPREAD), {3}, id="spread"),
        pytest.param(VirtualCluster(flex_resource_min={"CPU": 9}), {3}, id="flexible"),
        pytest.param(
            VirtualCluster(
                fixed_size_nodes=fixed(2, 2).fixed_size_nodes, flex_resource_min={"CPU": 2}
            ),
            {1, 2, 3},
            id="both kinds",
        ),
    ],
)
def test_ray_holds_what_the_manager_says_until_it_is_deleted(
    clusters: VirtualClusters, spec: VirtualCluster, machines_used: set[int]
) -> None:
    document = made(clusters, "one", spec)
    assert document["state"] == "active"
    assert really(document) == placed(document)
    assert len({machine for machine, _ in placed(document)}) in machines_used
    assert made(clusters, "one", spec)["nodes"] == document["nodes"]  # asked again
    assert clusters.delete("one") == ("one",)
    assert really(document) == []
    with pytest.raises(NoSuchCluster):
        clusters.show("one")


def test_a_child_holds_part_of_what_its_parent_has(clusters: VirtualClusters) -> None:
    parent = made(clusters, "parent", fixed(3, 3, policy=SchedulingPolicy.STRICT_SPREAD))
    child = made(clusters, "child", fixed(1, 2), parent="parent")
    assert child["state"] == "active"
    assert really(child) == placed(child)
    eventually(
        lambda: sum(size for each in (parent, child) for _, size in really(each)) == 6,
        5,
        "what the child did not take is reserved for the parent",
    )
    assert clusters.delete("parent") == ("child", "parent")


def test_who_waits_gets_what_is_deleted_and_who_never_fits_is_told(
    clusters: VirtualClusters,
) -> None:
    clusters.create("first", VirtualCluster(flex_resource_min={"CPU": 9}))
    second = made(clusters, "second", fixed(3), wait_s=0)
    assert (second["state"], second["position"], really(second)) == ("waiting", 1, [])
    with pytest.raises(NeverFits):
        clusters.create("third", fixed(CPUS + 1))
    clusters.delete("first")
    second = made(clusters, "second", fixed(3))
    assert second["state"] == "active"
    assert really(second) == placed(second)
    clusters.delete("second")


OWNS = """
clusters.create("owned", VirtualCluster(flex_resource_min={"CPU": 2}))
clusters.create("kept", VirtualCluster(flex_resource_min={"CPU": 2}), detached=True)
say(event="owns")
sys.stdin.readline()
"""


def test_it_ends_with_its_job_unless_it_is_detached(
    clusters: VirtualClusters, at: Machines
) -> None:
    with client(OWNS, at.address) as driver:
        driver.wait_for("owns")
        assert {"owned", "kept"} <= {each["id"] for each in clusters.snapshot()["clusters"]}
        driver.go_on()
        assert driver.process.wait(PATIENCE_S) == 0
    eventually(
        lambda: {each["id"] for each in clusters.snapshot()["clusters"]} == {DEFAULT, "kept"},
        5,
        "the cluster of the job that ended is gone, the detached one is there",
    )
    clusters.delete("kept")


def test_a_placement_group_that_is_removed_as_ray_places_it_leaves_nothing_behind(
    clusters: VirtualClusters, at: Machines
) -> None:
    """Ray alone loses most of these CPUs for ever (decision 43)."""
    job = JobId(ray.get_runtime_context().get_job_id())

    async def come_and_go(gcs: Gcs, number: int) -> None:
        dice = random.Random(number)
        for _ in range(40):
            id = GroupId(dice.randbytes(14).hex() + job)
            cpus = [dice.choice([0.5, 1]) for _ in range(dice.choice([1, 1, 2, 3]))]
            pieces = tuple(
                CarriedBundle(vnode=None, resources=Resources.of({"CPU": each})) for each in cpus
            )
            group = PlacementGroupRecord(
                id=id, cluster=ClusterId("any"), policy=SchedulingPolicy.SPREAD, pieces=pieces
            )
            await gcs.create(group, f"theirs:{id}", [], dice.choice([0.001, 0.003, 0.01]))
            await gcs.remove(id)

    async def crowd() -> None:
        gcs = Gcs(at.address, job)
        await asyncio.gather(*(come_and_go(gcs, number) for number in range(8)))

    asyncio.run(crowd())  # and then `clusters` looks that all is free


@pytest.mark.soak
def test_500_at_once_on_machines_too_small_for_all(clusters: VirtualClusters, at: Machines) -> None:
    seen = crowd(at, [0, 0.2, 2], clients=8, count=63, times=1)
    print(seen)
    assert seen.samples > 5
    assert seen.waiting > 20


@pytest.mark.soak
def test_a_thousand_leave_nothing_behind(clusters: VirtualClusters, at: Machines) -> None:
    seen = crowd(at, [30], clients=4, count=25, times=10, size=0.05)
    print(seen)
    assert seen.samples > 5
