"""Machines die, groups vanish, Ray does not answer: the reconciler sets right what differs."""

from __future__ import annotations

import asyncio

import pytest

from fedpilot.fabric.core.records import DEFAULT, ClusterId
from fedpilot.fabric.errors import NoSuchCluster
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import STRICT_SPREAD, World, answer_of, asks, nodes, steps, story, two


class TestMachines:
    @story
    async def test_ray_finds_another_place_for_a_fixed_node(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3, policy=STRICT_SPREAD)))
        await world.passes()
        (before,) = world.groups("job")
        world.ray.machine_down("a")
        await world.do(world.reconciler.turn())
        assert world.state("job") == "recovering"
        assert world.reason("job") == "machine a (a) died with some of its nodes"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(1)
        assert world.state("job") == "active"
        assert {*world.hosts("job").values()} == {"b", "c"}
        assert world.groups("job") == [before]
        assert not world.wrong()

    @story
    async def test_it_recovers_once_there_is_room(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3)), asks("flexible", least=1))
        await world.passes()
        world.ray.machine_down("a")
        await world.passes(10)
        assert world.state("job") == "recovering"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert world.states() == {"job": "active", "flexible": "active"}
        assert not world.wrong()

    @story
    async def test_who_lost_nodes_comes_before_who_waits(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3, policy=STRICT_SPREAD)))
        await world.passes()
        world.ray.machine_down("a")
        await world.passes(2)
        await world.create(asks("next", least=3))
        monkeypatch.setattr(world.ray, "_find", lambda *_: None)  # Ray is in no hurry
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert world.states() == {"job": "recovering", "next": "waiting"}
        monkeypatch.undo()
        world.ray.machine_up(fake_machine("d", GPU=1))  # Ray tries again
        await world.passes(5)
        assert world.states() == {"job": "active", "next": "waiting"}
        assert not world.wrong()

    @story
    async def test_who_starts_makes_way_where_ray_has_moved_another(self, world: World) -> None:
        await world.begins(*two(), fake_machine("c", CPU=4), fake_machine("d", CPU=4))
        await world.create(asks("job", nodes(3, 3, policy=STRICT_SPREAD)))
        await world.passes()
        lost, *_ = sorted(world.hosts("job").values())
        free = {"a", "b", "c", "d"} - {*world.hosts("job").values()}
        world.ray.machine_down(lost)  # Ray finds another place before the manager looks
        await world.create(*(asks(f"next-{n}", least=4) for n in range(len(free))))
        await world.passes(1)
        assert world.state("job") == "active"
        assert [id for id, state in world.states().items() if state == "waiting"] != []
        assert not world.wrong()

    @story
    async def test_a_place_that_others_leave_as_ray_takes_it_is_recorded(
        self, world: World
    ) -> None:
        await world.begins(*two(), fake_machine("c", CPU=4))
        await world.create(asks("job", nodes(3, 3, policy=STRICT_SPREAD)))
        await world.passes()
        (third,) = {"a", "b", "c"} - {*world.hosts("job").values()}
        world.ray.use("others", third, {"CPU": 3})
        await world.passes(10)
        world.ray.machine_down(min(world.hosts("job").values()))
        await world.passes(1)
        assert world.state("job") == "recovering"
        world.ray.stop("others")
        await world.passes(5)
        assert world.state("job") == "active"
        assert third in world.hosts("job").values()
        assert not world.wrong()

    @story
    async def test_flexible_resources_are_found_elsewhere(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", least=3))
        await world.passes()
        (was,) = world.hosts("job").values()
        world.ray.machine_down(was)
        await world.passes(2)
        assert world.state("job") == "active"
        (now,) = world.hosts("job").values()
        assert now != was
        assert [event for id, event, _ in world.events() if id == "job"][-2:] == [
            "recovering",
            "recovered",
        ]
        assert not world.wrong()

    @story
    async def test_a_fixed_node_inside_another_is_found_a_place_there(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(3, 3, policy=STRICT_SPREAD)))
        await world.passes()
        await world.create(asks("in", nodes(1, 1, policy=STRICT_SPREAD), inside="up"))
        await world.passes()
        world.ray.machine_down("a")
        await world.passes(1)
        assert world.states() == {"up": "recovering", "in": "recovering"}
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(3)
        assert world.states() == {"up": "active", "in": "active"}
        assert {*world.hosts("in").values()} == {"b", "c"}
        assert not world.wrong()

    @story
    async def test_who_waits_gets_a_machine_that_comes(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("next", nodes(2)))
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(1)
        assert world.states() == {"all": "active", "next": "active"}


