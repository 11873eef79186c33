"""Groups with nodes above their minimum: when they grow, and for whom these nodes leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedpilot.fabric.core.cluster_state import Entry
from fedpilot.fabric.core.records import ClusterId, SchedulingPolicy, VNodeId
from fedpilot.fabric.core.routing.work import Work
from fedpilot.fabric.manager.snapshot import Snapshot
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
    up_to,
)

VISION, SPEECH = TWO_TEAMS["projects"]
TEAMS: Mapping[str, Any] = {**TWO_TEAMS, "projects": [{**VISION, "reclaimable": False}, SPEECH]}


def elastic(name: str, most: int, *amounts: float, **more: Any) -> Entry:
    return asks(name, up_to(most, nodes(*amounts)), **more)


def leaving(world: World, name: str) -> list[str]:
    return [str(each.node) for each in entry(world, name).nodes_leave]


def held(world: World, name: str) -> list[str]:
    return sorted(world.hosts(name))


def busy(world: World) -> list[Work]:
    """Work on all 8 nodes of `grows`, of a process that lives on."""
    world.ray.process_up("p")
    return [submits(world, "grows", f"w{n}", 1, owner="p") for n in range(8)]


async def shared(world: World) -> None:
    """Two machines with 4 CPUs each, for two projects."""
    await world.begins(*two())
    applies(world, TEAMS)


async def grown(world: World) -> None:
    """Vision's `grows` holds both machines with 8 nodes, of which 2 are its minimum."""
    await shared(world)
    await world.create(elastic("grows", 8, 1, 1, project="vision"))
    await world.passes(1)
    assert held(world, "grows") == [f"grows/{n}" for n in range(8)]


class TestGrowth:
    @story
    async def test_nodes_are_added_one_by_one_from_what_is_free_up_to_the_most(
        self, world: World
    ) -> None:
        await shared(world)
        await world.create(elastic("grows", 5, 1, 1, project="vision"))
        await world.passes(1)
        assert held(world, "grows") == [f"grows/{n}" for n in range(5)]
        assert said(world, "grows").count("node added") == 3
        single = [world.cluster_state.groups.of_vnode(VNodeId(f"grows/{n}")) for n in range(2, 5)]
        assert all(len(groups) == 1 and len(groups[0].pieces) == 1 for groups in single)
        assert world.state("grows") == "active"
        await world.passes(5)
        assert len(held(world, "grows")) == 5
        assert not world.wrong()

    @story
    async def test_minimums_come_first_and_what_they_leave_is_divided(self, world: World) -> None:
        await shared(world)
        await world.create(elastic("first", 8, 2, project="vision"))
        await world.create(asks("plain", nodes(2), project="speech"))
        await world.delete("first")
        await world.create(
            elastic("one", 8, 1, project="vision"), asks("two", nodes(3), project="vision")
        )
        await world.passes(GRACE_S + 2)
        assert world.states() == {"plain": "active", "one": "active", "two": "active"}
        assert len(held(world, "one")) == 3
        assert not world.wrong()

    @story
    async def test_a_node_never_stops_others(self, world: World) -> None:
        await shared(world)
        await world.create(asks("full", nodes(2, 2), project="vision"))
        await world.create(asks("half", nodes(2), project="speech"))
        await world.create(
            elastic("grows", 9, 1, project="vision", priority_class="interactive-preemptible")
        )
        await world.passes(GRACE_S + 5)
        assert world.states() == dict.fromkeys(("full", "half", "grows"), "active")
        assert len(held(world, "grows")) == 2
        assert said(world, "full").count("notice") == said(world, "half").count("notice") == 0

    @story
    async def test_strict_policies_hold_for_added_nodes(self, world: World) -> None:
        await shared(world)
        apart = nodes(1, policy=SchedulingPolicy.STRICT_SPREAD)
        await world.create(asks("grows", up_to(5, apart), project="vision"))
        await world.passes(2)
        assert sorted(world.hosts("grows").values()) == ["a", "b"]
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert sorted(world.hosts("grows").values()) == ["a", "b", "c"]

    @story
    async def test_added_nodes_take_what_was_borrowed_and_is_idle(self, world: World) -> None:
        await shared(world)
        await world.create(asks("loans", most=8, project="speech"))
        work = submits(world, "loans", "w", 4)
        await world.passes()
        await world.create(elastic("grows", 8, 1, project="vision"))
        await world.passes(1)
        assert len(held(world, "grows")) == 4, "the work goes on"
        world.reconciler.router.done([work.id])
        await world.passes(2)
        assert len(held(world, "grows")) == 8
        assert not world.wrong()

    @story
    async def test_two_groups_grow_and_have_one_numbering(self, world: World) -> None:
        await world.begins(fake_machine("a", CPU=10))
        applies(world, TEAMS)
        both = (up_to(2, nodes(1)), up_to(3, nodes(2)))
        await world.create(asks("grows", *both, project="vision"))
        await world.passes(2)
        ledger = world.cluster_state.ledger
        sizes = {each.id: each.resources.to_ray()["CPU"] for each in ledger.of(ClusterId("grows"))}
        assert sorted(sizes.values()) == [1, 1, 2, 2, 2]
        request = entry(world, "grows").request
        assert all(
            request.bundle(int(id.rpartition("/")[2])).resources.to_ray() == {"CPU": size}
            for id, size in sizes.items()
        )

    @story
    async def test_ray_that_has_no_room_for_a_node_gets_another_try_later(
        self, world: World
    ) -> None:
        await shared(world)
        world.ray.use("others", "b", {"CPU": 3})
        await world.create(elastic("grows", 6, 1, 1, project="vision"))
        world.ray.stop("others")
        world.ray.use("sudden", "b", {"CPU": 4})
        await world.passes(40)
        assert world.state("grows") == "active"
        assert len(held(world, "grows")) == 4
        world.ray.stop("sudden")
        await world.passes(60)
        assert len(held(world, "grows")) == 6
        assert not world.wrong()


