"""Gangs go on elsewhere at once, so that a claimant has room in one place; all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpilot.fabric.core.cluster_state import RELOCATES
from fedpilot.fabric.core.records import ClusterId, VNode
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import (
    GRACE_S,
    STRICT_SPREAD,
    TWO_TEAMS,
    World,
    applies,
    asks,
    entry,
    nodes,
    said,
    story,
    submits,
    two,
    up_to,
)

FILE: Mapping[str, Any] = {
    **TWO_TEAMS,
    "settings": {**TWO_TEAMS["settings"], "consolidation": True},
}


async def scattered(world: World, file: Mapping[str, Any] = FILE, **more: Any) -> None:
    """Vision's `one` and `other` have 2 CPUs each, on different machines, where 2 are free."""
    await world.begins(*two())
    applies(world, file)
    await world.create(
        asks("one", nodes(2), project="vision", **more),
        asks("block", nodes(2), project="speech"),
        asks("other", nodes(2), project="vision", **more),
    )
    await world.delete("block")
    await world.passes(1)
    assert {*world.hosts("one").values(), *world.hosts("other").values()} == {"a", "b"}


def held(world: World, name: str) -> tuple[VNode, ...]:
    return world.cluster_state.ledger.of(ClusterId(name))


def moving(world: World) -> list[str]:
    return [str(id) for id, each in world.cluster_state.entries.items() if each.relocates]


class TestMoves:
    @story
    async def test_a_gang_moves_after_the_grace_and_goes_on_at_once(self, world: World) -> None:
        await scattered(world)
        await world.create(asks("claims", nodes(4), project="speech"))
        (mover,) = moving(world)
        leaves, promised = entry(world, mover).leaves, entry(world, mover).promised
        assert leaves is not None
        assert (leaves.rule, leaves.claimant) == (RELOCATES, "claims")
        assert entry(world, "claims").promised
        before = world.hosts(mover)
        await world.passes(GRACE_S - 1)
        assert world.hosts(mover) == before
        assert world.states() == {"one": "active", "other": "active", "claims": "waiting"}
        await world.passes(2)
        assert world.states() == dict.fromkeys(("one", "other", "claims"), "active")
        assert world.hosts(mover) == {str(v.id): str(v.machine) for v in promised} != before
        assert said(world, mover)[-4:] == ["notice", "stopped", "admitted", "active"]
        assert not world.wrong()

    @story
    async def test_it_moves_early_once_its_work_has_ended(self, world: World) -> None:
        await scattered(world)
        await world.create(asks("claims", nodes(4), project="speech"))
        (mover,) = moving(world)
        promised = {str(v.id): str(v.machine) for v in entry(world, mover).promised}
        world.reconciler.admission.root.leave(ClusterId(mover))
        await world.passes(1)
        assert world.states() == dict.fromkeys(("one", "other", "claims"), "active")
        assert world.hosts(mover) == promised
        assert said(world, mover).count("promised") == 0, "its places were kept for it"
        assert not world.wrong()

    @story
    async def test_nothing_moves_unless_the_file_says_so(self, world: World) -> None:
        await scattered(world, file=TWO_TEAMS)
        await world.create(asks("claims", nodes(4), project="vision"))
        await world.passes(GRACE_S + 2)
        assert world.state("claims") == "waiting"
        assert moving(world) == []

    @story
    async def test_a_gang_restarts_as_a_whole_also_where_one_member_moves(
        self, world: World
    ) -> None:
        await world.begins(*two())
        applies(world, FILE)
        await world.create(
            asks("gang", nodes(2, 2, policy=STRICT_SPREAD), project="vision"),
            asks("block", nodes(2), project="speech"),
        )
        world.ray.machine_up(fake_machine("c", CPU=3))
        await world.passes(1)
        await world.delete("block")
        before = {node: world.hosts("gang")[node] for node in ("gang/0", "gang/1")}
        await world.create(asks("claims", nodes(4), project="speech"))
        assert moving(world) == ["gang"]
        groups = {*world.groups("gang")}
        await world.passes(GRACE_S + 2)
        assert world.states() == dict.fromkeys(("gang", "claims"), "active")
        assert sum(host != before[node] for node, host in world.hosts("gang").items()) == 1
        assert not groups & {*world.groups("gang")}
        assert not world.wrong()

    @story
    async def test_flexible_parts_move_and_what_was_borrowed_is_left_behind(
        self, world: World
    ) -> None:
        await world.begins(fake_machine("a", CPU=6), fake_machine("b", CPU=6))
        applies(world, {**FILE, "projects": [quota("vision", 6), quota("speech", 6)]})
        world.ray.process_up("p")
        for name, cpus in (("one", 2), ("block", 4), ("other", 2)):
            await world.create(asks(name, least=cpus, most=cpus + 1, project="vision"))
        await world.delete("block")
        submits(world, "one", "w", 3, owner="p")
        submits(world, "other", "v", 3, owner="p")
        await world.passes(1)
        await world.create(asks("claims", nodes(5), project="speech"))
        assert len(moving(world)) == 1
        await world.passes(GRACE_S + 3)
        assert world.states() == dict.fromkeys(("one", "other", "claims"), "active")
        sizes = [v.resources for name in ("one", "other") for v in held(world, name)]
        assert sorted(size["CPU"] for size in sizes) == [2 * UNIT, 3 * UNIT]
        assert len(world.cluster_state.works) == 1, "work on what has moved has ended"
        assert not world.wrong()

    @story
    async def test_an_elastic_gang_moves_with_all_its_nodes(self, world: World) -> None:
        await world.begins(*two())
        applies(world, {**FILE, "projects": [quota("vision", 8), quota("speech", 8)]})
        apart = nodes(1, policy=STRICT_SPREAD)
        await world.create(asks("grows", up_to(2, apart), project="vision"))
        await world.create(asks("small", nodes(1), project="vision"))
        await world.passes(2)
        world.ray.machine_up(fake_machine("c", CPU=3))
        await world.passes(1)
        await world.create(asks("claims", nodes(4), project="speech"))
        assert moving(world)
        await world.passes(GRACE_S + 3)
        assert set(world.states().values()) == {"active"}
        assert len(set(world.hosts("grows").values())) == 2
        assert not world.wrong()


