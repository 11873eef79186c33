"""What an autoscaler knows, from Ray and from the feed of virtual clusters."""

from __future__ import annotations

import asyncio
import json

import pytest

from fedpilot.fabric.core.ray_clusters.autoscaling import NODE_GROUP
from fedpilot.fabric.core.ray_clusters.declaration import MachineName
from fedpilot.fabric.core.ray_clusters.demand import UnplacedGang
from fedpilot.fabric.core.records import (
    Bundle,
    BundleGroup,
    ClusterId,
    MachineId,
    SchedulingPolicy,
)
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.selectors import In
from fedpilot.fabric.ray.control_plane.demand_feed import KEY, REPEAT_S, DemandFeed
from fedpilot.fabric.ray.control_plane.ray_nodes import RayNode, RayView
from fedpilot.fabric.ray_clusters.autoscaler.facts import STALE_S, FirstSeen, demand_of

NOW = 1000.0
ONE = Resources.of({"CPU": 1})
BUNDLES = tuple(Bundle(resources=ONE, selector={"zone": In("a")}) for _ in range(3))
SPREAD = BundleGroup(bundles=BUNDLES, policy=SchedulingPolicy.STRICT_SPREAD)


def gang(name: str, **fields: object) -> UnplacedGang:
    given = {"groups": (SPREAD,), "since_s": 900.0, "machines_help": True, **fields}
    return UnplacedGang(id=ClusterId(name), **given)  # type: ignore[arg-type]


def fed(*gangs: UnplacedGang, at: float = NOW) -> bytes:
    """What a manager writes."""
    written: dict[bytes, bytes] = {}
    feed = DemandFeed(written.__setitem__, lambda: at)
    asyncio.run(feed.publish(gangs))
    return written[KEY]


def node(name: str, idle_s: float = 0.0, **fields: object) -> RayNode:
    given = {
        "id": MachineId(name),
        "name": name,
        "head": False,
        "draining": False,
        "total": Resources.of({"CPU": 4}),
        "available": ONE,
        "labels": {NODE_GROUP: "small"},
        "idle_s": idle_s,
        **fields,
    }
    return RayNode(**given)  # type: ignore[arg-type]


def row(state: str = "ready") -> dict[str, object]:
    return {"state": state, "group": "small", "since_s": 950.0}


def test_the_feed_is_written_when_it_changes_and_from_time_to_time() -> None:
    written: list[bytes] = []
    now = [NOW]
    feed = DemandFeed(lambda key, value: written.append(value), lambda: now[0])

    async def story() -> None:
        for gangs, at, count in (
            ([gang("a")], NOW, 1),
            ([gang("a")], NOW + 1, 1),
            ([], NOW + 2, 2),
            ([], NOW + 2 + REPEAT_S, 3),
        ):
            now[0] = at
            await feed.publish(gangs)
            assert len(written) == count

    asyncio.run(story())


def test_gangs_of_the_feed_are_whole_with_policies_and_selectors() -> None:
    flexible = gang("b", groups=(), flexible=Resources.of({"CPU": 2, "memory": 8}))
    helpless = gang("c", machines_help=False)
    found = demand_of(RayView(), fed(gang("a"), flexible, helpless), {}, [], FirstSeen(), NOW)
    whole, parts = found.gangs
    assert (whole.id, whole.groups, whole.since_s) == ("a", (SPREAD,), 900.0)
    assert whole.groups[0].bundles[0].selector == {"zone": In("a")}
    assert [each.resources for each in parts.groups[0].bundles] == [
        Resources.of({"CPU": 1, "memory": 4})
    ] * 2


@pytest.mark.parametrize(
    "feed",
    [
        pytest.param(fed(gang("a"), at=NOW - STALE_S - 1), id="an old one"),
        pytest.param(json.dumps({"format": 99}).encode(), id="one of another format"),
        pytest.param(b"[]", id="no document"),
        pytest.param(b"x", id="no JSON"),
    ],
)
def test_a_feed_that_does_not_hold_says_nothing_and_no_machine_leaves(feed: bytes) -> None:
    found = demand_of(RayView(), feed, {}, [], FirstSeen(), NOW)
    assert (found.gangs, found.whole) == ((), False)


def test_without_a_feed_no_virtual_cluster_waits() -> None:
    found = demand_of(RayView(), None, {}, [], FirstSeen(), NOW)
    assert (found.gangs, found.whole) == ((), True)


def test_a_pod_that_ray_knows_by_its_ip_has_its_own_name() -> None:
    view = RayView(nodes={"10.1.0.7": node("10.1.0.7", idle_s=30.0)})
    pod = MachineName("demo-small-worker-x2b")
    rows = {pod: {**row(), "node": "10.1.0.7"}}
    found = demand_of(view, None, rows, [], FirstSeen(), NOW)
    assert [each.name for each in found.machines] == [pod]


def test_machines_are_those_that_both_ray_and_the_records_have() -> None:
    view = RayView(
        nodes={
            "h": node("h", head=True),
            "a": node("a", idle_s=30.0),
            "b": node("b"),
            "leaves": node("leaves", draining=True),
            "unknown": node("unknown"),
            "starts": node("starts"),
        }
    )
    rows = {MachineName(name): row() for name in ("h", "a", "b", "leaves")}
    rows[MachineName("starts")] = row("starting")
    found = demand_of(view, None, rows, [], FirstSeen(), NOW)
    assert [(each.name, each.idle_since_s) for each in found.machines] == [
        ("a", 970.0),
        ("b", None),
    ]
    assert found.machines[0].free == ONE
    assert found.head is not None
    assert found.head.name == "h"
    assert found.offers == {"small": Resources.of({"CPU": 4})}


def test_what_ray_does_not_date_waits_since_it_was_first_seen() -> None:
    waiting = FirstSeen()
    one = BundleGroup(bundles=(Bundle(resources=ONE),), policy=SchedulingPolicy.PACK)
    assert [each.since_s for each in waiting.gangs([one], 1.0)] == [1.0]
    assert [each.since_s for each in waiting.gangs([one, one], 2.0)] == [1.0, 2.0]
    assert waiting.gangs([], 3.0) == []
    assert [each.since_s for each in waiting.gangs([one], 4.0)] == [4.0]
