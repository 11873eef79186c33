"""Bench: a router with cluster state and no Ray, as the manager uses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from fedpilot.fabric import Resources, SchedulingPolicy, VNodeId
from fedpilot.fabric.core.cluster_state import ClusterState
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.borrowing import give_back
from fedpilot.fabric.core.places.groups import (
    Either,
    GroupId,
    PlacementGroupRecord,
    Rebundling,
    Stuck,
    groups_for,
    rebundle,
)
from fedpilot.fabric.core.places.nomination import Admit, DoesNotFit, apply, place, refill
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
from fedpilot.fabric.core.routing.work import Work, WorkState
from fedpilot.fabric.core.selectors import Selector
from fedpilot.fabric.manager.routing.messages import Ask
from fedpilot.fabric.manager.routing.router import Router
from fedpilot.fabric.manager.settings import KeeperSettings
from fedpilot.fabric.testing.fake_cluster import ManualClock, fake_machine

PLACED, QUEUED, HELD = WorkState.PLACED, WorkState.QUEUED, WorkState.HELD


class Bench:
    """A router with cluster state and no Ray: what it orders is done at once."""

    def __init__(self, **machines: int) -> None:
        self.clock = ManualClock()
        there = (fake_machine(id, {NODE_LABEL: id}, CPU=n) for id, n in machines.items())
        self.state = ClusterState(Ledger(there))
        self.settings = KeeperSettings()
        self.router = Router(self, self.clock)
        self.ids = count()
        self.in_use: frozenset[GroupId] = frozenset()
        self.ordered: list[Rebundling] = []
        self.requests: dict[ClusterId, Request] = {}

    def is_set(self, **settings: Any) -> None:
        """The manager has these settings from now on."""
        self.settings = KeeperSettings(**settings)
        self.router = Router(self, self.clock)

    def cut(
        self, ledger: Ledger, vnodes: Iterable[VNodeId], given: Mapping[VNodeId, Resources]
    ) -> Rebundling | Stuck:
        busy = Either(self.state.works.busy, self.in_use)
        return rebundle(ledger, self.state.groups, vnodes, self.new_id, busy=busy, given=given)

    def order(self, cut: Rebundling) -> None:
        self.ordered.append(cut)
        self.state.groups.apply(cut)

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
    ) -> DoesNotFit | Stuck | None:
        """Let a virtual cluster in, as the reconciler does, or say why not."""
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
        refused = self._take_places(place(self.state.ledger, request))
        if refused is None:
            self.requests[request.id] = request
        return refused

    def _take_places(self, found: Admit | DoesNotFit) -> DoesNotFit | Stuck | None:
        if isinstance(found, DoesNotFit):
            return found
        pinned = found.request.id in self.state.ledger.clusters
        twin = self.state.ledger.copy()
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
        apply(self.state.ledger, found, self.due())
        self.order(Rebundling(cut.remove, (*fixed_groups, *cut.make)))
        return None

    def end(self, name: str) -> None:
        """A virtual cluster ends with all inside it, and its places go back."""
        ledger, groups = self.state.ledger, self.state.groups
        ended = ledger.subtree(ClusterId(name))
        above = {VNodeId(vnode.parent) for each in ended for vnode in ledger.of(each)}
        for each in ended:
            self.router.end(each)
        ledger.end(ClusterId(name))
        for each in ended:
            for group in groups.of_cluster(each):
                groups.drop(group.id)
        cut = self.cut(ledger, above & ledger.vnodes.keys(), {})
        assert isinstance(cut, Rebundling), cut
        self.order(cut)
        self.router.serve()

    def lose(self, machine: MachineId) -> None:
        """A machine dies. What carried its vnodes goes, but where Ray looks for other places."""
        lost = {vnode.id for vnode in self.state.ledger.machine_down(machine)}
        self.router.lost(lost)
        for group in list(self.state.groups):
            if group.movable or not group.vnodes & lost:
                continue
            pieces = tuple(replace(p, vnode=None) if p.vnode in lost else p for p in group.pieces)
            self.state.groups.drop(group.id)
            if any(piece.vnode for piece in pieces):
                self.state.groups.put(replace(group, pieces=pieces))

    def repair(self) -> None:
        """Ray and the reconciler find other places for what was lost, where there is room."""
        ledger = self.state.ledger
        lost = [
            (group, piece.vnode, piece.resources)
            for group in self.state.groups
            for piece in group.pieces
            if group.movable and piece.vnode is not None and piece.vnode not in ledger.vnodes
        ]
        for group, id, resources in lost:
            room = (host for host in ledger.machines if resources.fits(ledger.free(host)))
            if host := next(room, None):
                ledger.add(_vnode(group, id, resources, host))
        movable = {vnode for g in self.state.groups if g.movable for vnode in g.vnodes}
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
        give_back(self.state.ledger, self.clock(), self._recut)
        self.router.serve()

    def _recut(self, ledger: Ledger, vnodes: frozenset[VNodeId]) -> bool:
        cut = self.cut(ledger, vnodes, {})
        if isinstance(cut, Rebundling):
            self.order(cut)
        return isinstance(cut, Rebundling)

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
        return self.state.works[work.id]


def _vnode(
    group: PlacementGroupRecord, id: VNodeId, resources: Resources, host: MachineId
) -> VNode:
    return VNode(id=id, cluster=group.cluster, parent=host, machine=host, resources=resources)


def cpus(amount: float) -> Resources:
    return Resources.of({"CPU": amount})