class TestNodesLeave:
    @story
    async def test_the_last_added_leave_for_a_minimum_of_the_same_project(
        self, world: World
    ) -> None:
        await grown(world)
        await world.create(asks("next", nodes(1, 1), project="vision"))
        assert leaving(world, "grows") == ["grows/7", "grows/6"]
        assert {each.rule for each in entry(world, "grows").nodes_leave} == {"preempt-surplus"}
        assert "grows/7, grows/6" in world.reason("next")
        await world.passes(GRACE_S - 0.5)
        assert (world.state("next"), len(held(world, "grows"))) == ("waiting", 8)
        await world.passes(1)
        assert world.states() == {"grows": "active", "next": "active"}
        assert held(world, "grows") == [f"grows/{n}" for n in range(6)]
        assert said(world, "grows").count("node stopped") == 2
        assert not world.wrong()

    @story
    async def test_other_projects_reclaim_nodes_even_if_the_project_is_not_reclaimable(
        self, world: World
    ) -> None:
        await grown(world)
        await world.create(asks("mine", nodes(1, 1, 1, 1), project="speech"))
        await world.passes(GRACE_S + 1)
        assert world.states() == {"grows": "active", "mine": "active"}
        assert len(held(world, "grows")) == 4
        await world.delete("mine")
        await world.passes(2)
        assert len(held(world, "grows")) == 8
        assert not world.wrong()

    @story
    async def test_nothing_leaves_if_all_that_may_is_too_little(self, world: World) -> None:
        await grown(world)
        await world.create(asks("large", nodes(4, 4), project="vision"))
        await world.passes(GRACE_S + 1)
        assert world.state("large") == "waiting"
        assert len(held(world, "grows")) == 8
        assert "notice" not in said(world, "grows")

    @story
    async def test_a_minimum_without_any_surplus_left_is_stopped_as_a_whole(
        self, world: World
    ) -> None:
        await shared(world)
        await world.create(asks("big", nodes(4), project="vision"))
        await world.create(elastic("grows", 4, 1, 1, project="vision"))
        await world.passes(1)
        await world.create(asks("served", nodes(4), project="vision", priority_class="build"))
        await world.passes(GRACE_S + 2)
        assert world.state("served") == "active"
        assert sorted(world.states().values()) == ["active", "active", "waiting"]
        assert not world.wrong()

    @story
    async def test_a_node_that_said_it_has_ended_leaves_once_it_is_idle(self, world: World) -> None:
        await grown(world)
        works = busy(world)
        await world.create(asks("next", nodes(1), project="vision"))
        (node,) = map(VNodeId, leaving(world, "grows"))
        world.reconciler.admission.root.leave(ClusterId("grows"), node)
        await world.passes(2)
        assert world.state("next") == "waiting"
        (on_it,) = (work.id for work in works if work.vnode == node)
        world.reconciler.router.done([on_it])
        assert submits(world, "grows", "late", 1).vnode is None, "no work begins on it any more"
        await world.passes(1)
        assert world.state("next") == "active"
        assert not world.wrong()

    @story
    async def test_its_work_ends_with_it(self, world: World) -> None:
        await grown(world)
        works = busy(world)
        await world.create(asks("next", nodes(1), project="vision"))
        (node,) = map(VNodeId, leaving(world, "grows"))
        await world.passes(GRACE_S + 1)
        there = {each.id for each in world.cluster_state.works}
        assert {work.id for work in works} - there == {w.id for w in works if w.vnode == node}
        assert not world.wrong()

    @story
    async def test_what_is_inside_it_ends_with_it(self, world: World) -> None:
        await grown(world)
        await world.create(*(asks(f"in{n}", nodes(1), inside="grows") for n in range(8)))
        await world.create(asks("next", nodes(1), project="vision"))
        (node,) = leaving(world, "grows")
        (on_it,) = (
            name
            for name in world.states()
            if name.startswith("in")
            for vnode in world.cluster_state.ledger.of(ClusterId(name))
            if vnode.parent == node
        )
        await world.passes(GRACE_S + 1)
        assert on_it not in world.states()
        assert len([name for name in world.states() if name.startswith("in")]) == 7
        assert not world.wrong()

    @story
    async def test_a_notice_is_withdrawn_if_its_claimant_ends(self, world: World) -> None:
        await grown(world)
        await world.create(asks("next", nodes(1), project="vision"))
        await world.delete("next")
        await world.passes(GRACE_S + 1)
        assert len(held(world, "grows")) == 8
        assert not leaving(world, "grows")
        assert said(world, "grows")[-1] == "notice withdrawn"

    @story
    async def test_who_takes_over_a_promise_takes_over_the_time_of_those_who_leave(
        self, world: World
    ) -> None:
        await grown(world)
        names = ("vision", "speech")
        projects = [{"name": name, "quota": {"default": {"CPU": 4}}} for name in names]
        changed = {**TEAMS, "projects": projects}
        applies(world, changed)
        await world.create(asks("next", nodes(2), project="vision"))
        before = {each.node: each.at for each in entry(world, "grows").nodes_leave}
        await world.passes(GRACE_S / 2)
        await world.create(asks("mine", nodes(4), project="speech"))
        notices = {each.node: each for each in entry(world, "grows").nodes_leave}
        assert {notices[node].claimant for node in before} == {"mine"}
        assert {node: notices[node].at for node in before} == before
        await world.passes(GRACE_S + 1)
        assert world.state("mine") == "active"
        await world.passes(GRACE_S + 1)
        assert world.states() == {"grows": "active", "next": "active", "mine": "active"}
        assert len(held(world, "grows")) == 2
        assert not world.wrong()

    @story
    async def test_a_manager_that_dies_during_the_grace_goes_on_with_it(self, world: World) -> None:
        await grown(world)
        await world.create(asks("next", nodes(1, 1), project="vision"))
        before = entry(world, "grows").nodes_leave
        await world.passes(GRACE_S / 2)
        await world.again()
        assert entry(world, "grows").nodes_leave == before
        await world.passes(GRACE_S / 2 + 0.5)
        assert world.states() == {"grows": "active", "next": "active"}
        assert not world.wrong()

    @story
    async def test_the_documents_say_when_which_node_leaves(self, world: World) -> None:
        await grown(world)
        await world.create(asks("next", nodes(1), project="vision"))
        document = Snapshot(world.reconciler).cluster(ClusterId("grows"))
        told = {each["id"]: each["leaves"] for each in document["nodes"]}
        assert told.pop("grows/7")["claimant"] == "next"
        assert set(told.values()) == {None}
        assert document["leaves"] is None


