"""Teams share a Ray cluster: who starts, who waits and who leaves, over crashes of the manager."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.fabric.core.cluster_state import Entry
from fedpilot.fabric.core.records import ClusterId, ProcessId, SchedulingPolicy, WorkId
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.errors import (
    NeverFits,
    Preempted,
    QueueInUse,
    QueueRefused,
    SpecError,
    StaleRevision,
)
from fedpilot.fabric.manager.routing.messages import Ask
from fedpilot.fabric.manager.scheduling.queue_document import queue_document
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
)


def of(project: str, name: str, *amounts: float, **more: Any) -> Entry:
    return asks(name, nodes(*amounts), project=project, **more)


async def teams(world: World) -> None:
    """Speech has nothing, and vision has it all: `big` and `more`, with 4 CPUs each."""
    await world.begins(*two())
    applies(world, TWO_TEAMS)
    await world.create(of("vision", "big", 2, 2), of("vision", "more", 2, 2))
    await world.passes()
    assert world.states() == {"big": "active", "more": "active"}


class TestNotice:
    @story
    async def test_who_is_over_quota_gets_notice_and_leaves_after_its_grace(
        self, world: World
    ) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        leaves = entry(world, "more").leaves
        assert leaves is not None
        assert (leaves.claimant, leaves.at, leaves.rule) == (
            "mine",
            world.clock() + GRACE_S,
            "reclaim-fairshare",
        )
        assert entry(world, "mine").promised
        assert "more" in world.reason("mine")
        await world.passes(GRACE_S - 0.5)
        assert world.states() == {"big": "active", "more": "active", "mine": "waiting"}
        await world.passes(1)
        assert world.states() == {"big": "active", "more": "waiting", "mine": "active"}
        assert said(world, "more")[-2:] == ["notice", "stopped"]
        assert not world.wrong()

    @story
    async def test_who_was_stopped_comes_back_by_itself_before_those_who_asked_later(
        self, world: World
    ) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        await world.create(of("vision", "later", 3))
        await world.passes(GRACE_S + 1)
        assert world.state("more") == "waiting"
        await world.delete("mine")
        await world.passes(1)
        assert world.states() == {"big": "active", "more": "active", "later": "waiting"}
        assert not world.wrong()

    @story
    async def test_who_works_in_what_has_left_is_told_for_whom_over_a_crash_too(
        self, world: World
    ) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        await world.passes(GRACE_S + 1)
        await world.again()
        ask = Ask(
            id=WorkId("w"),
            cluster=ClusterId("more"),
            demand=Resources.of({"CPU": 1}),
            selector={},
            owner=ProcessId("p"),
        )
        with pytest.raises(Preempted, match=r"leave its places to .mine.: .*reclaim-fair"):
            await world.reconciler.place(ask)
        with pytest.raises(Preempted) as told:
            await world.create(asks("inside", nodes(1), inside="more"))
        assert (told.value.name, told.value.claimant) == ("more", "mine")
        found = Snapshot(world.reconciler).cluster(ClusterId("more"))
        assert (found["leaves"], found["stopped"]["claimant"]) == (None, "mine")

        await world.delete("mine")
        await world.passes(1)
        assert await world.reconciler.place(ask) is not None
        again = Snapshot(world.reconciler).cluster(ClusterId("more"))
        assert again["since"] > found["since"], "other places than before"

    @story
    async def test_who_has_ended_its_work_leaves_at_once(self, world: World) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        world.reconciler.admission.root.leave(ClusterId("more"))
        await world.passes(0.5)
        assert world.states() == {"big": "active", "more": "waiting", "mine": "active"}

    @story
    async def test_nothing_leaves_if_other_places_become_free_during_the_grace(
        self, world: World
    ) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        assert entry(world, "more").leaves is not None
        await world.delete("big")
        await world.passes(1)
        assert world.states() == {"more": "active", "mine": "active"}
        assert entry(world, "more").leaves is None
        assert "notice withdrawn" in said(world, "more")
        assert "stopped" not in said(world, "more")
        assert not world.wrong()

    @story
    async def test_places_that_are_promised_to_others_spare_no_victim(self, world: World) -> None:
        await world.begins(*two(), fake_machine("c", CPU=2))
        applies(world, TWO_TEAMS)
        await world.create(of("vision", "big", 4), of("vision", "more", 4), of("vision", "s", 2))
        await world.passes()
        await world.create(of("speech", "first", 2), of("speech", "second", 2))
        victims = [name for name in ("big", "more", "s") if entry(world, name).leaves]
        assert victims
        world.reconciler.admission.root.leave(ClusterId(victims[0]))
        await world.passes(GRACE_S + 2)
        assert {world.state("first"), world.state("second")} == {"active"}
        assert not world.wrong()

    @story
    async def test_a_victim_leaves_if_the_promise_to_another_claimant_counts_on_it(
        self, world: World
    ) -> None:
        await world.begins(*two())
        applies(world, TWO_TEAMS)
        await world.create(of("vision", "three", 3), of("vision", "one", 1))
        await world.create(of("vision", "more", 4))
        await world.create(of("speech", "mine", 3), of("speech", "rides", 1))
        assert [n for n in world.states() if entry(world, n).leaves] == ["more"]
        await world.passes(GRACE_S - 1)
        await world.delete("three")
        await world.passes(1.5)
        assert (world.state("mine"), world.state("rides")) == ("active", "active")
        assert not world.wrong()

    @story
    async def test_a_victim_stays_once_all_who_count_on_it_have_other_places(
        self, world: World
    ) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3), of("speech", "rides", 1))
        await world.passes(1)
        await world.delete("big")
        await world.passes(1)
        assert world.states() == {"more": "active", "mine": "active", "rides": "active"}
        assert "stopped" not in said(world, "more")
        assert not world.wrong()

    @story
    async def test_all_victims_of_a_claimant_leave_together(self, world: World) -> None:
        await world.begins(*two())
        applies(world, TWO_TEAMS)
        await world.create(*(of("vision", f"v{n}", 2) for n in range(4)))
        await world.passes()
        await world.create(of("speech", "mine", 4))
        (first, second) = [n for n in world.states() if n != "mine" and entry(world, n).leaves]
        world.reconciler.admission.root.leave(ClusterId(first))
        await world.passes(2)
        assert world.state(first) == "active"
        world.reconciler.admission.root.leave(ClusterId(second))
        await world.passes(1)
        assert world.state("mine") == "active"
        assert {world.state(first), world.state(second)} == {"waiting"}
        assert not world.wrong()

    @story
    async def test_a_notice_is_withdrawn_if_its_claimant_ends(self, world: World) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        await world.delete("mine")
        await world.passes(GRACE_S + 1)
        assert world.states() == {"big": "active", "more": "active"}
        assert said(world, "more")[-1] == "notice withdrawn"
        assert entry(world, "more").leaves is None

    @story
    async def test_who_left_starts_at_once_where_there_is_room(self, world: World) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        await world.passes(GRACE_S + 1)
        assert world.state("more") == "waiting"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(1)
        assert world.states() == {"big": "active", "more": "active", "mine": "active"}
        assert set(world.hosts("more").values()) == {"c"}
        assert not world.wrong()

    @story
    async def test_what_is_inside_a_victim_ends_with_its_places(self, world: World) -> None:
        await teams(world)
        await world.create(asks("inner", nodes(1), inside="more"))
        await world.create(of("speech", "mine", 3))
        await world.passes(GRACE_S + 1)
        assert world.states() == {"big": "active", "more": "waiting", "mine": "active"}
        assert not world.wrong()

    @story
    async def test_a_manager_that_dies_during_the_grace_does_not_begin_it_anew(
        self, world: World
    ) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        at = entry(world, "more").leaves.at  # type: ignore[union-attr]
        await world.passes(GRACE_S / 2)
        await world.again()
        assert entry(world, "more").leaves.at == at  # type: ignore[union-attr]
        assert world.reconciler.admission.book.revision == 1
        await world.passes(GRACE_S / 2 + 0.5)
        assert world.states() == {"big": "active", "more": "waiting", "mine": "active"}
        assert not world.wrong()

    @story
    async def test_a_machine_that_dies_takes_what_was_promised_on_it_along(
        self, world: World
    ) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        (on,) = {vnode.machine for vnode in entry(world, "mine").promised}
        world.ray.machine_down(on)
        await world.passes(1)
        assert all(vnode.machine != on for vnode in entry(world, "mine").promised)
        assert world.state("mine") == "waiting", "vision is within its quota now"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert world.state("mine") == "active"
        assert not world.wrong()


class TestRules:
    @story
    async def test_without_a_file_nothing_is_ever_stopped(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("high", nodes(2), priority=9))
        await world.passes(30)
        assert world.states() == {"all": "active", "high": "waiting"}

    @story
    async def test_what_is_not_preemptible_waits_for_quota_and_is_never_stopped(
        self, world: World
    ) -> None:
        await world.begins(*two())
        applies(world, TWO_TEAMS)
        await world.create(
            of("vision", "service", 4, priority_class="inference"),
            of("vision", "second", 2, priority_class="inference"),
            of("vision", "train", 2, preemptible=False),
        )
        await world.passes()
        assert world.states() == {"service": "active", "second": "waiting", "train": "waiting"}
        assert world.reason("second").startswith("nonpreemptible-quota: ")
        await world.create(of("speech", "mine", 4), of("speech", "more", 4))
        await world.passes(GRACE_S + 5)
        assert world.states()["service"] == world.states()["mine"] == "active"
        assert world.state("more") == "waiting"

    @story
    async def test_a_higher_class_stops_a_lower_one_of_its_project(self, world: World) -> None:
        await teams(world)
        await world.create(of("vision", "served", 3, priority_class="build"))
        await world.passes(GRACE_S + 1)
        assert world.state("served") == "active"
        assert world.state("more") == "waiting"

    @story
    async def test_a_number_orders_and_never_stops(self, world: World) -> None:
        await teams(world)
        await world.create(of("vision", "urgent", 3, priority=1000))
        await world.passes(GRACE_S + 1)
        assert world.state("urgent") == "waiting"

    @story
    async def test_a_flexible_minimum_is_claimed_piece_by_piece(self, world: World) -> None:
        await teams(world)
        await world.create(asks("mine", least=3.5, project="speech"))
        await world.passes(GRACE_S + 1)
        assert world.state("mine") == "active"
        held = world.cluster_state.ledger.flexible_total(ClusterId("mine"))
        assert held.to_ray() == {"CPU": 3.5}
        assert not world.wrong()

    @story
    async def test_who_needs_nothing_is_let_in(self, world: World) -> None:
        await teams(world)
        await world.create(asks("free", project="speech"))
        await world.passes()
        assert world.state("free") == "active"

    @story
    async def test_idle_loans_go_back_before_they_are_due(self, world: World) -> None:
        await world.begins(*two())
        applies(world, TWO_TEAMS)
        await world.create(asks("grows", most=8, project="vision"))
        work = submits(world, "grows", "w", 4)
        await world.passes()
        assert world.machine_of(work)
        world.reconciler.router.done([work.id])
        await world.create(of("speech", "mine", 4), of("speech", "next", 4))
        await world.passes(1)
        assert world.states() == {"grows": "active", "mine": "active", "next": "active"}
        assert not world.wrong()

    @story
    async def test_a_gang_that_lost_a_node_claims_it_or_is_stopped(self, world: World) -> None:
        await world.begins(*two(), fake_machine("c", CPU=4))
        applies(world, TWO_TEAMS)
        spread = nodes(3, 3, policy=SchedulingPolicy.STRICT_SPREAD)
        await world.create(asks("gang", spread, project="vision"))
        await world.passes()
        (first, second) = sorted(set(world.hosts("gang").values()))
        world.ray.machine_down(second)
        await world.passes(2)
        assert world.state("gang") == "active"
        gone = {"a", "b", "c"} - {second} - {first}
        for machine in gone:
            world.ray.machine_down(machine)
        await world.passes(3)
        assert world.state("gang") == "recovering"
        await world.passes(20)
        assert world.state("gang") == "waiting"
        assert "stopped" in said(world, "gang")
        assert not world.wrong()


class TestTheFile:
    @story
    async def test_a_request_that_its_project_refuses_changes_nothing(self, world: World) -> None:
        await world.begins(*two())
        users = [{"name": "closed", "quota": {"default": {"CPU": 0}}, "users": ["bob"]}]
        applies(world, {**TWO_TEAMS, "projects": [*TWO_TEAMS["projects"], *users]})
        with pytest.raises(QueueRefused, match="visoin"):
            await world.create(of("visoin", "wrong", 1))
        with pytest.raises(QueueRefused, match="closed"):
            await world.create(of("closed", "wrong", 1))
        assert world.states() == {}

    @story
    async def test_a_request_is_refused_before_it_is_made(self, world: World) -> None:
        await world.begins(*two())
        users = [{"name": "closed", "quota": {"default": {"CPU": 0}}, "users": ["bob"]}]
        applies(world, {**TWO_TEAMS, "projects": [*TWO_TEAMS["projects"], *users]})
        check = world.reconciler.admission.check
        check(of("closed", "right", 1).request, "bob")
        check(of("closed", "right", 1).request)
        with pytest.raises(QueueRefused, match="closed"):
            check(of("closed", "wrong", 1).request, "eve")
        with pytest.raises(QueueRefused, match="visoin"):
            check(of("visoin", "wrong", 1).request)
        with pytest.raises(NeverFits):
            check(of("vision", "large", 1000).request)
        assert world.states() == {}

    @story
    async def test_a_queue_that_is_used_cannot_be_left_out(self, world: World) -> None:
        await teams(world)
        with pytest.raises(QueueInUse, match="project vision has big, more"):
            applies(world, {**TWO_TEAMS, "projects": TWO_TEAMS["projects"][1:]})
        assert world.reconciler.admission.book.revision == 1

    @story
    async def test_two_admins_cannot_overwrite_each_other(self, world: World) -> None:
        await teams(world)
        assert applies(world, TWO_TEAMS, revision=1)["revision"] == 2
        with pytest.raises(StaleRevision, match="revision 2, applied by ann"):
            applies(world, TWO_TEAMS, revision=1)

    @story
    async def test_a_dry_run_says_what_would_come_and_changes_nothing(self, world: World) -> None:
        await world.begins(*two())
        applies(world, TWO_TEAMS)
        await world.create(of("speech", "mine", 4), of("vision", "big", 4))
        await world.create(of("vision", "late", 2))
        await world.passes()
        projects = [
            {"name": "vision", "quota": {"default": {"CPU": 8}}},
            {"name": "speech", "quota": {"default": {"CPU": 0}}},
        ]
        changed = {**TWO_TEAMS, "projects": projects}
        found = world.reconciler.admission.apply_queues(changed, None, "ann", dry_run=True)
        assert [each["id"] for each in found["would"]["stops"]] == ["mine"]
        assert list(found["would"]["starts"]) == ["late"]
        assert list(found["would"]["waits"]) == ["mine"]
        assert found["revision"] == world.reconciler.admission.book.revision == 1
        await world.passes(GRACE_S + 1)
        assert world.state("mine") == "active"

    @story
    async def test_machines_belong_to_pools_by_their_labels(self, world: World) -> None:
        large = fake_machine("big", CPU=8, labels={"kind": "large"})
        await world.begins(fake_machine("small", CPU=4), large)
        both = {"large": {"CPU": 4}, "default": {"CPU": 2}}
        applies(
            world,
            {
                "pools": [{"name": "large", "selector": {"kind": "large"}}],
                "projects": [{"name": "vision", "quota": both}],
            },
        )
        await world.create(of("vision", "first", 2), of("vision", "small", 2, pool="default"))
        await world.passes()
        assert world.hosts("first") == {"first/0": "big"}
        assert world.hosts("small") == {"small/0": "small"}
        with pytest.raises(NeverFits):
            await world.create(of("vision", "wide", 6, pool="default"))

    @story
    async def test_a_machine_in_two_pools_is_refused_and_one_that_joins_later_is_in_the_first(
        self, world: World
    ) -> None:
        await world.begins(fake_machine("a", CPU=4, labels={"kind": "large", "gpu": "a100"}))
        pools = [
            {"name": "large", "selector": {"kind": "large"}},
            {"name": "gpus", "selector": {"gpu": "exists()"}},
        ]
        with pytest.raises(SpecError, match=r"found a .* in large and gpus"):
            applies(world, {"pools": pools})
        world.ray.machine_down("a")
        await world.passes()
        applies(world, {"pools": pools})
        world.ray.machine_up(fake_machine("b", CPU=4, labels={"kind": "large", "gpu": "a100"}))
        await world.passes()
        await world.create(asks("job", nodes(4)))
        await world.passes()
        assert world.cluster_state.entries[ClusterId("job")].request.pool == "large"
        assert world.state("job") == "active"

    @story
    async def test_the_document_says_what_each_queue_has(self, world: World) -> None:
        await teams(world)
        await world.create(of("speech", "mine", 3))
        admission = world.reconciler.admission
        found = queue_document(
            world.cluster_state, world.reconciler.statuses, admission.book, {}, world.clock()
        )
        queues = {each["name"]: each for each in found["queues"]}
        assert queues["vision"]["allocated"] == {"CPU": 4}
        assert queues["vision"]["quota"] == {"CPU": 4}
        assert queues["speech"]["state"] == "in-quota"
        workloads = {each["id"]: each for each in found["workloads"]}
        assert workloads["more"]["leaves"]["claimant"] == "mine"
        assert workloads["mine"]["claims"]["victims"] == ["more"]
        assert workloads["big"]["preemptible"] is True


class TestSamples:
    @story
    async def test_what_projects_hold_is_sampled_while_others_wait_and_while_none_does(
        self, world: World
    ) -> None:
        await teams(world)
        await world.passes(2)
        await world.create(of("speech", "mine", 3))
        await world.passes(GRACE_S + 2)
        for name in ("big", "more", "mine"):
            await world.delete(name)
        await world.passes(2)
        held = [
            {q["name"]: q["allocated"].get("CPU", 0) for q in each["queues"]}
            for each in world.reconciler.admission.root.samples.documents()
        ]
        assert {"vision": 8, "speech": 0, "default": 0} in held
        assert {"vision": 4, "speech": 3, "default": 0} in held
        assert held[-1] == {"vision": 0, "speech": 0, "default": 0}
