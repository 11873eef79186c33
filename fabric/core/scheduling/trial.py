"""The working copy of a snapshot: a round starts and stops members in it, and can take them back.

`checkpoint` and `rollback` bracket what may fail as a whole. What stays becomes the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .records import (
    Amounts,
    Decision,
    MachineIndex,
    Member,
    MoveMember,
    PoolStrategies,
    QueueIndex,
    Reason,
    Settings,
    StartMembers,
    StopMembers,
    Strategy,
    Workload,
    WorkloadId,
)
from .snapshot import SchedulingSnapshot, choose_gpus, take_gpus


@dataclass(frozen=True, slots=True)
class TrialMark:
    """How far a trial was."""

    changes: int
    decisions: int


@dataclass(frozen=True, slots=True)
class _Change:
    """A workload as it was, and the members that have left and taken places since."""

    before: Workload
    left: tuple[Member, ...]
    came: tuple[Member, ...]


class Trial:
    """A snapshot as it would be after the decisions so far."""

    def __init__(self, snapshot: SchedulingSnapshot, now: float, settings: Settings) -> None:
        self.snapshot, self.now, self.settings = snapshot, now, settings
        self.free = snapshot.free.copy()
        self.devices = None if snapshot.devices is None else snapshot.devices.copy()
        self.allocated = [list(each) for each in snapshot.allocated]
        self.guaranteed = [list(each) for each in snapshot.guaranteed]
        self.decisions: list[Decision] = []
        self.changes: list[MachineIndex] = []
        """The machines on which something has started or stopped, in turn."""
        self.paths = [snapshot.path(QueueIndex(i)) for i in range(len(snapshot.queues))]
        self._changed: dict[WorkloadId, Workload] = {}
        self._undo: list[_Change] = []
        self._gpu = snapshot.scale.gpu
        self._gpu_unit = 1 if self._gpu is None else snapshot.scale.units[self._gpu]

    def workload(self, id: WorkloadId) -> Workload:
        """A workload as it is now."""
        return self._changed.get(id) or self.snapshot.workloads[id]

    @property
    def changed(self) -> Sequence[WorkloadId]:
        """The workloads that differ from the snapshot."""
        return tuple(self._changed)

    def running(self, queue: QueueIndex) -> list[Workload]:
        """The workloads of a project that have members now."""
        ids = dict.fromkeys(self.snapshot.running.get(queue, ()))
        ids.update(dict.fromkeys(id for id, w in self._changed.items() if w.queue == queue))
        return [each for each in map(self.workload, ids) if each.members]

    def strategy(self, pool: str, request: Amounts) -> Strategy:
        """How a member that asks for this is placed."""
        placement = self.settings.placement.get(pool) or PoolStrategies()
        gpus = self._gpu is not None and request[self._gpu] > 0
        return placement.gpu if gpus else placement.cpu

    def checkpoint(self) -> TrialMark:
        return TrialMark(len(self._undo), len(self.decisions))

    def rollback(self, to: TrialMark) -> None:
        """Undo everything since a checkpoint."""
        while len(self._undo) > to.changes:
            change = self._undo.pop()
            self._set(change.before, left=change.came, came=change.left)
        del self.decisions[to.decisions :]

    def start(
        self, workload: Workload, placed: Sequence[tuple[int, MachineIndex]], reason: Reason
    ) -> None:
        """Start members, each of a part on a machine."""
        members = self._seat(workload, placed)
        self._change(workload, workload.started(members, self.now), came=members)
        self.decisions.append(StartMembers(workload=workload.id, members=members, reason=reason))

    def stop(
        self,
        workload: Workload,
        positions: tuple[int, ...],
        claimant: WorkloadId | None,
        reason: Reason,
    ) -> None:
        """Stop members."""
        gone = tuple(workload.members[at] for at in positions)
        self._change(workload, workload.stopped(positions, self.now), left=gone)
        self.decisions.append(
            StopMembers(
                workload=workload.id,
                positions=positions,
                members=gone,
                claimant=claimant,
                reason=reason,
            )
        )

    def put_back(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """Take a stop back, out of turn; no decision tells of it."""
        self._change(workload, workload.started(members, self.now), came=members)

    def lift(self, workload: Workload, position: int) -> None:
        """Free what a member holds, before `move` places it."""
        self._change(workload, workload, left=(workload.members[position],))

    def lower(self, workload: Workload, position: int) -> None:
        """Let a lifted member hold what it held, also where something else has taken that."""
        self._change(workload, workload, came=(workload.members[position],))

    def overfull(self, machine: MachineIndex) -> bool:
        """Whether more is held on a machine than it has."""
        gpus = None if self.devices is None else self.devices[machine]
        return bool((self.free[machine] < 0).any() or (gpus is not None and (gpus < 0).any()))

    def move(
        self,
        workload: Workload,
        position: int,
        machine: MachineIndex,
        claimant: WorkloadId,
        reason: Reason,
    ) -> None:
        """Place a lifted member on a machine."""
        source = workload.members[position]
        (target,) = self._seat(workload, [(source.part, machine)])
        self._change(workload, workload.moved(position, target), came=(target,))
        self.decisions.append(
            MoveMember(
                workload=workload.id,
                position=position,
                source=source,
                target=target,
                claimant=claimant,
                reason=reason,
            )
        )

    def _seat(
        self, workload: Workload, placed: Sequence[tuple[int, MachineIndex]]
    ) -> tuple[Member, ...]:
        if self.devices is None or self._gpu is None:
            return tuple([Member(part, machine) for part, machine in placed])
        pool = self.snapshot.queues[workload.queue].pool
        members = []
        for part, machine in placed:
            request = workload.gang.parts[part].request
            spread = self.strategy(pool, request) is Strategy.SPREAD
            gpus = choose_gpus(
                self.devices[machine], request[self._gpu], self._gpu_unit, spread=spread
            )
            member = Member(part, machine, gpus)
            take_gpus(self.devices, member, request[self._gpu], self._gpu_unit)
            members.append(member)
        for member in members:  # `_occupy` takes them for good
            asked = workload.gang.parts[member.part].request[self._gpu]
            take_gpus(self.devices, member, -asked, self._gpu_unit)
        return tuple(members)

    def _change(
        self,
        before: Workload,
        after: Workload,
        *,
        left: tuple[Member, ...] = (),
        came: tuple[Member, ...] = (),
    ) -> None:
        self._undo.append(_Change(before, left, came))
        self._set(after, left=left, came=came)

    def _set(self, after: Workload, *, left: tuple[Member, ...], came: tuple[Member, ...]) -> None:
        before = self.workload(after.id)
        for member in left:
            self._occupy(before, member, -1)
        for member in came:
            self._occupy(after, member, 1)
        self._changed[after.id] = after
        more = len(after.members) - len(before.members)
        if not more:
            return
        sign, differing = (1, came) if more > 0 else (-1, left)
        for member in differing:
            request = after.gang.parts[member.part].request
            for queue in self.paths[after.queue]:
                _add(self.allocated[queue], request, sign)
                if not after.preemptible:
                    _add(self.guaranteed[queue], request, sign)

    def _occupy(self, workload: Workload, member: Member, sign: int) -> None:
        request = workload.gang.parts[member.part].request
        self.changes.append(member.machine)
        row = self.free[member.machine]
        for i, amount in enumerate(request):
            if amount:
                row[i] -= sign * amount
        if self.devices is not None and self._gpu is not None:
            take_gpus(self.devices, member, sign * request[self._gpu], self._gpu_unit)


def _add(total: list[int], amounts: Amounts, sign: int) -> None:
    for i, amount in enumerate(amounts):
        total[i] += sign * amount