class TestDeadMachines:
    @story
    async def test_a_node_above_the_minimum_is_gone_and_asked_for_again(self, world: World) -> None:
        await shared(world)
        together = nodes(1, 1, policy=SchedulingPolicy.STRICT_PACK)
        await world.create(asks("fixed", together, project="speech"))
        await world.create(elastic("grows", 6, 1, 1, project="vision"))
        await world.passes(1)
        (home,) = {world.hosts("grows")[f"grows/{n}"] for n in range(2)}
        world.ray.machine_down(*({"a", "b"} - {home}))
        await world.passes(1)
        assert world.state("grows") == "active"
        assert "node stopped" in said(world, "grows")
        assert "recovering" not in said(world, "grows")
        world.ray.machine_up(fake_machine("c", CPU=8))
        await world.passes(2)
        assert len(held(world, "grows")) == 6
        assert not world.wrong()

    @story
    async def test_one_above_the_minimum_counts_for_a_lost_one(self, world: World) -> None:
        await grown(world)
        home = world.hosts("grows")["grows/0"]
        world.ray.machine_down(home)
        await world.passes(20)
        assert world.state("grows") == "active"
        assert len(held(world, "grows")) == 4
        assert "stopped" not in said(world, "grows")
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert len(held(world, "grows")) == 8
        assert not world.wrong()


