"""Finds the members to stop for a claimant: as few as possible, in the right order, all or nothing.

A unit stops as a whole: one surplus member, or all that a workload has at its minimum. Of a queue,
surplus goes first (seed 001: created last, stopped first), then the lowest priority, then the
youngest. Two searches know different things, and the one that stops less wins:

* `_in_order` takes units in that order until the claimant fits, and then puts back what was not
  needed;
* `_by_machine` clears machine after machine, where least is stopped. A gang that needs whole
  machines needs this one, since the youngest work lies scattered. Of machines that cost the same
  it takes the one whose work divides over queues as their excess does, so that the queues furthest
  above their share give most.

Both work in the trial and leave it as they found it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..node_choice import NoPlaces
from ..records import (
    Amounts,
    Member,
    QueueIndex,
    Reason,
    Workload,
    WorkloadId,
    minus,
    plus,
)
from .balancing import balanced
from .fit import Fit
from .round import Claim, PlanRound


@dataclass(frozen=True, slots=True)
class Unit:
    """Members of one workload that stop together."""

    workload: WorkloadId
    queue: QueueIndex
    members: tuple[Member, ...]
    amounts: Amounts
    surplus: bool
    number: int
    """Its turn within its queue."""
    after: int
    """How many units of the same workload stop before it."""


class Supply(ABC):
    """The units that one claimant may take, and when."""

    def __init__(self, round: PlanRound, claim: Claim) -> None:
        self.round, self.trial, self.claim = round, round.trial, claim
        self.units: dict[QueueIndex, list[Unit]] = {}
        """By project, in the order in which they stop."""

    @abstractmethod
    def reason(self, queue: QueueIndex, unit: Unit, amounts: Amounts) -> Reason | None:
        """Why this unit of a queue may stop now; None if it may not."""

    @abstractmethod
    def in_order(self) -> Iterator[Unit]:
        """The units one after another; the trial has lost the earlier ones that were taken."""

    @abstractmethod
    def excess(self, queue: QueueIndex) -> int:
        """How much of the claimant's main resource a queue may give."""

    def objection(self, gave: Iterable[QueueIndex]) -> str | None:
        """Why the claimant may not start now that these queues have given; None if it may."""
        return None


def make_room(supply: Supply) -> str | None:
    """Stop units and start the claimant; None, or why nothing was found. The caller rolls back."""
    round, trial = supply.round, supply.trial
    begin = trial.checkpoint()
    fit = Fit(round, supply.claim)
    if fit.holds():
        return _run(supply, [])
    ordered = _in_order(supply, fit)
    trial.rollback(begin)
    if ordered is not None and ordered.needed_all:
        found: list[Unit] | None = ordered.units
    else:
        cleared = _by_machine(supply)
        trial.rollback(begin)
        found = None if ordered is None else ordered.units
        if cleared is not None and (found is None or _cost(cleared) < _cost(found)):
            found = cleared
    round.no_room.clear()
    if found is None:
        return "nothing that may be stopped for it makes enough room"
    return _run(supply, found)


def _cost(units: Iterable[Unit]) -> tuple[int, int]:
    """How many members stop, in how many workloads."""
    units = list(units)
    return sum(len(each.members) for each in units), len({each.workload for each in units})


def _run(supply: Supply, units: Sequence[Unit]) -> str | None:
    """Stop the units and start the claimant, in the trial."""
    trial, claim = supply.trial, supply.claim
    surplus_first = sorted(units, key=lambda each: each.after)
    for unit in surplus_first:
        reason = stop(supply, unit)
        if reason is None:
            return "the rules allow too little to be stopped for it"
    workload = trial.workload(claim.workload.id)
    forbidden = supply.round.refusal(workload, claim.need)
    if forbidden is not None:
        return forbidden.text
    supply.round.no_room.clear()
    places = supply.round.place(workload, claim.lacking)
    if isinstance(places, NoPlaces):
        return places.text
    objection = supply.objection({unit.queue for unit in units})
    if objection is not None:
        return objection
    why = supply.round.start_reason(workload, claim.need, surplus=False)
    trial.start(workload, places, why)
    return None


