"""Who waits gets places in the order of the queue, and what ends or is due gives them back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fedpilot.fabric import Resources
from fedpilot.fabric.core.records import ClusterId
from fedpilot.fabric.errors import NoSuchCluster, NotInTime, NotYours
from fedpilot.fabric.manager import status
from reconciler_world import World, answer_of, asks, nodes, story, two


def up_total(world: World) -> Resources:
    """All that the flexible virtual cluster `up` holds."""
    return world.cluster_state.ledger.flexible_total(ClusterId("up"))


class TestTheQueue:
    @story
    async def test_who_does_not_fit_is_skipped_and_everybody_knows_why_they_wait(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(
            asks("one", nodes(3, 3)),
            asks("two", nodes(2)),
            asks("three", nodes(2)),
            asks("four", nodes(1)),
        )
        position = world.reconciler.statuses.position
        assert [position(ClusterId(n)) for n in ("one", "two", "three", "four")] == [
            None,
            1,
            2,
            None,
        ]
        assert "2 CPU" in world.reason("two")
        await world.passes()
        assert world.state("four") == "active"
        assert await world.delete("one") == ("one",)
        await world.passes()
        assert world.states() == dict.fromkeys(("two", "three", "four"), "active")
        assert not world.wrong()

    @story
    async def test_the_higher_priority_goes_first(self, world: World) -> None:
        await world.begins(*two())
        await world.create(
            asks("all", nodes(4, 4)),
            asks("low", nodes(3, 3)),
            asks("high", nodes(3, 3), priority=1),
        )
        assert world.reconciler.statuses.position(ClusterId("high")) == 1
        await world.delete("all")
        await world.passes()
        assert world.states() == {"low": "waiting", "high": "active"}

    @story
    async def test_a_deadline_ends_the_wait(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("most", nodes(3, 3)))
        asked = asks("late", nodes(2), deadline=world.clock() + 5)
        waits = asyncio.ensure_future(world.reconciler.create(asked, wait_s=1e6))
        await world.passes(4)
        assert world.state("late") == "waiting"
        await world.passes(2)
        with pytest.raises(NotInTime, match="2 CPU"):
            await waits
        assert "late" not in world.cluster_state.entries
        assert not world.wrong()

    @story
    async def test_who_asks_is_answered_when_its_wait_is_over(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)))
        asked = world.clock()
        assert await world.do(world.reconciler.create(asks("now", nodes(2)))) == "waiting"
        assert world.clock() == asked
        waits = asyncio.ensure_future(world.reconciler.create(asks("next", nodes(2)), wait_s=0.5))
        await world.passes(0.25)
        assert not waits.done()
        await world.passes(0.5)
        assert await world.do(answer_of(waits)) == "waiting"
        assert world.state("next") == "waiting", "it goes on waiting"

    @story
    async def test_who_waits_is_told_when_it_gets_in(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)))
        waits = asyncio.ensure_future(world.reconciler.create(asks("next", nodes(2)), wait_s=1e6))
        await world.passes(1)
        await world.delete("all")
        assert await world.do(answer_of(waits)) == "active"

    @story
    async def test_who_waits_is_told_that_it_was_deleted(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)))
        waits = asyncio.ensure_future(world.reconciler.create(asks("next", nodes(2)), wait_s=1e6))
        await world.passes(1)
        await world.delete("next")
        with pytest.raises(NotInTime, match="it was deleted"):
            await world.do(answer_of(waits))


class TestEnds:
    @story
    async def test_one_in_another_is_cut_out_of_it_and_given_back(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(4), least=2, most=2))
        await world.passes()
        await world.create(asks("in", nodes(3), inside="up"))
        await world.passes()
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()
        assert await world.delete("in") == ("in",)
        await world.passes()
        assert world.states() == {"up": "active"}
        assert not world.wrong()

    @story
    async def test_what_ends_takes_along_all_that_is_or_waits_inside(self, world: World) -> None:
        await world.begins(*two())
        await world.create(
            asks("up", nodes(4)),
            asks("in", nodes(3), inside="up"),
            asks("deep", nodes(2), inside="in"),
            asks("waits", nodes(2), inside="up"),
        )
        await world.passes(1)
        assert world.states()["waits"] == "waiting"
        assert await world.delete("up") == ("deep", "in", "up")
        assert world.states() == {}
        assert world.ours() == set()
        assert ("waits", "ended", "up, which it is in, ended") in world.events()
        assert not world.wrong()

    @story
    async def test_nobody_of_that_name(self, world: World) -> None:
        await world.begins(*two())
        with pytest.raises(NoSuchCluster):
            await world.delete("nobody")

    @story
    async def test_anothers_is_deleted_only_by_force_and_on_record(self, world: World) -> None:
        await world.begins(*two())
        await world.create(
            replace(asks("mine", least=1), user="alice"),
            replace(asks("theirs", least=1, inside="mine"), user="bob"),
            asks("old", least=1),
        )

        async def refused(name: str, user: str) -> str:
            with pytest.raises(NotYours) as told:
                await world.do(world.reconciler.delete(ClusterId(name), user=user))
            return str(told.value)

        assert "'mine' is alice's" in await refused("mine", "bob")
        assert "'theirs' is bob's, and you are alice" in await refused("mine", "alice")
        assert "you are an unknown user" in await refused("theirs", "")
        assert world.states().keys() == {"mine", "theirs", "old"}
        await world.again()
        assert "'mine' is alice's" in await refused("mine", "bob")
        assert await world.do(world.reconciler.delete(ClusterId("old"), user="bob")) == ("old",)
        await world.do(world.reconciler.delete(ClusterId("mine"), user="bob", force=True))
        ended = {(name, why) for name, event, why in world.events() if event == "ended"}
        assert ("old", "it was deleted") in ended
        assert ("mine", "it was deleted with --force by bob, not its owner: mine of alice") in ended
        assert world.states() == {}

    @story
    async def test_who_deleted_anothers_is_on_record_after_the_manager_began_again(
        self, world: World
    ) -> None:
        def told() -> list[tuple[int, str, str]]:
            history = world.reconciler.statuses.history()
            assert [each["number"] for each in history] == sorted({e["number"] for e in history})
            return [
                (each["time"], each["cluster"], each["reason"])
                for each in history
                if "--force" in each["reason"]
            ]

        await world.begins(*two())
        for name in ("first", "second"):
            await world.create(replace(asks(name, least=1), user="alice"))
            await world.do(world.reconciler.delete(ClusterId(name), user="bob", force=True))
        before = told()
        assert [(name, "by bob" in why) for _, name, why in before] == [
            ("first", True),
            ("second", True),
        ]
        await world.again()
        assert told() == before
        for number in range(status.HISTORY // 4 + 1):
            await world.create(asks(f"mine-{number}", least=1))
            await world.delete(f"mine-{number}")
        assert told() == before, "however much has happened since"
        await world.again()
        assert told() == before
        assert {each["event"] for each in world.reconciler.statuses.history()} == {"ended"}
        assert {each["project"] for each in world.reconciler.statuses.history()} == {"default"}

    @story
    async def test_only_the_last_deletions_stay_on_record(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(status, "ON_RECORD", 2)
        await world.begins(*two())
        await world.again()
        for name in ("a", "b", "c"):
            await world.create(replace(asks(name, least=1), user="alice"))
            await world.do(world.reconciler.delete(ClusterId(name), user="bob", force=True))
        await world.again()
        assert [each["cluster"] for each in world.reconciler.statuses.history()] == ["b", "c"]

    @story
    async def test_a_job_takes_its_virtual_clusters_along(self, world: World) -> None:
        await world.begins(*two())
        world.ray.job_up("j1")
        await world.create(
            asks("mine", nodes(4, 4), owner="j1"),
            asks("waits", nodes(1), owner="j1"),
            asks("detached", nodes(1)),
        )
        await world.passes(1)
        assert world.states() == {"mine": "active", "waits": "waiting", "detached": "waiting"}
        world.ray.job_down("j1")
        await world.passes(0.5)
        assert world.states() == {"detached": "active"}
        assert not world.wrong()

    @story
    async def test_a_job_that_ended_while_nobody_looked(self, world: World) -> None:
        await world.begins(*two())
        world.ray.job_up("j1")
        await world.create(asks("mine", nodes(4), owner="j1"))
        await world.passes()
        world.ray.job_down("j1")
        await world.again()
        await world.passes()
        assert world.states() == {}
        assert not world.wrong()


class TestLoans:
    @story
    async def test_what_a_parent_borrowed_for_a_child_goes_back_when_it_is_due(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=1, most=3))
        await world.passes()
        await world.create(asks("in", nodes(3), inside="up"))
        await world.passes()
        assert up_total(world) == Resources.of({"CPU": 3})
        await world.passes(61, turn_s=1)
        assert world.cluster_state.ledger.loans()
        await world.delete("in")
        await world.passes(1)
        assert not world.cluster_state.ledger.loans()
        assert up_total(world) == Resources.of({"CPU": 1})
        assert not world.wrong()

    @story
    async def test_what_is_not_due_is_kept(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=1, most=3), asks("in", nodes(3), inside="up"))
        await world.passes()
        await world.delete("in")
        await world.passes(30, turn_s=1)
        assert up_total(world) == Resources.of({"CPU": 3})
        assert not world.wrong()
