"""What virtual clusters borrowed goes back to its claimants, even if work uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fedpilot.fabric import Resources
from fedpilot.fabric.core.records import ClusterId, WorkId
from fedpilot.fabric.core.routing.work import WorkState
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import (
    GRACE_S,
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
)


async def borrows(
    world: World,
    *works: float,
    least: float = 0,
    file: Mapping[str, Any] | None = TWO_TEAMS,
    **more: Any,
) -> None:
    """Vision's `loans` runs work of these sizes on what it borrowed beside its minimum."""
    await world.begins(*two())
    if file is not None:
        applies(world, file)
        more = {"project": "vision", **more}
    world.ray.process_up("p")
    await world.create(asks("loans", least=least, most=8, **more))
    for number, cpus in enumerate(works):
        submits(world, "loans", f"w{number}", cpus, owner="p")
    await world.passes(1)


def held(world: World, name: str) -> Resources:
    return world.cluster_state.ledger.flexible_total(ClusterId(name))


def works(world: World) -> list[str]:
    """The work that has a place."""
    return sorted(w.id for w in world.cluster_state.works if w.state is WorkState.PLACED)


def cpus(amount: float) -> Resources:
    return Resources.of({"CPU": amount})


def leaving(world: World) -> list[str]:
    return [str(each.node) for each in entry(world, "loans").nodes_leave]


class TestClaims:
    @story
    async def test_a_claimant_within_its_quota_gets_them_after_the_grace(
        self, world: World
    ) -> None:
        await borrows(world, 4, 4)
        await world.create(asks("claims", nodes(4), project="speech"))
        assert world.state("claims") == "waiting"
        (node,) = leaving(world)
        assert entry(world, "claims").promised
        assert world.reason("claims") == (f"it gets the places of {node} as soon as they have left")
        await world.passes(GRACE_S - 1)
        assert works(world) == ["w0", "w1"], "both go on until then"
        assert not world.wrong()
        await world.passes(2)
        assert world.states() == {"loans": "active", "claims": "active"}
        assert len(works(world)) == 1
        assert held(world, "loans") == cpus(4)
        assert said(world, "loans").count("node stopped") == 1
        assert not world.wrong()
        await world.passes(GRACE_S + 5)
        assert len(works(world)) == 1, "the rest is within its quota"
        assert not leaving(world)

    @story
    async def test_nobody_borrows_what_is_free_and_promised_to_a_claimant(
        self, world: World
    ) -> None:
        await borrows(world)
        await world.create(asks("train", nodes(3, 3), project="vision"))
        await world.passes(1)
        await world.create(asks("claims", nodes(4), project="speech"))
        assert entry(world, "train").leaves is not None
        (promised,) = entry(world, "claims").promised
        submits(world, "loans", "late", 1, owner="p")
        submits(world, "loans", "later", 1, owner="p")
        ledger = world.cluster_state.ledger
        where = [ledger.machine_of(w.vnode) for w in world.cluster_state.works if w.vnode]
        assert where == [{"a": "b", "b": "a"}[promised.machine]], "one CPU of each machine is free"
        await world.passes(GRACE_S + 2)
        assert world.states() == {"loans": "active", "train": "waiting", "claims": "active"}
        assert works(world) == ["late", "later"], "beside the claimant"
        assert not world.wrong()

    @story
    async def test_one_that_borrowed_all_it_has_goes_on_without(self, world: World) -> None:
        await borrows(world, 4, 4, file={**TWO_TEAMS, "projects": [quota("speech", 8)]}, project="")
        await world.create(asks("claims", nodes(4, 4), project="speech"))
        await world.passes(GRACE_S + 2)
        assert world.states() == {"loans": "active", "claims": "active"}
        assert not held(world, "loans")
        assert entry(world, "loans").stopped is None
        await world.delete("claims")
        submits(world, "loans", "again", 3, owner="p")
        assert works(world) == ["again"]
        await world.passes(2)
        assert not world.wrong()

    @story
    async def test_its_own_part_stays_and_what_was_submitted_last_ends(self, world: World) -> None:
        await borrows(world, 2, 1, 1, 4, least=2)
        sizes = {work.id: work.demand for work in world.cluster_state.works}
        shared = {w.id for w in world.cluster_state.works if w.vnode and sizes[w.id] != cpus(4)}
        assert shared == {"w0", "w1", "w2"}
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(GRACE_S + 2)
        assert world.states() == {"loans": "active", "claims": "active"}
        assert works(world) == ["w0", "w1", "w2"]
        await world.delete("claims")
        applies(world, {**TWO_TEAMS, "projects": [quota("vision", 2), quota("speech", 6)]})
        await world.create(
            asks("other", nodes(4), project="speech"), asks("more", nodes(2), project="speech")
        )
        await world.passes(GRACE_S + 2)
        assert set(world.states().values()) == {"active"}
        assert works(world) == ["w0"]
        assert held(world, "loans") == cpus(2)
        assert not world.wrong()

    @story
    async def test_a_minimum_of_its_own_project_takes_them_too(self, world: World) -> None:
        await borrows(world, 4, 4)
        await world.create(asks("claims", nodes(4), project="vision"))
        (notice,) = entry(world, "loans").nodes_leave
        assert notice.rule == "preempt-surplus"
        await world.passes(GRACE_S + 2)
        assert world.state("claims") == "active"
        assert not world.wrong()

    @story
    async def test_idle_loans_go_first_and_at_once(self, world: World) -> None:
        await borrows(world, 4, 4)
        world.reconciler.router.done([WorkId("w1")])
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(1)
        assert world.states() == {"loans": "active", "claims": "active"}
        assert works(world) == ["w0"]
        assert said(world, "loans").count("notice") == 0

    @story
    async def test_work_that_ends_in_the_grace_lets_the_claimant_in(self, world: World) -> None:
        await borrows(world, 4, 4)
        await world.create(asks("claims", nodes(4), project="speech"))
        (node,) = leaving(world)
        (work,) = [w.id for w in world.cluster_state.works if w.vnode == node]
        await world.passes(2)
        world.reconciler.router.done([work])
        await world.passes(1)
        assert world.state("claims") == "active"
        assert not leaving(world)
        assert said(world, "loans").count("node stopped") == 0
        assert not world.wrong()

    @story
    async def test_nothing_more_is_borrowed_or_placed_there_meanwhile(self, world: World) -> None:
        await borrows(world, 2, 4)
        world.ray.machine_up(fake_machine("c", CPU=1))
        await world.create(asks("claims", nodes(4), project="speech"))
        (node,) = leaving(world)
        waits = submits(world, "loans", "late", 2, owner="p")
        assert waits.vnode is None or str(waits.vnode) != node
        await world.passes(GRACE_S + 2)
        assert world.state("claims") == "active"
        assert not world.wrong()

    @story
    async def test_a_notice_is_withdrawn_if_its_claimant_ends(self, world: World) -> None:
        await borrows(world, 4, 4)
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.delete("claims")
        await world.passes(GRACE_S + 2)
        assert works(world) == ["w0", "w1"]
        assert not leaving(world)

    @story
    async def test_they_are_spared_if_places_become_free_elsewhere(self, world: World) -> None:
        await borrows(world, 4, 4)
        await world.create(asks("claims", nodes(4), project="speech"))
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert world.state("claims") == "active"
        assert works(world) == ["w0", "w1"]
        assert not leaving(world)
        assert not world.wrong()

    @story
    async def test_a_manager_that_dies_goes_on_with_the_same_grace(self, world: World) -> None:
        await borrows(world, 4, 4)
        await world.create(asks("claims", nodes(4), project="speech"))
        (before,) = entry(world, "loans").nodes_leave
        await world.passes(4)
        await world.again()
        assert entry(world, "loans").nodes_leave == (before,)
        await world.passes(GRACE_S - 4 + 1)
        assert world.state("claims") == "active"
        assert not world.wrong()


