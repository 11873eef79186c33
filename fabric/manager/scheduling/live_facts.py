"""LiveFacts: the manager's state as the scheduler's facts, kept up to date by what changed.

They show the cluster as it will be once all notices are carried out: a virtual cluster under notice
is not in them, and one that is promised places runs on them, also if it leaves others. So no plan
decides a second time what another one has decided. What is borrowed and idle counts as free. What
is borrowed and in use is surplus of its virtual cluster if work in that may be stopped. Otherwise
it lessens its machine, as work outside of all virtual clusters does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.cluster_state import ClusterState, Entry
from ...core.places.gpus import free_gpus
from ...core.places.placement import GPU
from ...core.records import DEFAULT, ROOT, ClusterId, Machine, MachineId, VNode, VNodeId
from ...core.resources import UNIT, Resources
from ...core.scheduling.fairshare import capacity_by_pool
from ...core.scheduling.records import Decision, MachineIndex, Settings, Workload, WorkloadId
from ...core.scheduling.snapshot import Array, Facts, MachineSpec, Scale, SchedulingSnapshot
from ...spec.queue_table import QueueTable
from ...spec.queues import DEFAULT_POOL, DEFAULT_PROJECT
from .asked import Asked, asked_anew, asked_by, asks_for_share, down
from .live_usage import LiveUsage, Spans
from .queue_book import AppliedQueues

ALWAYS = ("CPU", "GPU", "memory")
"""The resources that a plan counts even if nothing asks for them."""
PRIORITIES = 1 << 40
"""A place in line is by `--priority`, then by age: more than any number of requests."""


class LiveFacts:
    """The facts of one Ray cluster under one file of queues."""

    def __init__(
        self, state: ClusterState, queues: AppliedQueues, usage: LiveUsage | None = None
    ) -> None:
        self._state = state
        self.queues = queues
        self.usage = usage if queues.file.settings.usage_effect else None
        """What queues have held; None unless their shares look back."""
        self._changed: set[ClusterId] | None = None
        """The virtual clusters to look at again; None: all there is."""
        self._machines_changed = False
        self._known: dict[MachineId, Machine] = {}
        """The machines as they were at the last refresh."""
        self._facts: Facts
        self._scale: Scale
        self._table: QueueTable
        self._index: dict[MachineId, MachineIndex] = {}
        self._outside: dict[MachineId, Resources] = {}
        self._lent: dict[VNodeId, Resources] = {}
        """What flexible vnodes borrowed, use, and may lose."""
        self._parents: frozenset[ClusterId] = frozenset()
        """The virtual clusters with others inside, which would end if they moved."""
        self._classes = queues.table(Scale.of({}))
        self._resting: frozenset[ClusterId] = frozenset()
        self._expected: frozenset[ClusterId] = frozenset()
        self._shares = False
        """Whether some ask for a share of a GPU, so that each GPU is counted by itself."""
        self.asked: dict[ClusterId, Asked] = {}
        self.machines: tuple[MachineId, ...] = ()
        """By machine index."""

    @property
    def settings(self) -> Settings:
        """Those of the file."""
        return self._table.settings

    @property
    def table(self) -> QueueTable:
        """The queues, by their index."""
        return self._table

    def account(self, now: float) -> None:
        """Count what the queues have held, as of the last refresh, as their usage."""
        if self.usage is not None and self._changed is not None:
            half_life_s = self.queues.file.settings.usage_half_life_s
            held = self._facts.allocated()
            self.usage.until(now, self._table.queues, self._scale, held, half_life_s)

    def spans(self) -> Spans | None:
        """What the queues have held on average; None unless their shares look back."""
        if self.usage is None:
            return None
        half_life_s = self.queues.file.settings.usage_half_life_s
        return self.usage.spans(self._table.queues, self._scale, half_life_s)

    def look(self) -> bool:
        """Note what has changed since the state was last saved; whether anything has."""
        pending, entries = self._state.ledger.pending, self._state.changed_entries
        if pending.machines and self._state.ledger.machines != self._known:
            self._machines_changed = True
        if self._changed is not None:
            self._changed |= entries
            self._changed |= pending.clusters
            self._changed.update(_cluster_of(id) for id in pending.vnodes)
        return bool(pending.machines or pending.clusters or pending.vnodes or entries)

    def refresh(
        self,
        now: float,
        *,
        resting: Collection[ClusterId] = (),
        stale_since: Mapping[ClusterId, float] = {},
        expected: Mapping[ClusterId, Sequence[VNode]] = {},
        stuck: Container[VNodeId] = (),
    ) -> Facts:
        """The facts as they are now.

        `resting` may not try again yet; `stale_since` says since when some lack nodes, and
        `expected` which of these will be where, since Ray itself finds machines for them. The idle
        loans of `stuck` vnodes could not be returned.
        """
        self.look()
        ledger, entries = self._state.ledger, self._state.entries
        outside, lent = self._in_use(stuck)
        if self._changed is None or self._outgrown(self._changed) or self._is_out_of_scale():
            self._begin(outside)
            changed: Iterable[ClusterId] = [*entries]
        else:
            differ = (
                _cluster_of(id) for id in {*lent, *self._lent} if lent.get(id) != self._lent.get(id)
            )
            inside = ledger.parents ^ self._parents
            some = (self._resting, resting, stale_since, self._expected, expected, differ, inside)
            changed = [*self._changed, *itertools.chain.from_iterable(some)]
            if self._machines_changed:
                changed += self._set_machines(outside)
            self._set_outside(outside)
        self._changed, self._machines_changed, self._lent = set(), False, lent
        self._parents = ledger.parents
        self._resting, self._expected = frozenset(resting), frozenset(expected)
        for id in dict.fromkeys(changed):
            if WorkloadId(id) in self._facts.workloads:
                self._facts.remove(WorkloadId(id))
            self.asked.pop(id, None)
            entry = entries.get(id)
            if entry is None:
                continue
            if self._counts(entry, resting):
                self._add(entry, expected.get(id, ()), stale_since.get(id, now))
        if (spans := self.spans()) is not None:
            half_life_s = self.queues.file.settings.usage_half_life_s
            capacity = capacity_by_pool(self._facts.fleet, self._facts.ready)
            self._facts.set_usage(spans.parts(self._table.queues, capacity, half_life_s))
        return self._facts

    def unchanged(
        self, since: Mapping[ClusterId, Asked], machines: Sequence[MachineId]
    ) -> Callable[[ClusterId], bool]:
        """Whether a virtual cluster is as it was when `asked` and `machines` were so."""
        self.look()
        changed = self._changed
        if changed is None or self._machines_changed or self.machines is not machines:
            return lambda _: False
        return lambda id: id not in changed and self.asked.get(id) == since.get(id)

    def apply(self, decision: Decision, now: float) -> None:
        """Make a decision true, to look ahead; then these facts are not those of the state."""
        self._facts.apply(decision, now)

    def snapshot(self, fragmented: Collection[MachineId] = ()) -> SchedulingSnapshot:
        """The facts, as of the last refresh; Ray has refused shares of GPUs on some machines."""
        found = self._facts.snapshot()
        known = [id for id in fragmented if id in self._index]
        if found.devices is None or not known:
            return found
        devices: Array = found.devices.copy()
        for machine, gpus in free_gpus(self._state.ledger, known, fragmented).items():
            row = self._index[MachineId(machine)]
            devices[row] = 0
            devices[row, : len(gpus)] = sorted(gpus, reverse=True)
        return replace(found, devices=devices)

    def _counts(self, entry: Entry, resting: Collection[ClusterId]) -> bool:
        """Whether a virtual cluster is in the facts."""
        if entry.request.parent != ROOT or (entry.leaves is not None and not entry.relocates):
            return False
        idle = entry.waiting and not entry.promised
        return not (idle and entry.request.id in resting)

    def anew(self, entry: Entry) -> Workload:
        """A virtual cluster under notice as it will wait once it has left."""
        request = entry.request
        return self._workload(entry, asked_anew(request.groups, request.least, self._scale))

    def _add(self, entry: Entry, expected: Sequence[VNode], stale: float) -> None:
        asked = asked_by(
            entry,
            expected,
            self._state.ledger,
            self._scale,
            self._index,
            grows=not entry.waiting and entry.request.id not in self._resting,
            lent=self._lent,
        )
        self.asked[entry.request.id] = asked
        found, since = self._workload(entry, asked), entry.since or entry.asked_at
        if not (asked.gang.size or asked.members):
            return
        if asked.members:
            found = found.started(asked.members, since)
            if found.stale_since_s is not None:
                found = found._replace(stale_since_s=stale, waits_since_s=since)
            if not self._may_move(entry) or found.stale_since_s is not None or expected:
                found = found._replace(movable=False)
        else:
            found = found._replace(waits_since_s=since)
        self._facts.add(found)

    def _workload(self, entry: Entry, asked: Asked) -> Workload:
        request = entry.request
        priority, preemptible = self._table.priority_and_preemptible(
            request.priority_class, 0, request.preemptible
        )
        return Workload(
            id=WorkloadId(request.id),
            queue=self._table.index(
                request.project or DEFAULT_PROJECT, request.pool or DEFAULT_POOL
            ),
            gang=asked.gang,
            priority=priority,
            preemptible=preemptible,
            submit_order=self._state.order[request.id] - PRIORITIES * request.priority,
            surplus_yields=request.elastic and not self.queues.file.stops,
        )

    def _may_move(self, entry: Entry) -> bool:
        """Whether it can go on elsewhere: it has settled, with nothing in it that would end, and
        Ray places it where the plan says."""
        known = not self._shares and entry.group is None
        return known and not (entry.moves or entry.waiting or entry.request.id in self._parents)

    def _in_use(
        self, stuck: Container[VNodeId]
    ) -> tuple[dict[MachineId, Resources], dict[VNodeId, Resources]]:
        """What virtual clusters do not have of each machine; and what some of them borrowed, use,
        and may lose. A loan under notice is neither."""
        ledger, entries = self._state.ledger, self._state.entries
        outside = {vnode.machine: vnode.resources for vnode in ledger.of(DEFAULT)}
        lent = dict[VNodeId, Resources]()
        for loan in ledger.loans():
            vnode = ledger.vnodes[loan.vnode]
            if vnode.parent != vnode.machine or (ledger.unused(loan) and vnode.id not in stuck):
                continue
            entry = entries.get(vnode.cluster)
            if entry is None or not self._may_be_stopped(entry, loan.resources):
                outside[vnode.machine] = outside.get(vnode.machine, Resources()) + loan.resources
            elif entry.leaves is None and all(each.node != vnode.id for each in entry.nodes_leave):
                lent[vnode.id] = lent.get(vnode.id, Resources()) + loan.resources
        return outside, lent

    def _may_be_stopped(self, entry: Entry, lent: Resources) -> bool:
        """Whether work on a loan may be stopped; a loan of GPUs and of a share of one counts apart,
        since no member has both."""
        request = entry.request
        given = request.priority_class, 0, request.preemptible
        mixed = lent[GPU] > UNIT and lent[GPU] % UNIT
        return self._classes.priority_and_preemptible(*given)[1] and not mixed

    def _outgrown(self, changed: Iterable[ClusterId]) -> bool:
        """Whether a request names a resource, or a share of a GPU, that is not counted."""
        entries = self._state.entries
        requests = [entries[id].request for id in changed if id in entries]
        names = {name for each in requests for name, _ in each.needs.units}
        shares = any(map(asks_for_share, requests))
        return not names <= {*self._scale.names} or (shares and not self._shares)

    def _is_out_of_scale(self) -> bool:
        """Whether machines that came or went change the units in which a resource is counted."""
        return self._machines_changed and _scale_of(self._state, self._scale.names) != self._scale

    def _set_machines(self, outside: dict[MachineId, Resources]) -> list[ClusterId]:
        """Machines have come, gone or changed; which virtual clusters to look at again."""
        self._known = dict(self._state.ledger.machines)
        machines = tuple(sorted(self._known))
        lost = self._facts.set_machines(self._specs(machines, outside))
        self.machines, self._outside = machines, outside
        before = {number: id for id, number in self._index.items()}
        self._index = {id: MachineIndex(i) for i, id in enumerate(machines)}
        moved = {number: self._index.get(id) for number, id in before.items()}
        if any(number != new for number, new in moved.items()):
            for id, asked in self.asked.items():
                if asked.members:
                    self.asked[id] = asked.moved(moved)
        # What is promised may be on a machine that was gone, and is back.
        return [*map(ClusterId, lost), *self._state.index.moving]

    def _specs(
        self, machines: Sequence[MachineId], outside: Mapping[MachineId, Resources]
    ) -> list[MachineSpec]:
        file, known = self.queues.file, self._state.ledger.machines
        return [
            MachineSpec(
                name=id,
                pool=file.pools_of(known[id].labels)[0],
                capacity=down(self._inside(id, outside), self._scale),
                labels=known[id].labels,
            )
            for id in machines
        ]

    def _begin(self, outside: dict[MachineId, Resources]) -> None:
        """Make the facts anew, without any workload."""
        ledger = self._state.ledger
        requests = [each.request for each in self._state.entries.values()]
        self._scale = scale_of(self._state, self.queues.file.resources)
        self._table = self.queues.table(self._scale)
        self._shares = any(map(asks_for_share, requests))
        self._outside = outside
        self._resting = frozenset()
        self._known = dict(ledger.machines)
        self.machines = tuple(sorted(self._known))
        self._index = {id: MachineIndex(i) for i, id in enumerate(self.machines)}
        self.asked = {}
        self._facts = Facts(
            self._scale,
            self._specs(self.machines, outside),
            self._table.queues,
            each_gpu=self._shares,
        )

    def _inside(self, machine: MachineId, outside: Mapping[MachineId, Resources]) -> Resources:
        """What a machine has for virtual clusters."""
        total = self._state.ledger.machines[machine].total
        return total.beyond(outside[machine]) if machine in outside else total

    def _set_outside(self, outside: dict[MachineId, Resources]) -> None:
        """Count anew what virtual clusters do not have of the machines."""
        for machine in {*outside, *self._outside}:
            if outside.get(machine) != self._outside.get(machine) and machine in self._index:
                capacity = down(self._inside(machine, outside), self._scale)
                self._facts.set_capacity(self._index[machine], capacity)
        self._outside = outside


def scale_of(state: ClusterState, names: Iterable[str]) -> Scale:
    """The resources that a plan counts: these, those that are asked for, and the usual ones."""
    asked = (name for e in state.entries.values() for name, _ in e.request.needs.units)
    return _scale_of(state, {*ALWAYS, *names, *asked})


def _scale_of(state: ClusterState, names: Collection[str]) -> Scale:
    """These resources, in units that suit what all machines have together."""
    totals = dict.fromkeys(names, 0)
    for machine in state.ledger.machines.values():
        for name, amount in machine.total.units:
            if name in totals:
                totals[name] += amount
    return Scale.of({name: amount / UNIT for name, amount in totals.items()})


def _cluster_of(vnode: str) -> ClusterId:
    """The virtual cluster of a vnode, whose id begins with its name."""
    return ClusterId(vnode.partition("/")[0].partition("@")[0])
