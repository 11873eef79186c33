"""A ledger, its groups and its file add up after any history."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle as Names, RuleBasedStateMachine, invariant, multiple, rule

from fedpilot.fabric import Bundle, Machine, MachineId, Resources, SchedulingPolicy, VNodeId
from fedpilot.fabric.core.cluster_state import ClusterState, Entry
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.admission import Expire, QueuedAt, decide
from fedpilot.fabric.core.places.borrowing import Growth, borrow, find_growth, give_back
from fedpilot.fabric.core.places.groups import GroupId, Rebundling, groups_for, rebundle
from fedpilot.fabric.core.places.nomination import Admit, apply
from fedpilot.fabric.core.places.request import QueuePolicy, Request
from fedpilot.fabric.core.records import (
    ROOT,
    BundleGroup,
    ClusterId,
    Use,
    VNodeKind,
    WorkId,
    flexible_id,
)
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.manager.files.ledger_file import LedgerFile
from fedpilot.fabric.testing.fake_cluster import fake_machine
from ledgers import STRICT_PACK, STRICT_SPREAD, contents

amounts = st.integers(1, 8 * UNIT).map(lambda units: Resources((("CPU", units),)))

several = st.dictionaries(st.sampled_from(["CPU", "disk"]), st.integers(1, 6), min_size=1).map(
    lambda found: Resources.of(found)
)

demands = amounts | several

policies = st.sampled_from(SchedulingPolicy)

groups = st.builds(
    BundleGroup,
    bundles=st.lists(demands.map(lambda each: Bundle(resources=each)), min_size=1, max_size=3).map(
        tuple
    ),
    policy=policies,
)

machine_resources = st.fixed_dictionaries(
    {"CPU": st.integers(0, 8), "disk": st.integers(0, 8)}
).map(lambda found: Resources.of(found))


class Histories(RuleBasedStateMachine):
    """Clusters, work, loans and machines come and go in any order."""

    names = Names("names")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger([fake_machine("m0", CPU=8, disk=4), fake_machine("m1", CPU=4)])
        self.now = 0.0
        self.made = 0
        self.waiting: list[Request] = []
        self.file = LedgerFile(None)
        self.state = ClusterState(self.ledger)
        self.ids = count()

    @rule(
        target=names,
        parent=names | st.just(ROOT),
        asked=st.lists(groups, max_size=2).map(tuple),
        least=demands | st.just(Resources()),
        more=st.none() | st.integers(0, 4 * UNIT),
        priority=st.integers(0, 2),
        patience=st.none() | st.integers(0, 5),
    )
    def ask(
        self,
        parent: ClusterId,
        asked: tuple[BundleGroup, ...],
        least: Resources,
        more: int | None,
        priority: int,
        patience: int | None,
    ) -> Any:
        if parent != ROOT and parent not in self.ledger.clusters:
            return multiple()
        self.made += 1
        request = Request(
            id=ClusterId(f"c{self.made}"),
            parent=parent,
            groups=asked,
            least=least,
            limits={} if more is None else {"CPU": least["CPU"] + more},
            flexible=bool(least) or more is not None,
            priority=priority,
            deadline=None if patience is None else self.now + patience,
        )
        self.waiting.append(request)
        return request.id

    @rule(policy=st.sampled_from(QueuePolicy))
    def admit(self, policy: QueuePolicy) -> None:
        alive = {ROOT, *self.ledger.clusters}
        self.waiting = [each for each in self.waiting if each.parent in alive]
        left = []
        for decision in decide(self.ledger, self.waiting, self.now, policy):
            match decision:
                case Admit(request):
                    apply(self.ledger, decision, self.now + 2)
                    self.holds_what_it_asked(request)
                    for group in groups_for(decision, self.new_id):
                        self.state.groups.put(group)
                case QueuedAt(request):
                    left.append(request)
                case Expire(request):
                    assert request.deadline is not None
        self.waiting = [each for each in self.waiting if each in left]  # as they asked

    def holds_what_it_asked(self, request: Request) -> None:
        mine = self.ledger.of(request.id)
        asked = sorted(b.resources.units for g in request.groups for b in g.bundles)
        fixed = [each for each in mine if each.kind is VNodeKind.FIXED]
        assert sorted(each.resources.units for each in fixed) == asked
        assert self.ledger.flexible_total(request.id) == request.least
        by_id = {each.id: each for each in fixed}
        index = 0
        for each in request.groups:
            ids = [VNodeId(f"{request.id}/{index + i}") for i in range(len(each.bundles))]
            places = {by_id[id].parent for id in ids}
            index += len(ids)
            if each.policy is STRICT_SPREAD:
                assert len(places) == len(ids)
            if each.policy is STRICT_PACK:
                assert len(places) == 1

    @rule(name=names, demand=demands, lease=st.integers(0, 4))
    def work(self, name: ClusterId, demand: Resources, lease: int) -> None:
        if name not in self.ledger.clusters:
            return
        found = find_growth(self.ledger, name, demand)
        if isinstance(found, Growth):
            borrow(self.ledger, found, self.now + lease)
            self.made += 1
            use = Use(vnode=flexible_id(name, found.machine), resources=demand)
            self.ledger.start(WorkId(f"w{self.made}"), use)

    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        if self.ledger.uses:
            self.ledger.stop(data.draw(st.sampled_from(sorted(self.ledger.uses))))

    @rule(name=names)
    def end(self, name: ClusterId) -> None:
        if name in self.ledger.clusters:
            self.ledger.end(name)

    @rule(passed=st.integers(1, 3))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        give_back(self.ledger, self.now)
        for loan in self.ledger.loans():
            idle = loan.resources.fits(self.ledger.free(loan.vnode))
            assert loan.until > self.now or not idle

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if len(self.ledger.machines) > 1:
            lost = data.draw(st.sampled_from(sorted(self.ledger.machines)))
            self.ledger.machine_down(lost)

    @rule(resources=machine_resources)
    def find(self, resources: Resources) -> None:
        self.made += 1
        id = MachineId(f"m{self.made}")
        self.ledger.machine_up(Machine(id=id, hostname=str(id), total=resources))

    @invariant()
    def all_rules_hold(self) -> None:
        assert not broken(self.ledger)

    @invariant()
    def the_groups_carry_the_vnodes(self) -> None:
        ledger, groups = self.ledger, self.state.groups
        known = {vnode for group in groups for vnode in group.vnodes}
        cut = rebundle(ledger, groups, {*known, *ledger.vnodes}, self.new_id)
        assert isinstance(cut, Rebundling)
        groups.apply(cut)
        carried: dict[VNodeId, Resources] = {}
        for group in groups:
            for piece in group.pieces:
                assert piece.vnode is not None
                assert group.cluster == ledger.vnodes[piece.vnode].cluster
                there = carried.get(piece.vnode, Resources())
                carried[piece.vnode] = there + piece.resources
        assert carried == {id: own for id in ledger.vnodes if (own := ledger.own(id))}
        again = rebundle(ledger, groups, ledger.vnodes, self.new_id)
        assert again == Rebundling((), ())

    def new_id(self, _: ClusterId) -> GroupId:
        return GroupId(f"g{next(self.ids)}")

    @invariant()
    def the_file_says_the_same(self) -> None:
        asked = [each.id for each in self.waiting]
        for request in self.waiting:
            if request.id not in self.state.entries:
                self.state.add(Entry(request=request))
        for id in list(self.state.entries):
            if id not in asked:
                self.state.remove(id)
        self.file.save(self.state)
        found = self.file.load()
        assert contents(found.ledger) == contents(self.ledger)
        assert [each.request for each in found.in_order(found.index.waiting)] == self.waiting
        assert {g.id: g for g in found.groups} == {g.id: g for g in self.state.groups}

    def teardown(self) -> None:
        self.file.close()
        ledger = self.ledger
        for cluster in ledger.children(ROOT):
            ledger.end(cluster)
        assert not broken(ledger)
        assert not ledger.clusters
        assert not ledger.vnodes
        assert not ledger.uses
        assert not ledger.loans()
        assert all(ledger.free(id) == machine.total for id, machine in ledger.machines.items())


TestHistories = Histories.TestCase
