"""What a reconciler does for those who ask, and with what it finds others doing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fedpilot.fabric import Resources
from fedpilot.fabric.core.cluster_state import Entry
from fedpilot.fabric.core.records import DEFAULT, ROOT, ClusterId
from fedpilot.fabric.errors import NameTaken, NeverFits, NoSuchCluster
from fedpilot.fabric.manager.settings import KeeperSettings
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import STRICT_SPREAD, World, asks, nodes, steps, story, two


class TestCreate:
    @story
    async def test_it_gets_its_places_and_is_active_once_ray_has_made_them(
        self, world: World
    ) -> None:
        await world.begins(*two())
        asked = asks("job", nodes(2, 2, policy=STRICT_SPREAD), least=1)
        assert await world.do(world.reconciler.create(asked, wait_s=60)) == "active"
        assert {*world.hosts("job").values()} == {"a", "b"}
        assert world.reason("job") == ""
        assert world.reconciler.statuses.position(ClusterId("job")) is None
        await world.passes(1)
        assert not world.wrong()

    @story
    async def test_one_that_does_not_want_to_wait_is_told_that_it_starts(
        self, world: World
    ) -> None:
        await world.begins(*two())
        assert await world.create(asks("job", nodes(2))) == ["starting"]
        assert world.reason("job") == "Ray is making its placement groups"
        await world.passes()
        assert world.state("job") == "active"

    @story
    async def test_what_needs_nothing_is_active_at_once(self, world: World) -> None:
        await world.begins(*two())
        assert await world.create(asks("job")) == ["active"]

    @story
    async def test_asking_again_is_answered_alike(self, world: World) -> None:
        await world.begins(*two())
        asked = asks("job", nodes(2))
        first = await world.do(world.reconciler.create(asked, wait_s=60))
        before = world.groups("job")
        assert await world.do(world.reconciler.create(asked, wait_s=60)) == first == "active"
        assert world.groups("job") == before
        assert await world.create(asks("big", nodes(4, 4))) == ["waiting"]
        assert await world.create(asks("big", nodes(4, 4))) == ["waiting"]
        assert not world.wrong()

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(asks("job", nodes(1)), id="another spec"),
            pytest.param(asks("job", nodes(2), owner="j1"), id="another job"),
            pytest.param(asks("job", nodes(2), inside="up"), id="another parent"),
        ],
    )
    @story
    async def test_a_name_is_taken_by_whoever_asked_first(self, world: World, other: Entry) -> None:
        await world.begins(*two())
        world.ray.job_up("j1")
        await world.create(asks("up", least=2), asks("job", nodes(2)))
        with pytest.raises(NameTaken):
            await world.create(other)

    @pytest.mark.parametrize("name", [ROOT, DEFAULT])
    @story
    async def test_the_names_of_what_is_always_there_are_taken(
        self, world: World, name: str
    ) -> None:
        await world.begins(*two())
        with pytest.raises(NameTaken):
            await world.create(asks(name, nodes(2)))

    @pytest.mark.parametrize(
        ("asked", "why"),
        [
            pytest.param(asks("job", nodes(5)), "one node needs 5 CPU", id="more than a machine"),
            pytest.param(asks("job", nodes(1, zone="z")), "labels", id="labels that none has"),
            pytest.param(asks("job", least=9), "there is room for", id="more than all machines"),
            pytest.param(
                asks("job", least=3, inside="up"), "there is room for", id="more than its parent"
            ),
        ],
    )
    @story
    async def test_what_can_never_be_is_refused_at_once(
        self, world: World, asked: Entry, why: str
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=2, most=2))
        with pytest.raises(NeverFits, match=why):
            await world.create(asked)
        assert "job" not in world.cluster_state.entries

    @pytest.mark.parametrize("parent", ["nobody", "waits"])
    @story
    async def test_a_parent_has_to_be_there(self, world: World, parent: str) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("waits", nodes(1)))
        with pytest.raises(NoSuchCluster, match=parent):
            await world.create(asks("job", nodes(1), inside=parent))

    @story
    async def test_what_is_too_large_waits_where_machines_come(self, tmp_path: Path) -> None:
        world = World(tmp_path / "ledger", KeeperSettings(machines_come=True))
        await world.begins(*two())
        await world.create(asks("up", nodes(4)))
        with pytest.raises(NeverFits):
            await world.create(asks("in", nodes(5), inside="up"))
        assert await world.create(asks("large", nodes(9))) == ["waiting"]
        assert Resources.of({"CPU": 9}) in world.reconciler.admission.unplaced.with_all_held()
        world.ray.machine_up(fake_machine("c", CPU=16))
        await world.passes(1)
        assert world.state("large") == "active"
        world.file.close()


class TestOthers:
    @story
    async def test_what_others_use_holds_up_until_it_is_free(self, world: World) -> None:
        await world.begins(*two())
        world.ray.use("task", "a", {"CPU": 3})
        await world.passes(2)
        assert world.cluster_state.ledger.flexible_total(DEFAULT) == Resources.of({"CPU": 3})
        assert await world.create(asks("job", nodes(2, 2, 2))) == ["waiting"]
        await world.passes(10)
        assert world.state("job") == "waiting"
        assert not world.wrong()
        world.ray.stop("task")
        await world.passes(2)
        assert world.state("job") == "active"
        assert not world.cluster_state.ledger.flexible_total(DEFAULT)
        assert not world.wrong()

    @story
    async def test_what_we_use_is_not_taken_for_that_of_others(self, world: World) -> None:
        world.ray.lag_s = 1.0
        await world.begins(*two())
        for name in ("one", "two", "three"):
            await world.create(asks(name, nodes(2, 2), least=1))
            for _ in range(12):
                await world.passes()
                assert not world.cluster_state.ledger.flexible_total(DEFAULT)
            await world.delete(name)
        await world.passes(3)
        assert not world.cluster_state.ledger.flexible_total(DEFAULT)

    @story
    async def test_a_group_of_ours_that_somebody_removed_is_made_again(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(2)))
        await world.passes()
        (group,) = world.groups("job")
        world.ray.group_down(group)
        await world.do(world.reconciler.turn())
        assert world.state("job") == "recovering"
        assert world.reason("job") == "one of its placement groups was removed by others"
        await world.passes(1)
        assert world.state("job") == "active"
        assert world.ours() == {group}
        assert not world.wrong()

    @story
    async def test_a_group_of_our_name_that_is_in_no_book_is_removed(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(2)))
        world.ray.group_up("x1", f"fedpilot:{world.file.name}:old:x1", {"CPU": 2})
        world.ray.group_up("x2", "fedpilot:another:old:x2", {"CPU": 1})
        world.ray.group_up("x3", "theirs", {"CPU": 1})
        await world.passes(3)
        assert world.ray.ids() == {*world.groups("job"), "x2", "x3"}
        assert not {id for call, id in world.ray.calls if call == "remove"} & {"x2", "x3"}
        assert world.cluster_state.ledger.flexible_total(DEFAULT) == Resources.of({"CPU": 2})
        assert not world.wrong()

    @story
    async def test_who_finds_that_others_were_faster_waits_again_and_gets_in_later(
        self, world: World
    ) -> None:
        await world.begins(*two())
        world.ray.use("faster", "a", {"CPU": 4})
        assert await world.create(asks("job", nodes(3, 3))) == ["starting"]
        await world.create(asks("next", nodes(1)))
        await world.passes(2.5)
        assert world.state("job") == "starting"
        await world.passes(1)
        assert world.state("job") == "waiting"
        assert world.reason("job") == "others took what was free (no resources)"
        assert [str(id) for id in world.cluster_state.entries] == ["job", "next"]
        await world.passes(8)
        assert world.state("job") == "waiting"
        assert not world.wrong()
        world.ray.stop("faster")
        await world.passes(3)
        assert world.states() == {"job": "active", "next": "active"}
        assert not world.wrong()

    @story
    async def test_ray_chooses_other_machines_than_the_ledger(self, world: World) -> None:
        await world.begins(*two())
        world.ray.prefers = lambda machine: "ab"["ba".index(machine)]
        await world.create(asks("job", nodes(3)))
        assert world.hosts("job") == {"job/0": "a"}  # so the ledger chose
        await world.passes(1)
        assert world.hosts("job") == {"job/0": "b"}
        assert world.state("job") == "active"
        assert not world.wrong()

    @story
    async def test_what_ray_does_not_answer_is_asked_again(self, world: World) -> None:
        await world.begins(*two())
        for call in ("create", "wait", "look"):
            world.ray.fail(call, OSError("no answer"))
        await world.create(asks("job", nodes(2)))
        await world.passes(2)
        assert world.state("job") == "active"
        world.ray.fail("remove", OSError("no answer"))
        await world.delete("job")
        await world.passes(2)
        assert world.ours() == set()
        assert not world.wrong()


class TestAnotherProcess:
    @story
    async def test_it_goes_on_where_the_last_one_died(self, world: World) -> None:
        await world.begins(*two())
        await world.create(
            asks("up", nodes(3, 3), least=1), asks("in", nodes(1), inside="up"), asks("w", nodes(2))
        )
        await world.passes(1)
        before = {name: {*world.groups(name)} for name in ("up", "in")}
        await world.again()
        await world.passes(1)
        assert world.states() == {"up": "active", "in": "active", "w": "waiting"}
        assert {name: {*world.groups(name)} for name in ("up", "in")} == before
        assert not world.wrong()

    @story
    async def test_what_was_written_and_not_done_is_done(self, world: World) -> None:
        await world.begins(*two())
        creating = asyncio.ensure_future(world.reconciler.create(asks("job", nodes(2))))
        await steps(1)
        assert creating.done()
        assert world.ray.ids() == set()
        await world.again()
        await world.passes(1)
        assert world.states() == {"job": "active"}
        deleting = asyncio.ensure_future(world.reconciler.delete(ClusterId("job")))
        await steps(1)
        assert not deleting.done()
        await world.again()
        await world.passes(1)
        assert world.states() == {}
        assert not world.wrong()
