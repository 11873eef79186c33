"""Work inside virtual clusters goes where it fits, or waits, after any history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedpilot.fabric import NoSuchCluster, Resources, SchedulingPolicy, TooLarge, VNodeId
from fedpilot.fabric.core.books import Books, Entry
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.borrowing import give_back
from fedpilot.fabric.core.places.groups import (
    Either,
    Group,
    GroupId,
    Recut,
    Stuck,
    groups_for,
    recut,
)
from fedpilot.fabric.core.places.nomination import Admit, NoRoom, apply, place, refill
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import (
    NODE_LABEL,
    ROOT,
    Bundle,
    BundleGroup,
    ClusterId,
    MachineId,
    ProcessId,
    VNode,
    WorkId,
)
from fedpilot.fabric.core.routing.pace import batch_limit
from fedpilot.fabric.core.routing.scheduling import ANY
from fedpilot.fabric.core.routing.work import Work, WorkState
from fedpilot.fabric.core.selectors import In, Selector
from fedpilot.fabric.manager.work_router import SILENCE_S, Ask, Router
from fedpilot.fabric.testing.fake_cluster import ManualClock, fake_machine

PLACED, QUEUED, HELD = WorkState.PLACED, WorkState.QUEUED, WorkState.HELD


class Bench:
    """A router with books and no Ray: what it orders is done at once."""

    def __init__(self, **machines: int) -> None:
        self.clock = ManualClock()
        there = (fake_machine(id, {NODE_LABEL: id}, CPU=n) for id, n in machines.items())
        self.books = Books(Ledger(there))
        self.router = Router(self, self.clock)
        self.ids = count()
        self.in_use: frozenset[GroupId] = frozenset()
        self.ordered: list[Recut] = []
        self.machines_come = False
        self.actors_without_resources: int | None = None
        self.requests: dict[ClusterId, Request] = {}

    def cut(
        self, ledger: Ledger, vnodes: Iterable[VNodeId], given: Mapping[VNodeId, Resources]
    ) -> Recut | Stuck:
        busy = Either(self.books.works.busy, self.in_use)
        return recut(ledger, self.books.groups, vnodes, self.new_id, busy=busy, given=given)

    def order(self, cut: Recut) -> None:
        self.ordered.append(cut)
        self.books.groups.apply(cut)

    def due(self) -> float:
        return self.clock() + 10

    def new_id(self, _: ClusterId) -> GroupId:
        return GroupId(f"g{next(self.ids)}")

    def begin(self, name: str, *fixed: int, **how: Any) -> None:
        """Let a virtual cluster in: nodes of so many CPUs, and flexible ones."""
        refused = self.lets_in(name, *fixed, **how)
        assert refused is None, refused

    def lets_in(
        self,
        name: str,
        *fixed: int,
        least: int = 0,
        most: int | None = None,
        inside: str = ROOT,
        labels: tuple[Mapping[str, str], ...] = (),
        apart: bool = False,
        policy: SchedulingPolicy = SchedulingPolicy.PACK,
    ) -> NoRoom | Stuck | None:
        """Let a virtual cluster in, as the keeper does, or say why not."""
        bundles = [Bundle(resources=cpus(n)) for n in fixed]
        asked = [(b,) for b in bundles] if apart else [tuple(bundles)]
        request = Request(
            id=ClusterId(name),
            parent=ClusterId(inside),
            groups=tuple(BundleGroup(bundles=each, policy=policy) for each in asked if each),
            labels=labels,
            least=cpus(least),
            limits={} if most is None else {"CPU": most * 10_000},
            flexible=bool(least) or most is not None or not fixed,
        )
        refused = self._take_places(place(self.books.ledger, request))
        if refused is None:
            self.requests[request.id] = request
        return refused

    def _take_places(self, found: Admit | NoRoom) -> NoRoom | Stuck | None:
        if isinstance(found, NoRoom):
            return found
        pinned = found.request.id in self.books.ledger.clusters
        twin = self.books.ledger.copy()
        apply(twin, found, self.due())
        fixed_groups = groups_for(found, self.new_id, pinned=pinned)
        given: dict[VNodeId, Resources] = {
            p.vnode: p.resources for g in fixed_groups for p in g.pieces if p.vnode is not None
        }
        steps = [step for growth in found.growths for step in growth.steps]
        touched = {
            *(vnode.id for vnode in found.vnodes),
            *(VNodeId(vnode.parent) for vnode in found.vnodes),
            *(step.vnode for step in steps),
            *(VNodeId(step.parent) for step in steps),
        } & (twin.vnodes.keys() - given.keys())
        cut = self.cut(twin, touched, given)
        if isinstance(cut, Stuck):
            return cut
        apply(self.books.ledger, found, self.due())
        self.order(Recut(cut.remove, (*fixed_groups, *cut.make)))
        return None

    def end(self, name: str) -> None:
        """A virtual cluster ends with all inside it, and its places go back."""
        ledger, groups = self.books.ledger, self.books.groups
        ended = ledger.subtree(ClusterId(name))
        above = {VNodeId(vnode.parent) for each in ended for vnode in ledger.of(each)}
        for each in ended:
            self.router.end(each)
        ledger.end(ClusterId(name))
        for each in ended:
            for group in groups.of_cluster(each):
                groups.drop(group.id)
        cut = self.cut(ledger, above & ledger.vnodes.keys(), {})
        assert isinstance(cut, Recut), cut
        self.order(cut)
        self.router.serve()

    def lose(self, machine: MachineId) -> None:
        """A machine dies. What carried its vnodes goes, but where Ray looks for other places."""
        lost = {vnode.id for vnode in self.books.ledger.machine_down(machine)}
        self.router.lost(lost)
        for group in list(self.books.groups):
            if group.movable or not group.vnodes & lost:
                continue
            pieces = tuple(replace(p, vnode=None) if p.vnode in lost else p for p in group.pieces)
            self.books.groups.drop(group.id)
            if any(piece.vnode for piece in pieces):
                self.books.groups.put(replace(group, pieces=pieces))

    def repair(self) -> None:
        """Ray and the keeper find other places for what was lost, where there is room."""
        ledger = self.books.ledger
        lost = [
            (group, piece.vnode, piece.resources)
            for group in self.books.groups
            for piece in group.pieces
            if group.movable and piece.vnode is not None and piece.vnode not in ledger.vnodes
        ]
        for group, id, resources in lost:
            room = (host for host in ledger.machines if resources.fits(ledger.free(host)))
            if host := next(room, None):
                ledger.add(_vnode(group, id, resources, host))
        movable = {vnode for g in self.books.groups if g.movable for vnode in g.vnodes}
        for id in sorted(self.requests.keys() & ledger.clusters.keys()):
            request = self.requests[id]
            count = sum(len(group.bundles) for group in request.groups)
            there = ledger.vnodes.keys() | movable
            missing = [n for n in range(count) if VNodeId(f"{id}/{n}") not in there]
            least = request.least.beyond(ledger.flexible_total(id))
            if missing or least:
                self._take_places(refill(ledger, request, missing, least))
        self.router.serve()

    def give_back(self) -> None:
        """What is due goes back, unless others work on it."""
        give_back(self.books.ledger, self.clock(), self._recut)
        self.router.serve()

    def _recut(self, ledger: Ledger, vnodes: frozenset[VNodeId]) -> bool:
        cut = self.cut(ledger, vnodes, {})
        if isinstance(cut, Recut):
            self.order(cut)
        return isinstance(cut, Recut)

    def submit(
        self,
        cluster: str,
        demand: float = 1,
        *,
        actor: bool = False,
        wait: bool = True,
        where: Selector | None = None,
        owner: str = "driver",
        function: str = "",
    ) -> Work | None:
        ask = self.ask(cluster, demand, actor=actor, wait=wait, where=where, function=function)
        return self.router.place(replace(ask, owner=ProcessId(owner)))

    def ask(
        self,
        cluster: str,
        demand: float = 1,
        *,
        actor: bool = False,
        wait: bool = True,
        where: Selector | None = None,
        function: str = "",
    ) -> Ask:
        return Ask(
            id=WorkId(f"w{next(self.ids)}"),
            cluster=ClusterId(cluster),
            demand=Resources.of({"CPU": demand}),
            selector=where or {},
            owner=ProcessId("driver"),
            actor=actor,
            function=function,
            wait=wait,
        )

    def has_seen(self, cluster: str, seconds: float, demand: float = 1, **how: Any) -> None:
        """A task has begun and ended after so long."""
        work = self.runs(cluster, demand, **how)
        assert self.now(work).state is PLACED
        self.clock.advance(seconds)
        self.router.done([work.id])

    def runs(self, cluster: str, demand: float = 1, **how: Any) -> Work:
        work = self.submit(cluster, demand, **how)
        assert work is not None
        return work

    def now(self, work: Work) -> Work:
        return self.books.works[work.id]


def _vnode(group: Group, id: VNodeId, resources: Resources, host: MachineId) -> VNode:
    return VNode(id=id, cluster=group.cluster, parent=host, machine=host, resources=resources)


def cpus(amount: float) -> Resources:
    return Resources.of({"CPU": amount})


@pytest.fixture
def bench() -> Bench:
    return Bench(a=4, b=4)


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
        (vnode,) = bench.books.ledger.of(ClusterId("job"))
        assert vnode.resources == cpus(2)
        assert bench.router.demand() == (cpus(1),)
        bench.books.ledger.machine_up(fake_machine("b", CPU=2))
        bench.router.serve()
        assert bench.now(third).state is PLACED
        assert bench.now(third).group == third.group
        assert [v.machine for v in bench.books.ledger.of(ClusterId("job"))] == ["a", "b"]
        assert bench.router.demand() == ()

    def test_one_that_grew_runs_a_task_of_its_whole_size(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=2)
        small = [bench.runs("job") for _ in range(2)]
        large = bench.runs("job", 2)
        assert large.state is HELD
        bench.router.done([work.id for work in small])
        assert bench.now(large).state is PLACED
        (group,) = bench.books.groups.of_cluster(ClusterId("job"))
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
        bench.machines_come = True
        assert bench.runs("low", 8).state is HELD
        assert bench.router.demand() == (cpus(8),)

    @pytest.mark.parametrize("machines_come", [False, True])
    def test_a_named_machine_on_which_it_holds_nothing_is_refused(
        self, bench: Bench, machines_come: bool
    ) -> None:
        bench.machines_come = machines_come
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
        assert bench.router.demand() == ()

    def test_it_grows_on_a_named_machine_and_waits_for_what_it_holds_there(
        self, bench: Bench
    ) -> None:
        there: Selector = {NODE_LABEL: In("b")}
        bench.begin("job", least=1)
        small = bench.runs("job", where=there)
        large = bench.runs("job", 4, where=there)
        assert (small.state, large.state) == (PLACED, HELD)
        assert bench.router.demand() == ()  # no machine that comes is this one
        with pytest.raises(TooLarge, match=r"labels ray.io/node-id=b has 5 CPU: the most.* 4 CPU"):
            bench.submit("job", 5, where=there)
        bench.router.done([small.id])
        assert bench.now(large).state is PLACED

    def test_labels_that_no_node_of_those_above_it_has_are_refused(self, bench: Bench) -> None:
        bench.begin("top", 4)
        bench.begin("low", inside="top")
        bench.books.ledger.machine_up(fake_machine("c", {"zone": "far"}, CPU=4))
        far: Selector = {"zone": In("far")}
        with pytest.raises(TooLarge, match=r"top, which low is in, holds nothing with.*zone=far"):
            bench.submit("low", where=far)
        with pytest.raises(TooLarge, match="no node of top has the labels zone=far"):
            bench.submit("top", where=far)

    def test_actors_get_pieces_of_their_own(self, bench: Bench) -> None:
        bench.begin("job", least=4, most=4)
        first, second = bench.runs("job", actor=True), bench.runs("job", actor=True)
        assert first.group != second.group
        assert bench.books.groups[first.group].pieces[0].resources == cpus(1)

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
            todo = [work for work in bench.books.works if work.state is PLACED]
        assert finished == 400

    def test_who_was_first_in_a_batch_and_is_cancelled_leaves_the_rest_waiting(
        self, bench: Bench
    ) -> None:
        bench.begin("job", least=1, most=1)
        running = bench.runs("job")
        works = [bench.runs("job") for _ in range(40)]
        leader = next(w for w in works if len(bench.books.works.on(w.group)) > 1)
        behind = bench.books.works.on(leader.group)[1]
        bench.router.done([leader.id])
        assert bench.now(behind).state is HELD
        bench.router.done([running.id, *(w.id for w in works if w.id not in (behind.id,))])
        assert bench.now(behind).state is PLACED

    def test_what_a_machine_took_along_is_found_room_elsewhere_under_the_same_id(
        self, bench: Bench
    ) -> None:
        bench.begin("job", least=0)
        work = bench.runs("job", 2)
        lost = bench.books.ledger.vnodes[VNodeId(str(work.vnode))].machine
        vnodes = {v.id for v in bench.books.ledger.machine_down(lost)}
        bench.router.lost(vnodes)
        bench.books.groups.drop(work.group)
        assert bench.now(work).state is HELD
        bench.router.serve()
        again = bench.now(work)
        assert again.state is PLACED
        assert bench.books.groups[work.group].pieces[0].machine != lost


class TestActorsWithoutResources:
    def test_they_are_counted(self, bench: Bench) -> None:
        bench.begin("job", least=1)
        actors = [bench.runs("job", 0, actor=True) for _ in range(3)]
        bench.runs("job", 0)
        bench.runs("job", 1, actor=True)
        assert bench.books.works.without_resources(ClusterId("job")) == 3
        bench.router.done([actors[0].id])
        assert bench.books.works.without_resources(ClusterId("job")) == 2

    def test_they_can_be_capped(self, bench: Bench) -> None:
        bench.actors_without_resources = 2
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
        bench.actors_without_resources = 2
        for name, most in (("strict", 1), ("generous", 9)):
            bench.begin(name, least=1)
            spec = {"max_actors_without_resources": most}
            bench.books.enter(Entry(request=bench.requests[ClusterId(name)], spec=spec))
        assert bench.runs("strict", 0, actor=True).state is PLACED
        with pytest.raises(TooLarge, match=r"may have 1 .`max_actors_without_resources` of its"):
            bench.submit("strict", 0, actor=True)
        for _ in range(2):
            assert bench.runs("generous", 0, actor=True).state is PLACED
        with pytest.raises(TooLarge, match=r"may have 2 .`actors_without_res"):
            bench.submit("generous", 0, actor=True)


class TestShortTasks:
    """In the flexible resources of a virtual cluster, where Ray takes long to make a group."""

    def test_they_wait_for_a_piece_that_is_about_to_be_free(self, bench: Bench) -> None:
        bench.begin("job", least=2, most=2)
        bench.has_seen("job", 0.01)
        pieces = {group.id for group in bench.books.groups}
        works = [bench.runs("job") for _ in range(20)]
        assert [work.state for work in works] == [PLACED] * 2 + [QUEUED] * 18
        while len(bench.books.works):
            bench.clock.advance(0.01)
            bench.router.done([w.id for w in bench.books.works if w.state is PLACED])
        assert {group.id for group in bench.books.groups} == pieces

    def test_they_spread_over_the_pieces(self, bench: Bench) -> None:
        bench.begin("job", least=0, most=3)
        first = [bench.runs("job") for _ in range(3)]
        bench.clock.advance(0.01)
        bench.router.done([work.id for work in first])
        works = [bench.runs("job") for _ in range(12)]
        pieces = Counter(work.group for work in works)
        assert sorted(pieces.values()) == [4, 4, 4]

    def test_who_has_not_been_seen_to_end_may_be_long_and_is_held(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.01, function="short")
        assert bench.runs("job", function="long").state is PLACED
        assert bench.runs("job", function="long").state is HELD

    def test_a_queue_lasts_a_second_at_most(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.25)
        works = [bench.runs("job") for _ in range(6)]
        assert [work.state for work in works] == [PLACED] + [QUEUED] * 4 + [HELD]

    def test_nobody_waits_behind_what_runs_for_long(self, bench: Bench) -> None:
        bench.begin("job", least=0, most=2)
        bench.has_seen("job", 0.01)
        bench.runs("job", function="long")
        bench.clock.advance(60.0)
        short = bench.runs("job")
        works = [bench.runs("job") for _ in range(8)]
        assert {work.state for work in works} == {QUEUED}
        assert {work.group for work in works} == {short.group}

    def test_who_is_held_is_not_kept_waiting_by_those_who_come_later(self, bench: Bench) -> None:
        bench.begin("job", least=0, most=2)
        bench.has_seen("job", 0.01)
        small = [bench.runs("job") for _ in range(3)]
        assert [work.state for work in small] == [PLACED, PLACED, QUEUED]
        large = bench.runs("job", 2)
        assert (large.state, bench.runs("job").state) == (HELD, HELD)
        bench.router.done([work.id for work in small])
        assert bench.now(large).state is PLACED

    def test_who_is_held_for_a_larger_piece_than_there_is_keeps_nobody_waiting(self) -> None:
        bench = Bench(a=1)
        bench.machines_come = True
        bench.begin("job", least=1)
        bench.has_seen("job", 0.01)
        bench.runs("job")
        assert bench.runs("job", 4).state is HELD
        assert bench.runs("job").state is QUEUED

    def test_an_actor_waits_for_a_piece_of_its_own(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.01)
        bench.runs("job")
        assert bench.runs("job", actor=True).state is HELD

    def test_beside_an_actor_that_shares_a_piece_there_is_room_for_those_who_wait(
        self, bench: Bench
    ) -> None:
        bench.begin("job", least=2, most=2)
        first, actor = bench.runs("job"), bench.runs("job", actor=True)
        assert first.group == actor.group
        waits = [bench.runs("job") for _ in range(2)]
        for done, then in zip([first, *waits], waits, strict=False):
            bench.router.done([done.id])
            assert bench.now(then).state is PLACED

    def test_an_actor_does_not_take_the_piece_that_others_are_held_for(self, bench: Bench) -> None:
        bench.begin("job", least=2, most=2)
        small = [bench.runs("job", 0.5) for _ in range(4)]
        held = bench.runs("job", 2)
        bench.router.done([work.id for work in small[1:]])
        actor = bench.runs("job", actor=True)
        assert (bench.now(held).state, actor.state) == (HELD, HELD)
        bench.router.done([small[0].id])
        assert bench.now(held).state is PLACED

    def test_nobody_waits_behind_an_actor(self, bench: Bench) -> None:
        bench.begin("job", least=2, most=2)
        bench.has_seen("job", 0.01)
        actor, task = bench.runs("job", actor=True), bench.runs("job")
        waits = [bench.runs("job") for _ in range(4)]
        assert {work.group for work in waits} == {task.group}
        assert task.group != actor.group

    def test_places_are_promised_where_tasks_wait_and_nowhere_else(self, bench: Bench) -> None:
        bench.begin("job", least=2, most=2)
        bench.has_seen("job", 0.01)
        ids = [WorkId(f"p{n}") for n in range(4)]
        first = bench.ask("job")
        bench.router.place(first)
        assert bench.router.place_also(first, ids) == []  # there is room, which others may want
        bench.runs("job")
        waits = bench.ask("job")
        bench.router.place(waits)
        promised = bench.router.place_also(waits, ids)
        assert [work.id for work in promised] == ids
        assert {work.state for work in promised} == {QUEUED}
        assert bench.router.place_also(waits, ids) == promised  # asked twice
        bench.router.done(ids, ran=False)
        assert not {work.id for work in bench.books.works} & {*ids}

    def test_no_more_is_promised_than_ends_soon(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.25)
        bench.runs("job")
        waits = bench.ask("job")
        bench.router.place(waits)
        assert len(bench.router.place_also(waits, [WorkId(f"p{n}") for n in range(64)])) == 3

    def test_what_was_promised_and_never_came_says_nothing_of_how_long_tasks_last(
        self, bench: Bench
    ) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.25)
        bench.runs("job")
        waits = bench.runs("job")
        bench.router.done([waits.id], ran=False)
        works = [bench.runs("job") for _ in range(5)]
        assert [work.state for work in works] == [QUEUED] * 4 + [HELD]


class TestAccount:
    def test_asking_twice_is_answered_alike(self, bench: Bench) -> None:
        bench.begin("job", 2)
        ask = Ask(id=WorkId("w"), cluster=ClusterId("job"), demand=cpus(1), selector={}, owner="me")
        assert bench.router.place(ask) == bench.router.place(ask)
        assert len(bench.books.works) == 1

    def test_a_virtual_cluster_that_is_not_there_is_named(self, bench: Bench) -> None:
        with pytest.raises(NoSuchCluster, match="'job'"):
            bench.submit("job")

    def test_dead_actors_are_forgotten(self, bench: Bench) -> None:
        bench.begin("job", 1)
        work, waits = bench.runs("job", actor=True), bench.runs("job", actor=True)
        bench.router.begun(work.id, "aa")
        assert bench.router.actors() == {"aa": work.id}
        bench.router.look(in_use=(), dead=["aa"], over=())
        assert work.id not in bench.books.works
        assert bench.now(waits).state is PLACED

    def test_what_a_dead_process_left_goes_once_ray_does_not_run_it(self, bench: Bench) -> None:
        bench.begin("job", 1, 1, apart=True)
        runs, gone = bench.runs("job"), bench.runs("job")
        bench.router.look(in_use=[runs.group], dead=(), over={runs.owner})
        assert runs.id in bench.books.works
        assert gone.id not in bench.books.works

    def test_a_shared_group_is_made_again_for_the_largest_of_its_work(self, bench: Bench) -> None:
        bench.begin("job", least=2)
        works = [bench.runs("job", 0.5), bench.runs("job", 1)]
        assert works[0].group == works[1].group
        assert works[0].vnode is not None
        bench.lose(bench.books.ledger.vnodes[works[0].vnode].machine)
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
        assert work.id in bench.books.works

    def test_what_ends_takes_its_work_along(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        for _ in range(20):
            bench.runs("job")
        bench.router.end(ClusterId("job"))
        assert len(bench.books.works) == 0
        assert not bench.books.ledger.uses


@pytest.mark.parametrize(
    ("waiting", "running", "limit"),
    [(0, 0, 1), (7, 1, 1), (16, 1, 2), (1000, 4, 31), (10_000, 4, 312)],
)
def test_batches_are_a_share_of_those_that_wait(waiting: int, running: int, limit: int) -> None:
    assert batch_limit(waiting, running) == limit


class Histories(RuleBasedStateMachine):
    """Work comes and goes, vnodes grow, machines die, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(a=6, b=4, c=4)
        self.made = 0

    @initialize(top=st.sampled_from([0, 8, 12]), two=st.booleans())
    def somebody_is_there(self, top: int, two: bool) -> None:
        if top:
            self.bench.begin("top", least=top)
        if top and two:
            self.bench.begin("low", 2, 2, inside="top", policy=SchedulingPolicy.STRICT_SPREAD)

    @property
    def clusters(self) -> list[str]:
        return sorted(self.bench.books.ledger.clusters)

    @rule(
        data=st.data(),
        fixed=st.lists(st.integers(1, 2), max_size=3),
        apart=st.booleans(),
        policy=st.sampled_from(SchedulingPolicy),
        least=st.integers(0, 4),
        more=st.none() | st.integers(0, 4),
    )
    def begin(
        self,
        data: st.DataObject,
        fixed: list[int],
        apart: bool,
        policy: SchedulingPolicy,
        least: int,
        more: int | None,
    ) -> None:
        self.made += 1
        inside = data.draw(st.sampled_from([ROOT, *self.clusters]))
        most = None if more is None else least + more
        self.bench.lets_in(
            f"c{self.made}",
            *fixed,
            least=least,
            most=most,
            inside=inside,
            apart=apart,
            policy=policy,
        )

    @precondition(lambda self: self.clusters)
    @rule(
        data=st.data(),
        demand=st.sampled_from([0, 0.5, 1, 2, 3]),
        actor=st.booleans(),
        wait=st.booleans(),
        times=st.integers(1, 12),
    )
    def submit(
        self, data: st.DataObject, demand: float, actor: bool, wait: bool, times: int
    ) -> None:
        name = data.draw(st.sampled_from(self.clusters))
        for _ in range(times):
            try:
                self.bench.submit(name, demand, actor=actor, wait=wait)
            except TooLarge:
                return

    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        known = sorted(work.id for work in self.bench.books.works)
        if known:
            self.bench.router.done(data.draw(st.lists(st.sampled_from(known), unique=True)))

    @rule(passed=st.integers(1, 20))
    def time_passes(self, passed: int) -> None:
        self.bench.clock.advance(passed)
        self.bench.give_back()

    @precondition(lambda self: self.clusters)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.bench.end(data.draw(st.sampled_from(self.clusters)))

    @rule(data=st.data(), cpus=st.integers(1, 6), repaired=st.booleans())
    def a_machine_dies_and_another_comes(
        self, data: st.DataObject, cpus: int, repaired: bool
    ) -> None:
        books = self.bench.books
        lost: MachineId = data.draw(st.sampled_from(sorted(books.ledger.machines)))
        self.bench.lose(lost)
        self.made += 1
        books.ledger.machine_up(fake_machine(f"m{self.made}", CPU=cpus))
        if repaired:
            self.bench.repair()
        self.bench.router.serve()

    @rule()
    def what_was_lost_is_found_room_for(self) -> None:
        self.bench.repair()

    @invariant()
    def nothing_is_over_capacity(self) -> None:
        books = self.bench.books
        assert not broken(books.ledger)
        for (group, bundle), load in books.works.load.items():
            assert load.fits(books.groups[group].pieces[bundle].resources)

    @invariant()
    def vnodes_are_carried_by_just_what_is_their_own(self) -> None:
        books = self.bench.books
        carried: dict[VNodeId, Resources] = {}
        for group in books.groups:
            for piece in group.pieces:
                if piece.vnode in books.ledger.vnodes:
                    vnode = VNodeId(str(piece.vnode))
                    assert piece.machine in (None, books.ledger.vnodes[vnode].machine)
                    carried[vnode] = carried.get(vnode, Resources()) + piece.resources
        own = {id: books.ledger.own(id) for id in books.ledger.vnodes}
        assert carried == {id: resources for id, resources in own.items() if resources}

    @invariant()
    def the_account_is_right(self) -> None:
        books = self.bench.books
        placed = {work.id for work in books.works if work.state is PLACED}
        assert placed == books.ledger.uses.keys()
        for work in books.works:
            if work.state is PLACED:
                piece = books.groups[work.group].pieces[work.bundle]
                assert piece.vnode == work.vnode == books.ledger.uses[work.id].vnode

    @invariant()
    def whoever_waits_will_be_served(self) -> None:
        """Every promised group has somebody for whom it will be made, every other a bundle."""
        books = self.bench.books
        for work in books.works:
            if work.state is not QUEUED:
                continue
            known = books.groups.get(work.group)
            if known is None:
                leaders = [w for w in books.works.on(work.group) if w.state is HELD]
                assert leaders, work
            else:
                bundles = known.pieces if work.bundle == ANY else [known.pieces[work.bundle]]
                assert any(
                    piece.vnode is not None and work.demand.fits(piece.resources)
                    for piece in bundles
                ), work


TestHistories = Histories.TestCase
