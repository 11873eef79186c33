"""What has no places is told as gangs, and flat to Ray's autoscaler alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpilot.fabric import Resources
from fedpilot.fabric.core.records import WorkId
from fedpilot.fabric.manager.settings import KeeperSettings
from fedpilot.fabric.manager.snapshot import Snapshot
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import (
    STRICT_SPREAD,
    TWO_TEAMS,
    World,
    applies,
    asks,
    nodes,
    story,
    submits,
    two,
    up_to,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "ledger", KeeperSettings(machines_come=True))


def gangs(world: World) -> dict[str, Any]:
    """The feed, by id, as the document of the manager has it."""
    document = json.loads(json.dumps(Snapshot(world.reconciler).document()))
    return {each["id"]: each for each in document["unplaced"]}


def demand(world: World) -> list[Resources]:
    return list(world.reconciler.admission.unplaced.demand())


def cpus(*amounts: float) -> list[Resources]:
    return [Resources.of({"CPU": amount}) for amount in amounts]


class TestAtTheRoot:
    @story
    async def test_a_gang_is_told_whole_without_any_file_of_queues(self, world: World) -> None:
        await world.begins(*two())
        group = nodes(3, 3, 1, policy=STRICT_SPREAD, disk="ssd")
        asked = world.clock()
        await world.create(asks("all", nodes(4, 4)), asks("next", group, least=2))
        await world.passes(5)
        select = {"selector": {"disk": "ssd"}}
        assert gangs(world) == {
            "next": {
                "id": "next",
                "kind": "virtual-cluster",
                "inside": "physical",
                "groups": [
                    {
                        "policy": "STRICT_SPREAD",
                        "bundles": [
                            {"count": 2, "resources": {"CPU": 3}, **select},
                            {"count": 1, "resources": {"CPU": 1}, **select},
                        ],
                    }
                ],
                "flexible": {"CPU": 2},
                "user": "",
                "project": "default",
                "pool": "default",
                "since": asked,
                "rule": "never",
                "reason": world.reason("next"),
                "machines_help": True,
            }
        }
        assert demand(world) == cpus(3, 3, 1, 2)
        held = cpus(4, 4)
        assert list(world.reconciler.admission.unplaced.with_all_held()) == held + demand(world)

    @story
    async def test_nothing_is_asked_for_once_all_have_places(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("one", nodes(1)), asks("grows", up_to(99, nodes(1))))
        await world.passes(3)
        assert gangs(world) == {}
        assert world.reconciler.admission.unplaced.with_all_held() == ()

    @story
    async def test_no_machine_helps_who_waits_for_a_limit_or_a_quota(self, world: World) -> None:
        await world.begins(*two())
        vision = {**TWO_TEAMS["projects"][0], "limit": {"default": {"CPU": 2}}}
        applies(world, {"projects": [vision, TWO_TEAMS["projects"][1]]})
        await world.create(
            asks("runs", nodes(2), project="vision"),
            asks("capped", nodes(2), project="vision"),
            asks("fixed", nodes(2, 4), project="speech", preemptible=False),
            asks("large", nodes(9), project="speech"),
        )
        await world.passes(1)
        told = {id: (each["rule"], each["machines_help"]) for id, each in gangs(world).items()}
        assert told == {
            "capped": ("limit", False),
            "fixed": ("nonpreemptible-quota", False),
            "large": ("never", True),
        }
        assert gangs(world)["large"]["project"] == "speech"
        assert demand(world) == cpus(9)

    @story
    async def test_no_machine_is_asked_for_whom_others_make_room(self, world: World) -> None:
        await world.begins(*two())
        applies(world, TWO_TEAMS)
        await world.create(
            asks("old", nodes(4), project="vision"), asks("young", nodes(4), project="vision")
        )
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(1)
        (told,) = gangs(world).values()
        assert (told["id"], told["rule"], told["machines_help"]) == ("claims", None, False)
        assert told["reason"] == world.reason("claims")
        assert demand(world) == []
        await world.passes(15)
        assert gangs(world)["young"]["machines_help"], "it has left, and would run elsewhere"

    @story
    async def test_what_ray_has_no_room_for_asks_for_machines(self, world: World) -> None:
        await world.begins(*two())
        world.ray.use("unseen", "a", {"CPU": 4})
        world.ray.use("unseen too", "b", {"CPU": 4})
        await world.create(asks("job", nodes(4)))
        while world.state("job") == "starting":
            await world.passes()
        assert gangs(world)["job"]["machines_help"]

    @story
    async def test_lost_nodes_are_a_gang_of_what_is_missing(self, world: World) -> None:
        await world.begins(fake_machine("a", CPU=4), fake_machine("b", CPU=4))
        applies(world, TWO_TEAMS)
        group = nodes(4, 4, policy=STRICT_SPREAD)
        await world.create(asks("job", group, project="speech"))
        await world.passes(2)
        world.ray.machine_down("b")
        await world.passes(1)
        lost = world.clock()
        await world.passes(1)
        told = gangs(world)["job"]
        assert told["kind"] == "lost-nodes"
        assert told["groups"] == [
            {
                "policy": "STRICT_SPREAD",
                "bundles": [{"count": 1, "resources": {"CPU": 4}, "selector": {}}],
            }
        ]
        assert told["since"] <= lost
        assert told["machines_help"]
        assert demand(world) == cpus(4)

    @story
    async def test_what_ray_itself_asks_for_is_not_asked_for_twice(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(4, 4)))
        await world.passes(2)
        world.ray.machine_down("b")
        await world.passes(1)
        assert gangs(world)["job"]["kind"] == "lost-nodes"
        assert demand(world) == [], "its placement group waits in Ray"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(5)
        assert gangs(world) == {}


class TestInside:
    @story
    async def test_it_asks_for_machines_if_its_parent_may_grow(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("fixed", nodes(2)), asks("grows", least=1, most=8))
        await world.passes(1)
        await world.create(
            asks("in-fixed", nodes(2), inside="fixed"),
            asks("too", nodes(2), inside="fixed"),
            asks("in-grows", nodes(3), inside="grows"),
            asks("next", nodes(3, 1), inside="grows"),
        )
        await world.passes(1)
        told = gangs(world)
        assert {id: (each["inside"], each["machines_help"]) for id, each in told.items()} == {
            "too": ("fixed", False),
            "next": ("grows", True),
        }
        assert (told["too"]["project"], told["too"]["rule"]) == (None, None)
        assert told["too"]["reason"] == world.reason("too")
        assert demand(world) == cpus(3, 1)

    @story
    async def test_work_that_can_borrow_nothing_is_a_gang_of_one(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("some", least=4, most=4), asks("grows", least=1))
        await world.passes(1)
        for number in range(5):
            submits(world, "some", f"s{number}", 1)
        submits(world, "grows", "g0", 4)
        since = world.clock()
        submits(world, "grows", "g1", 4)
        await world.passes(1)
        told = gangs(world)
        assert {id: (e["kind"], e["inside"], e["machines_help"]) for id, e in told.items()} == {
            "s4": ("work", "some", False),
            "g1": ("work", "grows", True),
        }
        assert told["g1"]["groups"] == [
            {"policy": "PACK", "bundles": [{"count": 1, "resources": {"CPU": 4}, "selector": {}}]}
        ]
        assert told["g1"]["since"] == since
        assert demand(world) == cpus(4)
        world.reconciler.router.done([WorkId("g0")])
        await world.passes(1)
        assert "g1" not in gangs(world)

    @story
    async def test_those_that_wait_behind_another_are_told(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(2)))
        await world.passes(1)
        for name in ("runs", "first", "second"):
            await world.create(asks(name, nodes(2), inside="up"))
        assert gangs(world)["first"]["reason"] == world.reason("first")
        assert gangs(world)["second"]["reason"] == "first is before it"