class TestSafe:
    @story
    async def test_only_preemptible_work_moves(self, world: World) -> None:
        await scattered(world, preemptible=False)
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(GRACE_S + 2)
        assert world.state("claims") == "waiting"
        assert said(world, "one").count("notice") == said(world, "other").count("notice") == 0

    @story
    async def test_none_moves_if_one_of_the_new_places_is_lost(self, world: World) -> None:
        await scattered(world)
        await world.create(asks("claims", nodes(4), project="speech"))
        (mover,) = moving(world)
        (target,) = {v.machine for v in entry(world, mover).promised}
        before = world.hosts(mover)
        world.ray.use("outside", target, {"CPU": 1})
        await world.passes(2)
        assert moving(world) == []
        assert world.state("claims") == "waiting"
        assert entry(world, mover).promised == entry(world, "claims").promised == ()
        await world.passes(GRACE_S + 2)
        assert world.hosts(mover) == before
        assert not world.wrong()

    @story
    async def test_it_stays_if_the_claimant_ends(self, world: World) -> None:
        await scattered(world)
        await world.create(asks("claims", nodes(4), project="speech"))
        (mover,) = moving(world)
        before = world.groups(mover)
        await world.delete("claims")
        assert moving(world) == []
        assert entry(world, mover).leaves is None
        assert entry(world, mover).promised == ()
        await world.passes(GRACE_S + 2)
        assert world.groups(mover) == before
        assert not world.wrong()

    @story
    async def test_it_stays_if_a_machine_joins_with_room_for_the_claimant(
        self, world: World
    ) -> None:
        await scattered(world)
        await world.create(asks("claims", nodes(4), project="speech"))
        (mover,) = moving(world)
        before = world.groups(mover)
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert set(world.states().values()) == {"active"}
        assert world.groups(mover) == before
        assert moving(world) == []
        assert not world.wrong()

    @story
    async def test_it_waits_for_those_who_hold_its_new_places_and_leave_later(
        self, world: World
    ) -> None:
        sizes = {"a": 4, "b": 4, "c": 5}
        await world.begins(*(fake_machine(name, CPU=cpus) for name, cpus in sizes.items()))
        applies(world, {**FILE, "projects": [quota("vision", 5), quota("speech", 8)]})
        for name, cpus in (("one", 2), ("block", 2), ("other", 3), ("large", 5)):
            await world.create(asks(name, nodes(cpus), project="vision"))
        await world.delete("block")
        await world.passes(1)
        await world.create(asks("first", nodes(3), project="speech", priority_class="build"))
        assert entry(world, "large").leaves is not None
        await world.passes(3)
        await world.create(asks("second", nodes(4), project="speech"))
        assert moving(world) == ["one"]
        assert [v.machine for v in entry(world, "one").promised] == ["c"]
        world.reconciler.admission.root.leave(ClusterId("one"))
        await world.passes(GRACE_S - 4)
        assert moving(world) == ["one"], "its new place is not free yet"
        assert world.hosts("one") == {"one/0": "a"}
        await world.passes(2)
        assert world.hosts("one") == {"one/0": "c"}
        assert world.states()["second"] == world.states()["first"] == "active"
        assert not world.wrong()

    @story
    async def test_one_with_others_inside_does_not_move(self, world: World) -> None:
        await scattered(world)
        for name in ("one", "other"):
            await world.create(asks(f"in-{name}", nodes(1), inside=name))
        await world.passes(1)
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(GRACE_S + 2)
        assert moving(world) == []
        assert {"in-one", "in-other"} <= world.states().keys()
        await world.delete("in-one")
        await world.passes(1)
        assert moving(world) == ["one"]

    @story
    async def test_idle_loans_are_returned_before_it_moves(self, world: World) -> None:
        await scattered(world)
        await world.create(asks("loans", most=8, project="vision"))
        works = [submits(world, "loans", f"w{n}", 2) for n in range(2)]
        world.reconciler.router.done([work.id for work in works])
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(GRACE_S + 2)
        assert set(world.states().values()) == {"active"}
        assert not world.wrong()

    @story
    async def test_it_becomes_a_plain_victim_if_others_claim_its_new_places(
        self, world: World
    ) -> None:
        await scattered(world)
        applies(world, {**FILE, "projects": [quota("vision", 0), quota("speech", 8)]})
        await world.create(asks("claims", nodes(4), project="speech"))
        assert len(moving(world)) == 1
        await world.passes(1)
        await world.create(asks("too", nodes(2), project="speech"))
        await world.passes(1)
        assert moving(world) == [] or entry(world, "too").promised
        await world.passes(2 * GRACE_S + 5)
        assert world.state("claims") == world.state("too") == "active"
        assert sorted(world.states().values()).count("waiting") == 1
        assert not world.wrong()

    @story
    async def test_a_manager_that_dies_goes_on_with_the_move(self, world: World) -> None:
        await scattered(world)
        await world.create(asks("claims", nodes(4), project="speech"))
        (mover,) = moving(world)
        before = entry(world, mover)
        await world.passes(4)
        await world.again()
        assert entry(world, mover) == before
        await world.passes(GRACE_S - 4 + 1)
        assert set(world.states().values()) == {"active"}
        assert not world.wrong()

    @story
    async def test_a_dry_run_says_who_would_move(self, world: World) -> None:
        await scattered(world, file=TWO_TEAMS)
        await world.create(asks("claims", nodes(4), project="vision"))
        found = world.reconciler.admission.apply_queues(FILE, None, "ann", dry_run=True)
        (move,) = found["would"]["moves"]
        assert (move["id"] in ("one", "other"), move["claimant"]) == (True, "claims")
        assert found["would"]["starts"].keys() == {"claims"}
        assert found["would"]["stops"] == []


def quota(name: str, cpus: int) -> dict[str, Any]:
    return {"name": name, "quota": {"default": {"CPU": cpus}}}
