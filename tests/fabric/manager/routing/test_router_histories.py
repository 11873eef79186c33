"""Work inside virtual clusters runs or will be served, after any history."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedpilot.fabric import Resources, SchedulingPolicy, TooLarge, VNodeId
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.core.records import ROOT, MachineId
from fedpilot.fabric.core.routing.scheduling import ANY
from fedpilot.fabric.testing.fake_cluster import fake_machine
from router_bench import HELD, PLACED, QUEUED, Bench


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
        return sorted(self.bench.state.ledger.clusters)

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
        known = sorted(work.id for work in self.bench.state.works)
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
        state = self.bench.state
        lost: MachineId = data.draw(st.sampled_from(sorted(state.ledger.machines)))
        self.bench.lose(lost)
        self.made += 1
        state.ledger.machine_up(fake_machine(f"m{self.made}", CPU=cpus))
        if repaired:
            self.bench.repair()
        self.bench.router.serve()

    @rule()
    def what_was_lost_is_found_room_for(self) -> None:
        self.bench.repair()

    @invariant()
    def nothing_is_over_capacity(self) -> None:
        state = self.bench.state
        assert not broken(state.ledger)
        for (group, bundle), load in state.works.load.items():
            assert load.fits(state.groups[group].pieces[bundle].resources)

    @invariant()
    def vnodes_are_carried_by_just_what_is_their_own(self) -> None:
        state = self.bench.state
        carried: dict[VNodeId, Resources] = {}
        for group in state.groups:
            for piece in group.pieces:
                if piece.vnode in state.ledger.vnodes:
                    vnode = VNodeId(str(piece.vnode))
                    assert piece.machine in (None, state.ledger.vnodes[vnode].machine)
                    carried[vnode] = carried.get(vnode, Resources()) + piece.resources
        own = {id: state.ledger.own(id) for id in state.ledger.vnodes}
        assert carried == {id: resources for id, resources in own.items() if resources}

    @invariant()
    def the_account_is_right(self) -> None:
        state = self.bench.state
        placed = {work.id for work in state.works if work.state is PLACED}
        assert placed == state.ledger.uses.keys()
        for work in state.works:
            if work.state is PLACED:
                piece = state.groups[work.group].pieces[work.bundle]
                assert piece.vnode == work.vnode == state.ledger.uses[work.id].vnode

    @invariant()
    def whoever_waits_will_be_served(self) -> None:
        """Every promised group has somebody for whom it will be made, every other a bundle."""
        state = self.bench.state
        for work in state.works:
            if work.state is not QUEUED:
                continue
            known = state.groups.get(work.group)
            if known is None:
                leaders = [w for w in state.works.on(work.group) if w.state is HELD]
                assert leaders, work
            else:
                bundles = known.pieces if work.bundle == ANY else [known.pieces[work.bundle]]
                assert any(
                    piece.vnode is not None and work.demand.fits(piece.resources)
                    for piece in bundles
                ), work


TestHistories = Histories.TestCase
