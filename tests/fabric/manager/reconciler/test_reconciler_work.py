"""The reconciler forgets the work of the dead, and does not lose that of the living."""

from __future__ import annotations

from fedpilot.fabric import Resources
from fedpilot.fabric.core.places.groups import GroupId, group_id
from fedpilot.fabric.core.records import ClusterId
from fedpilot.fabric.core.routing.work import WorkState
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import STRICT_SPREAD, World, asks, nodes, story, submits, two


class TestWork:
    @story
    async def test_what_ran_inside_on_a_dead_machine_runs_elsewhere(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=8))
        await world.passes(1)
        await world.create(asks("in", nodes(2, 2, policy=STRICT_SPREAD), inside="up"))
        await world.passes(1)
        works = [submits(world, "in", f"w{n}", 2) for n in range(2)]
        (lost,) = [each for each in works if world.machine_of(each) == "b"]
        world.ray.machine_up(fake_machine("c", CPU=4))
        world.ray.machine_down("b")
        await world.passes(3)
        assert world.states() == {"up": "active", "in": "active"}
        now = world.cluster_state.works[lost.id]
        assert (now.group, now.bundle) == (lost.group, 0)  # Ray starts it again by these
        assert world.ray.seen(now.group).hosts == ("c",)
        assert not world.wrong()

    @story
    async def test_a_group_that_somebody_asked_for_is_made_anew_once_the_rest_is_idle(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=8))
        await world.create(asks("in", nodes(1, 1, policy=STRICT_SPREAD), inside="up", group="pg"))
        await world.passes(1)
        world.ray.work_up("pg")
        world.ray.machine_up(fake_machine("c", CPU=4))
        world.ray.machine_down("b")
        await world.passes(3)
        assert ("remove", "pg") not in world.ray.calls
        assert world.state("in") == "recovering"
        assert "made anew once nothing runs in the rest" in world.reason("in")
        world.ray.work_down("pg")
        await world.passes(3)
        assert world.state("in") == "active"
        assert {*world.ray.seen(GroupId("pg")).hosts} == {"a", "c"}
        assert not world.wrong()

    @story
    async def test_lost_results_are_made_once_more(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", least=2, most=4))
        await world.passes(1)
        id = group_id(ClusterId("job"), "ab" * 10, "01000000")
        for unknown in ("ab" * 14 + "01000000", group_id(ClusterId("x"), "cd" * 10, "01000000")):
            world.ray.wanted[GroupId(unknown)] = Resources.of({"CPU": 1})
        world.ray.wanted[id] = Resources.of({"CPU": 2})
        await world.passes(0.5)
        assert id not in world.ray.ids()  # perhaps that was so a moment ago, and has ended
        await world.passes(1)
        assert world.ray.state(id) == "created"
        world.ray.wanted.clear()
        world.ray.work_up(id)
        await world.passes(10)
        assert len(world.cluster_state.works) == 1
        world.ray.work_down(id)
        await world.passes(10)
        assert len(world.cluster_state.works) == 0
        assert not world.wrong()

    @story
    async def test_what_a_process_asked_for_and_never_used_ends_with_it(self, world: World) -> None:
        await world.begins(*two())
        world.ray.process_up("p")
        await world.create(asks("mine", nodes(1), process="p"))
        await world.passes(5)
        assert world.states() == {"mine": "active"}
        world.ray.process_down("p")
        await world.passes(5)
        assert world.states() == {}
        assert not world.wrong()

    @story
    async def test_what_a_process_asked_for_ends_with_it(self, world: World) -> None:
        await world.begins(*two())
        world.ray.process_up("p")
        await world.create(asks("up", least=4), asks("mine", least=1, process="p"))
        work = submits(world, "up", "w", 1, owner="p")
        await world.passes(60)
        assert work.id in world.cluster_state.works  # however long it says nothing
        world.ray.process_down("p")
        await world.passes(60)
        assert world.states() == {"up": "active"}
        assert len(world.cluster_state.works) == 0
        assert not world.wrong()


class TestInside:
    @story
    async def test_work_in_the_place_of_what_submitted_it_is_known_there(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(1, 1)))
        await world.passes(1)
        outer = submits(world, "job", "outer", 1)
        inside = (outer.group, outer.bundle)
        inner = submits(world, "job", "inner", 1, inside=inside)
        assert (inner.group, inner.bundle, inner.state) == (*inside, WorkState.QUEUED)
        world.reconciler.router.done([outer.id])
        assert world.cluster_state.works[inner.id].state is WorkState.PLACED
        other = submits(world, "job", "other", 1)
        assert (other.group, other.bundle) != inside
        assert not world.wrong()
