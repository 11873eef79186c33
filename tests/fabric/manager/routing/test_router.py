"""Work inside virtual clusters goes where it fits, or waits, and is accounted for until it ends."""

from __future__ import annotations

import pytest

from fedpilot.fabric import NoSuchCluster, Resources, TooLarge, VNodeId
from fedpilot.fabric.core.cluster_state import Entry
from fedpilot.fabric.core.records import NODE_LABEL, ClusterId, WorkId
from fedpilot.fabric.core.routing.scheduling import ANY
from fedpilot.fabric.core.selectors import In, Selector
from fedpilot.fabric.manager.routing.messages import Ask
from fedpilot.fabric.manager.routing.router import SILENCE_S
from fedpilot.fabric.testing.fake_cluster import fake_machine
from router_bench import HELD, PLACED, QUEUED, Bench, cpus


def demand(bench: Bench) -> tuple[Resources, ...]:
    """The held work that only another machine could run."""
    return tuple(work.demand for work, why, _ in bench.router.awaits() if why.physical)


class TestFixed:
    def test_work_fills_the_nodes_and_then_waits_in_rays_queue(self, bench: Bench) -> None:
        bench.begin("job", 1, 1)
        first, second, third = (bench.runs("job") for _ in range(3))
        assert (first.state, second.state, third.state) == (PLACED, PLACED, QUEUED)
        assert first.group == second.group == third.group
        assert {first.bundle, second.bundle} == {0, 1}
        assert third.bundle == ANY
        bench.router.done([second.id])
        assert bench.now(third).state is PLACED
        assert bench.now(third).bundle == second.bundle

    def test_labels_say_which_node(self, bench: Bench) -> None:
        bench.begin("job", 1, 1, labels=({"rank": "0"}, {"rank": "1"}))
        where = {"rank": In("1")}
        assert bench.runs("job", where=where).bundle == 1
        waits = bench.runs("job", where=where)
        assert (waits.state, waits.bundle) == (QUEUED, 1)

    def test_those_that_wait_spread_over_several_groups(self, bench: Bench) -> None:
        bench.begin("job", 1, 1, apart=True)
        works = [bench.runs("job") for _ in range(6)]
        assert [work.state for work in works] == [PLACED] * 2 + [QUEUED] * 4
        assert len({work.group for work in works[2:4]}) == 2

    def test_more_than_its_largest_node_is_refused(self, bench: Bench) -> None:
        bench.begin("job", 1, 2)
        with pytest.raises(TooLarge, match="largest node, which has 2 CPU"):
            bench.submit("job", 3)

    def test_who_may_not_wait_is_told_so(self, bench: Bench) -> None:
        bench.begin("job", 1)
        assert bench.submit("job", wait=False) is not None
        assert bench.submit("job", wait=False) is None