def stop(supply: Supply, unit: Unit) -> Reason | None:
    """Stop a unit in the trial if the rules allow it now; return the reason."""
    workload = supply.trial.workload(unit.workload)
    positions = _positions(workload, unit)
    if not positions:
        return None
    amounts = workload.holds(positions)
    reason = supply.reason(unit.queue, unit, amounts)
    if reason is not None:
        supply.trial.stop(workload, positions, supply.claim.workload.id, reason)
    return reason


def _positions(workload: Workload, unit: Unit) -> tuple[int, ...]:
    """Where a unit's members are now; all that is left of the workload for its minimum."""
    if not unit.surplus:
        return tuple(range(len(workload.members)))
    (member,) = unit.members
    if len(workload.members) <= workload.gang.size:
        return ()  # an equal member would be one of its minimum
    for at in range(len(workload.members) - 1, -1, -1):
        if workload.members[at] == member:
            return (at,)
    return ()


def units_of(
    workloads: Iterable[Workload], *, whole: Sequence[WorkloadId] | frozenset[WorkloadId]
) -> list[Unit]:
    """The units of a queue's workloads in the order in which they stop; only workloads in
    `whole` can lose their minimum."""
    found: list[tuple[tuple[object, ...], Workload, tuple[int, ...], bool, int]] = []
    for workload in workloads:
        surplus = workload.surplus
        age = -workload.submit_order
        for after, at in enumerate(surplus):
            key = (0, workload.priority, age, _reversed_id(workload.id), after)
            found.append((key, workload, (at,), True, after))
        if workload.id in whole:
            rest = tuple(sorted(set(range(len(workload.members))) - set(surplus)))
            if not rest:
                continue
            key = (1, workload.priority, age, _reversed_id(workload.id), 0)
            found.append((key, workload, rest, False, len(surplus)))
    found.sort(key=lambda each: each[0])
    return [
        Unit(
            workload=workload.id,
            queue=workload.queue,
            members=tuple(workload.members[at] for at in positions),
            amounts=workload.holds(positions),
            surplus=surplus,
            number=number,
            after=after,
        )
        for number, (_, workload, positions, surplus, after) in enumerate(found)
    ]


def _reversed_id(id: str) -> tuple[int, ...]:
    """A key that sorts later ids first."""
    return tuple(-ord(char) for char in id)


@dataclass(frozen=True, slots=True)
class _Ordered:
    units: list[Unit]
    needed_all: bool
    """Whether every unit that was taken was needed."""


def _in_order(supply: Supply, fit: Fit) -> _Ordered | None:
    """Take units until the claimant fits, then put back what it does not need, best work first."""
    taken: list[tuple[Unit, tuple[Member, ...]]] = []
    gave: Counter[QueueIndex] = Counter()
    for unit in supply.in_order():
        workload = supply.trial.workload(unit.workload)
        positions = _positions(workload, unit)
        if not positions or stop(supply, unit) is None:
            continue
        members = tuple(workload.members[at] for at in positions)
        taken.append((unit, members))
        gave[unit.queue] += 1
        fit.left(members)
        if fit.holds() and supply.objection(gave) is None:
            break
    else:
        return None
    kept: list[Unit] = []
    for unit, members in reversed(taken):
        before = supply.trial.checkpoint()
        supply.trial.put_back(supply.trial.workload(unit.workload), members)
        fit.left(members)
        gave -= Counter((unit.queue,))
        if not fit.holds() or supply.objection(gave) is not None:
            gave[unit.queue] += 1
            supply.trial.rollback(before)
            fit.left(members)
            kept.append(unit)
    kept.reverse()
    return _Ordered(kept, len(kept) == len(taken))