class TestSafe:
    @pytest.mark.parametrize("file", [TWO_TEAMS, None], ids=["not preemptible", "no file"])
    @story
    async def test_work_that_may_not_be_stopped_is_waited_for(
        self, world: World, file: Mapping[str, Any] | None
    ) -> None:
        await borrows(world, 4, 4, file=file, preemptible=None if file is None else False)
        await world.create(asks("claims", nodes(4), project="" if file is None else "speech"))
        await world.passes(GRACE_S + 5)
        assert world.state("claims") == "waiting"
        assert works(world) == ["w0", "w1"]
        world.reconciler.router.done([WorkId("w0")])
        await world.passes(2)
        assert world.state("claims") == "active"
        assert not world.wrong()

    @story
    async def test_a_claimant_above_its_share_stops_none(self, world: World) -> None:
        await borrows(world, 4)
        await world.create(asks("mine", nodes(4), project="speech"))
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(GRACE_S + 5)
        assert world.state("claims") == "waiting"
        assert works(world) == ["w0"]

    @story
    async def test_loans_count_for_the_queue(self, world: World) -> None:
        await borrows(world, 4, 2)
        snapshot = world.reconciler.admission.root.facts.refresh(world.clock()).snapshot()
        held = {
            queue.name: snapshot.scale.by_name(snapshot.allocated[i])["CPU"]
            for i, queue in enumerate(snapshot.queues)
        }
        assert (held["vision"], held["speech"]) == (6, 0)


class TestInside:
    @story
    async def test_what_those_inside_borrowed_goes_with_it(self, world: World) -> None:
        await borrows(world)
        await world.create(asks("in", most=8, inside="loans"))
        for number in range(2):
            submits(world, "in", f"w{number}", 4, owner="p")
        await world.passes(1)
        assert held(world, "in") == cpus(8)
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(GRACE_S + 2)
        assert world.states() == {"loans": "active", "in": "active", "claims": "active"}
        assert held(world, "in") == held(world, "loans") == cpus(4)
        assert len(works(world)) == 1
        assert not world.wrong()

    @story
    async def test_one_whose_minimum_lies_on_a_loan_ends(self, world: World) -> None:
        await borrows(world)
        await world.create(asks("first", nodes(4), inside="loans"))
        await world.create(asks("second", nodes(4), inside="loans"))
        await world.passes(1)
        await world.create(asks("claims", nodes(4), project="speech"))
        await world.passes(GRACE_S + 2)
        states = world.states()
        assert len({"first", "second"} & states.keys()) == 1
        assert states["claims"] == states["loans"] == "active"
        assert not world.wrong()

    @story
    async def test_a_part_of_a_vnode_ends_those_inside_only_if_it_must(self, world: World) -> None:
        await borrows(world, least=2)
        await world.create(asks("own", nodes(2), inside="loans"))
        await world.create(asks("lent", nodes(2), inside="loans"))
        submits(world, "loans", "w", 4, owner="p")
        await world.passes(1)
        applies(world, {**TWO_TEAMS, "projects": [quota("vision", 2), quota("speech", 6)]})
        await world.create(
            asks("claims", nodes(4), project="speech"), asks("too", nodes(2), project="speech")
        )
        await world.passes(GRACE_S + 2)
        assert world.states() == dict.fromkeys(("loans", "own", "claims", "too"), "active")
        assert works(world) == []
        assert not world.wrong()


def quota(name: str, cpus: int) -> dict[str, Any]:
    return {"name": name, "quota": {"default": {"CPU": cpus}}}