class TestFlexible:
    def test_the_seeds_walk_through(self) -> None:
        bench = Bench(a=2)
        bench.begin("job", least=1)
        first, second, third = (bench.runs("job") for _ in range(3))
        assert [first.state, second.state, third.state] == [PLACED, PLACED, HELD]
        (vnode,) = bench.state.ledger.of(ClusterId("job"))
        assert vnode.resources == cpus(2)
        assert demand(bench) == (cpus(1),)
        bench.state.ledger.machine_up(fake_machine("b", CPU=2))
        bench.router.serve()
        assert bench.now(third).state is PLACED
        assert bench.now(third).group == third.group
        assert [v.machine for v in bench.state.ledger.of(ClusterId("job"))] == ["a", "b"]
        assert demand(bench) == ()

    def test_one_that_grew_runs_a_task_of_its_whole_size(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=2)
        small = [bench.runs("job") for _ in range(2)]
        large = bench.runs("job", 2)
        assert large.state is HELD
        bench.router.done([work.id for work in small])
        assert bench.now(large).state is PLACED
        (group,) = bench.state.groups.of_cluster(ClusterId("job"))
        assert (group.id, group.pieces[0].resources) == (large.group, cpus(2))

    def test_its_limit_holds(self, bench: Bench) -> None:
        bench.begin("job", least=0, most=2)
        works = [bench.runs("job") for _ in range(4)]
        assert [work.state for work in works].count(PLACED) == 2
        with pytest.raises(TooLarge, match="job may run at once: its limit is 2 CPU"):
            bench.submit("job", 3)

    @pytest.mark.parametrize(
        ("fixed", "most", "told"),
        [
            ((2, 2), None, "top, which low is in, may hold: its largest node, which has 2 CPU"),
            ((), 2, "top, which low is in, may hold: its limit is 2 CPU"),
        ],
    )
    def test_what_those_above_it_may_not_hold_is_refused(
        self, bench: Bench, fixed: tuple[int, ...], most: int | None, told: str
    ) -> None:
        bench.begin("top", *fixed, most=most)
        bench.begin("mid", inside="top")
        bench.begin("low", inside="mid")
        with pytest.raises(TooLarge, match=told):
            bench.submit("low", 3)
        assert bench.runs("low", 2).state is PLACED

    def test_what_no_machine_has_waits_for_one_where_machines_come(self, bench: Bench) -> None:
        bench.begin("top", 2, most=8)
        bench.begin("low", inside="top")
        with pytest.raises(TooLarge, match="no machine has 8 CPU: the most on one is 4 CPU"):
            bench.submit("low", 8)
        bench.is_set(machines_come=True)
        assert bench.runs("low", 8).state is HELD
        assert demand(bench) == (cpus(8),)

    @pytest.mark.parametrize("machines_come", [False, True])
    def test_a_named_machine_on_which_it_holds_nothing_is_refused(
        self, bench: Bench, machines_come: bool
    ) -> None:
        bench.is_set(machines_come=machines_come)
        bench.begin("job", least=4, most=4)
        told = r"job holds nothing on machine a \(a\), and cannot grow there: job may not hold"
        with pytest.raises(TooLarge, match=told):
            bench.submit("job", where={NODE_LABEL: In("a")})
        bench.begin("others", least=4, most=4)
        bench.begin("late", least=0)
        told = r"late holds nothing on machine a \(a\).*no machine that may run it \(a\) has 1 CPU"
        with pytest.raises(TooLarge, match=told):
            bench.submit("late", where={NODE_LABEL: In("a")})
        with pytest.raises(TooLarge, match=r"gone.*not in the Ray cluster"):
            bench.submit("late", where={NODE_LABEL: In("gone")})
        assert demand(bench) == ()

    def test_it_grows_on_a_named_machine_and_waits_for_what_it_holds_there(
        self, bench: Bench
    ) -> None:
        there: Selector = {NODE_LABEL: In("b")}
        bench.begin("job", least=1)
        small = bench.runs("job", where=there)
        large = bench.runs("job", 4, where=there)
        assert (small.state, large.state) == (PLACED, HELD)
        assert demand(bench) == ()  # no machine that comes is this one
        with pytest.raises(TooLarge, match=r"labels ray.io/node-id=b has 5 CPU: the most.* 4 CPU"):
            bench.submit("job", 5, where=there)
        bench.router.done([small.id])
        assert bench.now(large).state is PLACED

    def test_labels_that_no_node_of_those_above_it_has_are_refused(self, bench: Bench) -> None:
        bench.begin("top", 4)
        bench.begin("low", inside="top")
        bench.state.ledger.machine_up(fake_machine("c", {"zone": "far"}, CPU=4))
        far: Selector = {"zone": In("far")}
        with pytest.raises(TooLarge, match=r"top, which low is in, holds nothing with.*zone=far"):
            bench.submit("low", where=far)
        with pytest.raises(TooLarge, match="no node of top has the labels zone=far"):
            bench.submit("top", where=far)

    def test_actors_get_pieces_of_their_own(self, bench: Bench) -> None:
        bench.begin("job", least=4, most=4)
        first, second = bench.runs("job", actor=True), bench.runs("job", actor=True)
        assert first.group != second.group
        assert bench.state.groups[first.group].pieces[0].resources == cpus(1)

    def test_tasks_that_wait_are_promised_few_groups(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        works = [bench.runs("job", 1) for _ in range(400)]
        promised = {work.group for work in works[1:]}
        assert 8 < len(promised) < 100
        todo = [work for work in works if bench.now(work).state is PLACED]
        finished = 0
        while todo:
            finished += len(todo)
            bench.router.done([work.id for work in todo])
            todo = [work for work in bench.state.works if work.state is PLACED]
        assert finished == 400

    def test_who_was_first_in_a_batch_and_is_cancelled_leaves_the_rest_waiting(
        self, bench: Bench
    ) -> None:
        bench.begin("job", least=1, most=1)
        running = bench.runs("job")
        works = [bench.runs("job") for _ in range(40)]
        leader = next(w for w in works if len(bench.state.works.on(w.group)) > 1)
        behind = bench.state.works.on(leader.group)[1]
        bench.router.done([leader.id])
        assert bench.now(behind).state is HELD
        bench.router.done([running.id, *(w.id for w in works if w.id not in (behind.id,))])
        assert bench.now(behind).state is PLACED

    def test_what_a_machine_took_along_is_found_room_elsewhere_under_the_same_id(
        self, bench: Bench
    ) -> None:
        bench.begin("job", least=0)
        work = bench.runs("job", 2)
        lost = bench.state.ledger.vnodes[VNodeId(str(work.vnode))].machine
        vnodes = {v.id for v in bench.state.ledger.machine_down(lost)}
        bench.router.lost(vnodes)
        bench.state.groups.drop(work.group)
        assert bench.now(work).state is HELD
        bench.router.serve()
        again = bench.now(work)
        assert again.state is PLACED
        assert bench.state.groups[work.group].pieces[0].machine != lost


class TestActorsWithoutResources:
    def test_they_are_counted(self, bench: Bench) -> None:
        bench.begin("job", least=1)
        actors = [bench.runs("job", 0, actor=True) for _ in range(3)]
        bench.runs("job", 0)
        bench.runs("job", 1, actor=True)
        assert bench.state.works.without_resources(ClusterId("job")) == 3
        bench.router.done([actors[0].id])
        assert bench.state.works.without_resources(ClusterId("job")) == 2

    def test_they_can_be_capped(self, bench: Bench) -> None:
        bench.is_set(actors_without_resources=2)
        for name in ("job", "other"):
            bench.begin(name, least=1)
        actors = [bench.runs("job", 0, actor=True) for _ in range(2)]
        with pytest.raises(TooLarge, match="has 2 actors without resources, and may have 2"):
            bench.submit("job", 0, actor=True)
        assert bench.runs("job", 0).state is PLACED
        assert bench.runs("job", 0.5, actor=True).state is PLACED
        assert bench.runs("other", 0, actor=True).state is PLACED
        bench.router.done([actors[0].id])
        assert bench.runs("job", 0, actor=True).state is PLACED

    def test_a_spec_can_cap_them_below_what_the_manager_allows(self, bench: Bench) -> None:
        bench.is_set(actors_without_resources=2)
        for name, most in (("strict", 1), ("generous", 9)):
            bench.begin(name, least=1)
            spec = {"max_actors_without_resources": most}
            bench.state.add(Entry(request=bench.requests[ClusterId(name)], spec=spec))
        assert bench.runs("strict", 0, actor=True).state is PLACED
        with pytest.raises(TooLarge, match=r"may have 1 .`max_actors_without_resources` of its"):
            bench.submit("strict", 0, actor=True)
        for _ in range(2):
            assert bench.runs("generous", 0, actor=True).state is PLACED
        with pytest.raises(TooLarge, match=r"may have 2 .`actors_without_res"):
            bench.submit("generous", 0, actor=True)


class TestAccount:
    def test_asking_twice_is_answered_alike(self, bench: Bench) -> None:
        bench.begin("job", 2)
        ask = Ask(id=WorkId("w"), cluster=ClusterId("job"), demand=cpus(1), selector={}, owner="me")
        assert bench.router.place(ask) == bench.router.place(ask)
        assert len(bench.state.works) == 1

    def test_a_virtual_cluster_that_is_not_there_is_named(self, bench: Bench) -> None:
        with pytest.raises(NoSuchCluster, match="'job'"):
            bench.submit("job")

    def test_dead_actors_are_forgotten(self, bench: Bench) -> None:
        bench.begin("job", 1)
        work, waits = bench.runs("job", actor=True), bench.runs("job", actor=True)
        bench.router.begun(work.id, "aa")
        assert bench.state.works.actors == {"aa": work.id}
        bench.router.look(in_use=(), dead=["aa"], over=())
        assert work.id not in bench.state.works
        assert bench.now(waits).state is PLACED

    def test_what_a_dead_process_left_goes_once_ray_does_not_run_it(self, bench: Bench) -> None:
        bench.begin("job", 1, 1, apart=True)
        runs, gone = bench.runs("job"), bench.runs("job")
        bench.router.look(in_use=[runs.group], dead=(), over={runs.owner})
        assert runs.id in bench.state.works
        assert gone.id not in bench.state.works

    def test_a_shared_group_is_made_again_for_the_largest_of_its_work(self, bench: Bench) -> None:
        bench.begin("job", least=2)
        works = [bench.runs("job", 0.5), bench.runs("job", 1)]
        assert works[0].group == works[1].group
        assert works[0].vnode is not None
        bench.lose(bench.state.ledger.vnodes[works[0].vnode].machine)
        bench.repair()
        assert [bench.now(work).state for work in works] == [PLACED, QUEUED]
        bench.router.done([works[0].id])
        assert bench.now(works[1]).state is PLACED

    def test_silence_is_no_death_but_worth_a_question(self, bench: Bench) -> None:
        bench.begin("job", 1)
        work = bench.runs("job")
        assert bench.router.silent() == set()
        bench.clock.advance(SILENCE_S + 1)
        assert bench.router.silent() == {work.owner}
        bench.router.heard(work.owner)
        assert bench.router.silent() == set()
        assert work.id in bench.state.works

    def test_what_ends_takes_its_work_along(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        for _ in range(20):
            bench.runs("job")
        bench.router.end(ClusterId("job"))
        assert len(bench.state.works) == 0
        assert not bench.state.ledger.uses