def _by_machine(supply: Supply) -> list[Unit] | None:
    """Clear machines for one more member each until the claimant fits."""
    fit = Fit(supply.round, supply.claim)
    if fit.part is None:
        return None
    board = _Board(supply, fit)
    begin = supply.trial.checkpoint()
    cleared = _best_by_best(supply, fit, board)
    if cleared is None:
        supply.trial.rollback(begin)
        fit = Fit(supply.round, supply.claim)
        cleared = _all_at_once(supply, fit, _Board(supply, fit))
    if cleared is None or not fit.holds():
        return None
    return cleared if supply.objection({unit.queue for unit in cleared}) is None else None


def _best_by_best(supply: Supply, fit: Fit, board: _Board) -> list[Unit] | None:
    """Clear the best machine, and again, as each leaves the others."""
    taken: list[Unit] = []
    while fit.lacks:
        row = board.best()
        if row is None:
            return None
        before = supply.trial.checkpoint()
        units = board.units(row)
        if all(stop(supply, unit) is not None for unit in units):
            taken += units
            board.take(row, units)
            fit.left(member for unit in units for member in unit.members)
        else:
            supply.trial.rollback(before)
            board.forbid(row)
    return taken


def _all_at_once(supply: Supply, fit: Fit, board: _Board) -> list[Unit] | None:
    """Clear machines that were chosen together, so that what each queue gives adds up."""
    units = board.together(fit.lacks)
    if units is None or any(stop(supply, unit) is None for unit in units):
        return None
    fit.left(member for unit in units for member in unit.members)
    return units