class TestWithoutAFile:
    @story
    async def test_nodes_that_are_idle_leave_for_a_minimum_at_once(self, world: World) -> None:
        await world.begins(*two())
        await world.create(elastic("grows", 8, 1, 1))
        await world.passes(1)
        assert len(held(world, "grows")) == 8
        await world.create(asks("next", nodes(2)))
        await world.passes(1)
        assert world.states() == {"grows": "active", "next": "active"}
        assert len(held(world, "grows")) == 6
        assert not world.wrong()

    @story
    async def test_a_node_on_which_work_runs_leaves_once_that_has_ended(self, world: World) -> None:
        await world.begins(*two())
        await world.create(elastic("grows", 8, 1, 1))
        await world.passes(1)
        works = busy(world)
        await world.create(asks("next", nodes(1)))
        await world.passes(60)
        (node,) = leaving(world, "grows")
        assert world.state("next") == "waiting"
        assert len(held(world, "grows")) == 8
        document = Snapshot(world.reconciler).cluster(ClusterId("grows"))
        (leaves,) = (each["leaves"] for each in document["nodes"] if each["id"] == node)
        assert leaves["at"] is None
        world.reconciler.router.done([work.id for work in works if work.vnode == node])
        await world.passes(1)
        assert world.state("next") == "active"
        assert not world.wrong()

    @story
    async def test_a_node_whose_work_the_manager_does_not_see_leaves_once_all_is_said_to_have_ended(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(replace(elastic("grows", 8, 1, 1), says_what_ended=True))
        await world.passes(1)
        await world.create(asks("next", nodes(1)))
        await world.passes(60)
        assert world.state("next") == "waiting", "also once the first notice was withdrawn"
        (node,) = map(VNodeId, leaving(world, "grows"))
        assert len(held(world, "grows")) == 8
        world.reconciler.admission.root.leave(ClusterId("grows"), node)
        await world.passes(1)
        assert world.state("next") == "active"
        assert len(held(world, "grows")) == 7
        assert not world.wrong()

    @story
    async def test_a_minimum_that_waits_for_idle_nodes_takes_other_places_that_come(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(elastic("grows", 8, 1, 1))
        await world.passes(1)
        busy(world)
        await world.create(asks("next", nodes(1)))
        await world.passes(1)
        world.ray.machine_up(fake_machine("c", CPU=1))
        await world.passes(40)
        assert world.state("next") == "active"
        assert len(held(world, "grows")) == 8
        assert not leaving(world, "grows")

    @story
    async def test_a_minimum_is_never_stopped(self, world: World) -> None:
        await world.begins(*two())
        await world.create(elastic("grows", 8, 4, priority_class="train"))
        await world.passes(1)
        await world.create(asks("high", nodes(4, 1), priority=9, priority_class="inference"))
        await world.passes(30)
        assert world.states() == {"grows": "active", "high": "waiting"}
