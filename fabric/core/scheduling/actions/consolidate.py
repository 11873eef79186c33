"""Consolidate: move members of running work so that scattered room becomes one.

For a preemptible claimant that what is free would hold if it were not scattered. Members move one
after the other, each to room that is free then; none moves unless all that are in the way can, and
those of non-preemptible work never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ..node_choice import NoPlaces
from ..records import Amounts, MachineIndex, Reason, Rule, Workload, WorkloadId, minus
from .fit import Fit
from .round import Claim, Effort, PlanRound

Movable: TypeAlias = tuple[int, WorkloadId, int, Amounts]
"""The size of a member, its workload, its position there, and what it takes."""


def consolidate(round: PlanRound, claim: Claim) -> str | Effort:
    """Make room for a workload by moving others; or why that is not possible."""
    if not claim.workload.preemptible:
        return "non-preemptible work moves no other work"
    if round.refusal(claim.workload, claim.need) is not None:
        return ""
    fit = Fit(round, claim)
    if fit.part is None:
        return "members that differ are not consolidated"
    anywhere = replace(claim.workload.gang.parts[fit.part], selector=())
    pool = round.machines.suitable(claim.pool, anywhere)
    if (round.trial.free[pool].sum(axis=0) < np.array(claim.need)).any():
        return "less is free than it needs"
    return lambda: _move(round, claim, fit)


def _move(round: PlanRound, claim: Claim, fit: Fit) -> str | None:
    """Move what is smallest; None, or why the claimant gets no room by that."""
    movable = _movable(round, claim)
    machines = fit.rows.tolist()
    options = [found for m in machines if (found := _clearing(round, fit, m, movable.get(m, ())))]
    options.sort(key=lambda each: each[:2])
    before = round.trial.checkpoint()
    for first in range(min(len(options), round.trial.settings.consolidation_candidates)):
        clearings = [each[2] for each in options[first : first + fit.lacks]]
        if len(clearings) == fit.lacks and _try(round, claim, clearings):
            return None
        round.trial.rollback(before)
    return "what would have to move finds no other place"


def _movable(round: PlanRound, claim: Claim) -> dict[int, list[Movable]]:
    """On each machine the members that may move, the smallest first."""
    trial = round.trial
    kind = round.machines.kind(claim.need)
    found: dict[int, list[Movable]] = {}
    for queue in sorted(trial.snapshot.running):
        if round.pool(queue) != claim.pool:
            continue
        new = round.new(queue)
        for each in trial.running(queue):
            if not (each.preemptible and each.movable):
                continue
            if each.id in new or each.id == claim.workload.id:
                continue
            for at, member in enumerate(each.members):
                if each.gang.parts[member.part].borrowed:
                    continue
                request = each.gang.parts[member.part].request
                entry = (request[kind], each.id, at, request)
                found.setdefault(member.machine, []).append(entry)
    for entries in found.values():
        entries.sort()
    return found


def _clearing(
    round: PlanRound, fit: Fit, machine: int, movable: Sequence[Movable]
) -> tuple[int, int, list[Movable]] | None:
    """The smallest members to move off a machine for one member of the claimant more."""
    free = tuple(round.trial.free[machine].tolist())
    fits = min((f // n for f, n in zip(free, fit.request, strict=True) if n), default=0)
    missing = minus(fit.request, minus(free, tuple(fits * n for n in fit.request)))

    def enough(entries: Sequence[Movable]) -> bool:
        got = [sum(entry[3][i] for entry in entries) for i in range(len(missing))]
        return all(has >= lacks for has, lacks in zip(got, missing, strict=True))

    chosen: list[Movable] = []
    for entry in movable:
        if enough(chosen):
            break
        chosen.append(entry)
    if not chosen or not enough(chosen):
        return None
    for entry in list(chosen):
        fewer = [each for each in chosen if each is not entry]
        if fewer and enough(fewer):
            chosen = fewer
    return sum(each[0] for each in chosen), machine, chosen


def _try(round: PlanRound, claim: Claim, clearings: list[list[Movable]]) -> bool:
    """Start the claimant where machines are cleared, and move what is in its way before that."""
    trial = round.trial
    moving = [entry for clearing in clearings for entry in clearing]
    if len({id for _, id, _, _ in moving}) > trial.settings.consolidation_candidates:
        return False
    for _, id, at, _ in moving:
        trial.lift(trial.workload(id), at)
    workload = trial.workload(claim.workload.id)
    round.no_room.clear()
    places = round.place(workload, claim.lacking)
    if isinstance(places, NoPlaces):
        return False
    trial.start(workload, places, round.start_reason(workload, claim.need, surplus=False))
    start = trial.decisions.pop()  # moves come first, so that nothing is ever over capacity
    for _, id, at, _ in moving:
        trial.lower(trial.workload(id), at)
    moving.sort(key=lambda each: (-each[0], *each[1:3]))
    while moving:
        waiting = [each for each in moving if not _moved(round, claim, each)]
        if len(waiting) == len(moving):
            return False
        moving = waiting
    trial.decisions.append(start)
    return True


def _moved(round: PlanRound, claim: Claim, entry: Movable) -> bool:
    """Move a member, unless it may stay beside the claimant; whether that is possible now."""
    trial, (_, id, at, _) = round.trial, entry
    workload = trial.workload(id)
    source = workload.members[at].machine
    if not trial.overfull(source):
        return True
    before = trial.checkpoint()
    trial.lift(workload, at)
    target = _place(round, claim, workload, at)
    if target is None:
        trial.rollback(before)
        return False
    reason = Reason(Rule.CONSOLIDATE, f"moved, so that {claim.workload.id} has room in one place")
    trial.move(workload, at, target, claim.workload.id, reason)
    return True


def _place(round: PlanRound, claim: Claim, workload: Workload, at: int) -> MachineIndex | None:
    """Another machine for a lifted member."""
    part = workload.members[at].part
    others = [(each.part, each.machine) for i, each in enumerate(workload.members) if i != at]
    found = round.machines_for(workload).choose(
        claim.pool,
        workload.gang,
        tuple(int(i == part) for i in range(len(workload.gang.parts))),
        others,
        free=round.trial.free,
        devices=round.trial.devices,
        strategy=round.trial.strategy,
    )
    return None if isinstance(found, NoPlaces) else found[0][1]
