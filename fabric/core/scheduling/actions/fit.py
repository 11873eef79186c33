"""Fit: whether a claimant fits what is free in the trial, as members leave machines."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...records import SchedulingPolicy
from ..node_choice import PLENTY, NoPlaces
from ..records import Member
from ..snapshot import Array
from .round import Claim, PlanRound


class Fit:
    """Whether the claimant fits what the trial has free; counts anew only where something left."""

    def __init__(self, round: PlanRound, claim: Claim) -> None:
        self._round, self._trial, self._claim = round, round.trial, claim
        wanted = [i for i, n in enumerate(claim.lacking) if n]
        self.part = wanted[0] if len(wanted) == 1 else None
        """The only part that is missing; None if members differ."""
        if self.part is None:
            return
        gang = claim.workload.gang
        part = gang.parts[self.part]
        self._policy = gang.policies[part.group]
        self.request = part.request
        self.rows = round.machines_for(claim.workload).suitable(claim.pool, part)
        if self._policy is SchedulingPolicy.STRICT_SPREAD:
            members = claim.workload.members
            held = {m.machine for m in members if gang.parts[m.part].group == part.group}
            self.rows = self.rows[~np.isin(self.rows, list(held))]
        self.row_of = {machine: at for at, machine in enumerate(self.rows.tolist())}
        self.counts = round.machines.counts(
            self.rows, part.request, self._trial.free, self._trial.devices
        )
        self._total = self._of(self.counts)

    def _of(self, counts: Array) -> int:
        if self._policy is SchedulingPolicy.STRICT_SPREAD:
            return int((counts > 0).sum())
        if self._policy is SchedulingPolicy.STRICT_PACK:
            return int(counts.max(initial=0))
        return int(counts.sum())

    @property
    def wanted(self) -> int:
        """How many members of the part are missing."""
        return 0 if self.part is None else self._claim.lacking[self.part]

    @property
    def lacks(self) -> int:
        """How many members have no place yet."""
        return max(0, self.wanted - self._total)

    def left(self, members: Iterable[Member]) -> None:
        """Count the machines of these members anew."""
        if self.part is None:
            return
        for machine in {member.machine for member in members}:
            at = self.row_of.get(machine)
            if at is None:
                continue
            count = self._count(machine)
            before = int(self.counts[at])
            self.counts[at] = count
            if self._policy is SchedulingPolicy.STRICT_SPREAD:
                self._total += (count > 0) - (before > 0)
            elif self._policy is SchedulingPolicy.STRICT_PACK:
                self._total = max(self._total, count) if count > before else self._of(self.counts)
            else:
                self._total += count - before

    def _count(self, machine: int) -> int:
        if self._trial.devices is not None:
            one = np.array([machine])
            found = self._round.machines.counts(
                one, self.request, self._trial.free, self._trial.devices
            )
            return int(found[0])
        row = self._trial.free[machine]
        fits = (int(row[i]) // n for i, n in enumerate(self.request) if n)
        return max(0, min(fits, default=PLENTY))

    def holds(self) -> bool:
        """Whether the claimant could start now."""
        workload = self._trial.workload(self._claim.workload.id)
        if self.part is not None and self._total < self.wanted:
            return False
        if self._round.refusal(workload, self._claim.need) is not None:
            return False
        if self.part is not None and self._policy is not SchedulingPolicy.STRICT_PACK:
            return True
        self._round.no_room.clear()
        return not isinstance(self._round.place(workload, self._claim.lacking), NoPlaces)