class TestFound:
    """Each of these failed when it was written."""

    @story
    async def test_a_full_cluster_is_not_said_to_have_no_machines(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("next", nodes(2)))
        assert "no machines" not in world.reason("next")

    @story
    async def test_a_borrowed_vnode_that_is_given_back_as_a_whole(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=3))
        await world.passes()
        await world.create(asks("in", nodes(3, 2), inside="up"))
        await world.passes(1)
        assert len(world.hosts("up")) == 2
        await world.delete("in")
        await world.passes(70, turn_s=1)
        assert not world.cluster_state.ledger.loans()
        assert len(world.hosts("up")) == 1
        assert not world.wrong()

    @story
    async def test_one_that_waits_inside_one_that_waits_again(self, world: World) -> None:
        await world.begins(*two())
        world.ray.use("faster", "a", {"CPU": 4})
        await world.create(asks("up", nodes(3, 3)), asks("in", nodes(1), inside="up"))
        await world.create(asks("waits", nodes(3, 3), inside="up"))
        assert world.state("waits") == "waiting"
        await world.passes(30)
        assert world.state("up") == "waiting"
        world.ray.stop("faster")
        await world.passes(5)
        assert world.state("up") == "active"
        assert not world.wrong()

    @story
    async def test_one_that_waits_inside_one_that_lost_its_places_with_its_parent(
        self, world: World
    ) -> None:
        await world.begins(*two())
        world.ray.use("faster", "a", {"CPU": 4})
        await world.create(
            asks("up", nodes(3, 3)),
            asks("in", nodes(2, 2), inside="up"),
            asks("taken", nodes(1), inside="in"),
            asks("waits", nodes(2, 2), inside="in"),
        )
        assert world.state("waits") == "waiting"
        await world.passes(30)
        assert world.states() == {"up": "waiting"}

    @story
    async def test_one_whose_placement_group_has_no_room_is_not_active(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3)))
        await world.passes()
        (group,) = world.groups("job")
        world.ray.group_down(group)
        world.ray.use("faster", "a", {"CPU": 4})
        await world.passes(5)
        assert world.state("job") == "recovering"
        world.ray.stop("faster")
        await world.passes(5)
        assert world.state("job") == "active"

    @story
    async def test_one_whose_new_piece_has_no_room_is_not_active(self, world: World) -> None:
        await world.begins(fake_machine("a", CPU=4))
        await world.create(asks("up", nodes(3)))
        await world.passes(2)
        world.ray.use("small", "a", {"CPU": 1})
        await world.passes(2)
        await world.create(asks("in", nodes(1), inside="up"))
        while world.ours():
            await steps(1)
        world.ray.use("faster", "a", {"CPU": 3})
        await world.passes(10)
        assert world.state("up") == "recovering"
        world.ray.stop("faster")
        await world.passes(10)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

    @story
    async def test_what_is_given_up_while_it_is_made_is_not_left_behind(self, world: World) -> None:
        await world.begins(*two())
        slow = iter([20])
        world.ray.turns = lambda: next(slow, 0)
        await world.reconciler.create(asks("job", nodes(2)))
        await steps(3)
        await world.delete("job")
        await steps(60)
        assert world.ours() == set()

    @story
    async def test_one_that_needs_nothing_is_active_after_a_restart(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job"))
        await world.again()
        await world.passes(1)
        assert world.state("job") == "active"

    @story
    async def test_one_that_its_children_hold_all_of_is_active_after_a_restart(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(2)))
        await world.passes()
        await world.create(asks("in", nodes(2), inside="up"))
        await world.passes()
        await world.again()
        await world.passes(1)
        assert world.states() == {"up": "active", "in": "active"}

    @story
    async def test_one_that_its_first_child_takes_all_of_while_it_starts(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(2)), asks("in", nodes(2), inside="up"))
        await world.passes(6)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

    @story
    async def test_a_machine_that_dies_while_one_starts_on_it(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", least=3))
        (where,) = world.hosts("job").values()
        world.ray.machine_down(where)
        await world.passes(10)
        assert world.state("job") == "active"
        assert not world.wrong()

    @story
    async def test_a_fixed_node_is_lost_before_anybody_saw_it(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3)))
        while not any(world.ray.state(id) == "created" for id in world.ours()):
            await steps(1)
        world.ray.machine_down("a")
        await world.passes(5)
        assert world.state("job") == "recovering"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert world.state("job") == "active"
        assert not world.wrong()

    @story
    async def test_who_lacks_nodes_is_seen_to_by_the_next_keeper_beside_one_that_waits(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(4)), asks("in", nodes(3), inside="up"))
        await world.create(asks("waits", nodes(3), inside="up"))
        await world.create(asks("job", nodes(4)))
        await world.passes(5)
        (lost,) = world.hosts("job").values()
        world.ray.machine_down(lost)
        await world.passes(5)
        await world.again()
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(10)
        assert (world.state("waits"), world.state("job")) == ("waiting", "active")
        assert world.hosts("job") == {"job/0": "c"}
        assert not world.wrong()

    @story
    async def test_a_machine_that_died_while_nobody_looked(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", least=3))
        await world.passes()
        (where,) = world.hosts("job").values()
        world.ray.machine_down(where)
        await world.again()
        await world.passes(10)
        assert world.state("job") == "active"
        assert not world.wrong()

    @story
    async def test_flexible_resources_are_lost_beside_fixed_nodes(self, world: World) -> None:
        await world.begins(fake_machine("a", CPU=2), fake_machine("b", CPU=4))
        await world.create(asks("job", nodes(4), least=2))
        await world.passes()
        assert world.hosts("job") == {"job/0": "b", "job@a": "a"}
        world.ray.machine_down("a")
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(10)
        assert world.state("job") == "active"
        assert world.hosts("job") == {"job/0": "b", "job@c": "c"}
        assert not world.wrong()

    @story
    async def test_a_lost_node_inside_another_keeps_its_size(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(4, 4)))
        await world.passes()
        await world.create(asks("in", nodes(3, 2), inside="up"))
        await world.passes()
        lost = world.hosts("in")["in/1"]
        world.ray.machine_down(lost)
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(10)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

    @story
    async def test_a_node_inside_another_dies_and_the_keeper_too(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(4, 4)))
        await world.passes()
        await world.create(asks("in", nodes(3, 2), inside="up"))
        await world.passes()
        world.ray.machine_down(world.hosts("in")["in/1"])
        await world.passes(1)
        await world.again()
        await world.passes(1)
        assert world.states() == {"up": "recovering", "in": "recovering"}
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(10)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

    @story
    async def test_room_is_made_before_it_is_asked_for(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("next", nodes(4, 4)))
        await world.passes()
        (old,) = world.groups("all")
        world.ray.calls.clear()
        slow = iter([5])
        world.ray.turns = lambda: next(slow, 0)
        await world.delete("all")
        (new,) = world.groups("next")
        assert world.ray.calls == [("remove", old), ("create", new)]

    @story
    async def test_nothing_can_be_inside_what_others_use(self, world: World) -> None:
        await world.begins(*two())
        world.ray.use("task", "a", {"CPU": 3})
        await world.passes(2)
        with pytest.raises(NoSuchCluster):
            await world.create(asks("in", nodes(2), inside=DEFAULT))

    @story
    async def test_a_job_that_begins_while_the_keeper_looks(self, world: World) -> None:
        await world.begins(*two())
        world.ray.turns = lambda: 5
        looks = asyncio.ensure_future(world.reconciler.turn())
        await steps(7)
        world.ray.job_up("j1")
        await world.reconciler.create(asks("job", nodes(2), owner="j1"))
        await world.do(answer_of(looks))
        await world.passes(2)
        assert world.states() == {"job": "active"}

    @story
    async def test_a_group_that_is_made_while_the_keeper_looks_was_removed_by_nobody(
        self, world: World
    ) -> None:
        await world.begins(*two())
        looks = asyncio.ensure_future(world.reconciler.turn())
        delays = iter([0, 60, 60, 60])
        world.ray.turns = lambda: next(delays, 0)
        await steps(3)
        await world.reconciler.create(asks("job", nodes(2)))
        await world.do(answer_of(looks))
        await world.passes(1)
        assert "recovering" not in [event for _, event, _ in world.events()]


