"""Which claimant finds places that are free now, so that its victims need not leave. Pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import numpy as np

from ...core.cluster_state import ClusterState, Entry
from ...core.records import ClusterId, MachineId, VNode, VNodeId
from ...core.resources import Resources
from ...core.scheduling.node_choice import Machines, NoPlaces
from ...core.scheduling.records import Amounts, Member, PoolStrategies, Strategy
from ...core.scheduling.snapshot import SchedulingSnapshot
from ...spec.queues import DEFAULT_POOL
from .asked import asked_anew, down, up
from .live_facts import LiveFacts
from .promises import idle_of, leaving_for, promised


def first_spared(
    state: ClusterState,
    facts: LiveFacts,
    snapshot: SchedulingSnapshot,
    *,
    stuck: Container[VNodeId] = (),
    but: Collection[ClusterId] = (),
) -> tuple[Entry, tuple[VNode, ...]] | None:
    """The first waiting claimant that needs none of its victims' places, and its new places.

    These are free now, or once idle loans are returned (not those of `stuck` vnodes), and promised
    to no other. A claimant is passed over if the promise to another one counts on its victims, or
    if it is among `but`. None where shares of GPUs are counted: what a victim keeps is not known by
    GPU. `snapshot` is one of `facts`: all victims have left, and all claimants have their promised
    places.
    """
    claimants = [each for each in promised(state) if each.waiting and each.request.id not in but]
    victims = leaving_for(state)
    if not (claimants and victims) or snapshot.devices is not None:
        return None
    search = _Search(state, facts, snapshot, stuck)
    for each in claimants:
        id = each.request.id
        movers = [state.entries[one] for one in state.index.moving if state.entries[one].relocates]
        mine = [v for e in movers if e.leaves and e.leaves.claimant == id for v in e.promised]
        if found := search.places(each, victims.get(id, ()), mine):
            return each, found
    return None


class _Search:
    """Free places of one snapshot."""

    def __init__(
        self,
        state: ClusterState,
        facts: LiveFacts,
        snapshot: SchedulingSnapshot,
        stuck: Container[VNodeId],
    ) -> None:
        self._ledger, self._facts, self._snapshot = state.ledger, facts, snapshot
        self._stuck = stuck
        self._index = {id: row for row, id in enumerate(facts.machines)}
        self._machines = Machines(snapshot)
        idle = _idle_loans(state, stuck)
        self._now = snapshot.free.copy()  # right but where virtual clusters come and go
        for id in _machines_of(state, state.index.moving) & self._index.keys():
            free = self._ledger.free(id) + idle.get(id, Resources())
            self._now[self._index[id]] = down(free, snapshot.scale)

    def places(
        self, claimant: Entry, victims: Sequence[VNode], elsewhere: Sequence[VNode] = ()
    ) -> tuple[VNode, ...]:
        """Places for all that a claimant asks for if its victims stay, and so need nothing
        `elsewhere`; empty if there are none."""
        request, scale = claimant.request, self._snapshot.scale
        free, stay = self._snapshot.free.copy(), set[int]()
        for vnode in (*claimant.promised, *elsewhere):
            if vnode.machine in self._index:
                free[self._index[vnode.machine]] += up(vnode.resources, scale)
        for vnode in victims:
            own = vnode.resources - idle_of(vnode, self._ledger, self._stuck)
            free[self._index[vnode.machine]] -= up(own, scale)
            stay.add(self._index[vnode.machine])
        if (free[[*stay]] < 0).any():
            return ()  # others are promised what the victims leave
        free = np.minimum(free, self._now)
        asked = asked_anew(request.groups, request.least, scale)
        least = [part.least for part in asked.gang.parts]
        if (free.clip(0).sum(axis=0) < np.array(asked.gang.least)).any():
            return ()
        pool = request.pool or DEFAULT_POOL
        found = self._machines.choose(
            pool, asked.gang, least, [], free=free, devices=None, strategy=self._strategy
        )
        if isinstance(found, NoPlaces):
            return ()
        members = [Member(part, machine) for part, machine in found]
        return tuple(asked.vnodes(self._ledger, request, members, self._facts.machines))

    def _strategy(self, pool: str, amounts: Amounts) -> Strategy:
        gpu = self._snapshot.scale.gpu
        placement = self._facts.settings.placement.get(pool) or PoolStrategies()
        return placement.gpu if gpu is not None and amounts[gpu] else placement.cpu


def _machines_of(state: ClusterState, moving: Iterable[ClusterId]) -> set[MachineId]:
    """The machines where these are, and those where they are promised places."""
    entries = [state.entries[id] for id in moving]
    return {v.machine for e in entries for v in (*state.ledger.of(e.request.id), *e.promised)}


def _idle_loans(state: ClusterState, stuck: Container[VNodeId]) -> Mapping[MachineId, Resources]:
    """What machines have back once the loans that are not in use are returned."""
    ledger = state.ledger
    found: dict[MachineId, Resources] = {}
    for loan in ledger.loans():
        vnode = ledger.vnodes[loan.vnode]
        if vnode.parent == vnode.machine and ledger.unused(loan) and loan.vnode not in stuck:
            found[vnode.machine] = found.get(vnode.machine, Resources()) + loan.resources
    return found