class _Board:
    """What it costs to clear each machine for one more member of the claimant."""

    def __init__(self, supply: Supply, fit: Fit) -> None:
        self._supply, self._fit = supply, fit
        self._request = fit.request
        self._kind = supply.round.machines.kind(self._request)
        self._queues = sorted(supply.units)
        self._column = {queue: at for at, queue in enumerate(self._queues)}
        self._of: dict[WorkloadId, list[Unit]] = {}
        """The units of each workload in the order in which they stop."""
        self._on: dict[int, list[Unit]] = {}
        """The units with a member on each machine, those that stop first ahead."""
        first = sorted(self._queues, key=lambda queue: -supply.excess(queue))
        rank = {queue: at for at, queue in enumerate(first)}
        units = [unit for queue in self._queues for unit in supply.units[queue]]
        units.sort(key=lambda each: (not each.surplus, rank[each.queue], each.number))
        for unit in units:
            self._of.setdefault(unit.workload, []).append(unit)
            for machine in {member.machine for member in unit.members}:
                self._on.setdefault(machine, []).append(unit)
        self._gone: set[tuple[WorkloadId, int]] = set()
        self._forbidden: set[int] = set()
        size = len(fit.rows)
        self._gives = np.zeros((size, len(self._queues)), np.int64)
        self._costs = np.full(size, -1, np.int64)
        """How much stops on each machine; -1 if it cannot be cleared."""
        self._plans: dict[int, list[Unit]] = {}
        for row in range(size):
            self._price(row)
        self._smallest = min((unit.amounts[self._kind] for unit in units), default=0)

    def units(self, row: int) -> list[Unit]:
        return self._plans[row]

    def best(self) -> int | None:
        """The machine where least stops; of equal ones, where the queues have most to give."""
        able = np.flatnonzero(self._costs >= 0)
        if not len(able):
            return None
        budget = np.array([self._supply.excess(queue) for queue in self._queues], np.int64)
        gives = self._gives[able]
        able = able[((gives - self._smallest < budget) | (gives == 0)).all(axis=1)]
        if not len(able):
            return None
        costs = self._costs[able]
        able = able[costs == costs.min()]
        ideal = budget / max(self._fit.lacks, 1)
        scale = self._costs[able[0]] / ideal.sum() if ideal.sum() else 0.0
        distance = np.abs(self._gives[able] - ideal * scale).sum(axis=1)
        return int(able[distance.argmin()])

    def together(self, count: int) -> list[Unit] | None:
        """The units on so many machines, the cheapest, of which no queue gives too much."""
        able = np.flatnonzero(self._costs >= 0)
        if len(able) < count:
            return None
        costs = self._costs[able]
        able = able[costs <= np.sort(costs)[count - 1]]
        budget = np.array([self._supply.excess(queue) for queue in self._queues], np.int64)
        most = budget + max(self._smallest - 1, 0)  # the last unit may be partly within the quota
        rows = balanced(self._gives[able], most, count)
        if rows is None:
            return None
        found = {
            (unit.workload, unit.after): unit for row in able[rows] for unit in self._plans[row]
        }
        return sorted(found.values(), key=lambda each: each.number)

    def take(self, row: int, units: Sequence[Unit]) -> None:
        """The units have stopped: price the machines anew on which their workloads run, since
        what stops there may have been to stop after them."""
        self._gone.update((unit.workload, unit.after) for unit in units)
        workloads = {unit.workload for unit in units}
        touched = {m.machine for id in workloads for unit in self._of[id] for m in unit.members}
        rows = {at for machine in touched if (at := self._fit.row_of.get(machine)) is not None}
        for at in rows | {row}:
            self._price(at)

    def forbid(self, row: int) -> None:
        self._forbidden.add(row)
        self._costs[row] = -1

    def _price(self, row: int) -> None:
        """Find the units to stop on one machine."""
        self._costs[row] = -1
        self._gives[row] = 0
        if row in self._forbidden:
            return
        machine = int(self._fit.rows[row])
        free = tuple(self._supply.trial.free[machine].tolist())
        missing = minus(self._request, self._over(free))
        chosen: dict[tuple[WorkloadId, int], Unit] = {}
        frees: dict[tuple[WorkloadId, int], Amounts] = {}
        got = (0,) * len(free)
        for unit in self._on.get(machine, ()):
            if all(has >= lacks for has, lacks in zip(got, missing, strict=True)):
                break
            for each in self._with(unit):
                key = (each.workload, each.after)
                if key in self._gone or key in chosen:
                    continue
                chosen[key], frees[key] = each, self._freed(each, machine)
                got = plus(got, frees[key])
        if not all(has >= lacks for has, lacks in zip(got, missing, strict=True)):
            return
        for key in reversed(list(chosen)):
            left = minus(got, frees[key])
            last = not any(
                other.workload == key[0] and other.after > key[1] for other in chosen.values()
            )
            if last and all(has >= lacks for has, lacks in zip(left, missing, strict=True)):
                del chosen[key]
                got = left
        if not chosen:
            return  # its devices are too scattered: only whole ones would help
        self._plans[row] = list(chosen.values())
        for unit in chosen.values():
            self._gives[row, self._column[unit.queue]] += unit.amounts[self._kind]
        self._costs[row] = int(self._gives[row].sum())

    def _over(self, free: Amounts) -> Amounts:
        """What is free on a machine beyond the members that it has room for already."""
        fits = min((f // n for f, n in zip(free, self._request, strict=True) if n), default=0)
        return minus(free, tuple(fits * n for n in self._request))

    def _with(self, unit: Unit) -> list[Unit]:
        """The unit, after those of its workload that stop before it."""
        mine = self._of[unit.workload]
        return mine if len(mine) == 1 else [each for each in mine if each.after <= unit.after]

    def _freed(self, unit: Unit, machine: int) -> Amounts:
        """What a unit frees on one machine."""
        if len(unit.members) == 1:
            return unit.amounts if unit.members[0].machine == machine else (0,) * len(unit.amounts)
        gang = self._supply.trial.snapshot.workloads[unit.workload].gang
        counts = [0] * len(gang.parts)
        for member in unit.members:
            counts[member.part] += member.machine == machine
        return gang.total(counts)