class TestWhatIsLeft:
    @story
    async def test_a_group_that_waits_is_removed_though_ray_did_not_answer(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The machines show nothing of it, so nobody would come across it later."""
        await world.begins(*two())
        await world.create(asks("job", nodes(1)))
        await world.passes(1)
        monkeypatch.setattr(world.ray, "_find", lambda *_: None)
        (group,) = world.groups("job")
        world.ray.group_down(group)
        await world.passes(10)
        assert world.ray.state(group) == "pending"
        world.ray.fail("remove", OSError("no answer"))
        await world.delete("job")
        await world.passes(5)
        assert not world.wrong()
        assert world.ray.ids() == set()

    @story
    async def test_pauses_grow_where_ray_has_no_room_again_and_again(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await world.begins(*two())
        monkeypatch.setattr(world.ray, "_find", lambda *_: None)
        await world.create(asks("job", nodes(1)))
        await world.passes(60)
        tried = [event for _, event, _ in world.events() if event == "admitted"]
        assert 2 <= len(tried) <= 7

    @story
    async def test_jobs_that_are_over_are_forgotten(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("team", nodes(1)))
        world.reconciler.attach(ClusterId("team"), world.ray.job_up("0a"))
        await world.passes(1)
        assert world.cluster_state.entries[ClusterId("team")].jobs == {"0a"}
        world.ray.job_down("0a")
        await world.passes(1)
        assert world.cluster_state.entries[ClusterId("team")].jobs == frozenset()
