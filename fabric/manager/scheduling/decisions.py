"""Which decisions of a plan still hold, what those become that move gangs, and notices in words.

A gang moves as a whole: it leaves all its places, and goes on at once on those that it is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.cluster_state import RELOCATES, ClusterState, Entry, Notice
from ...core.records import ClusterId
from ...core.scheduling.records import (
    Decision,
    MachineIndex,
    MoveMember,
    SchedulingPlan,
    StartMembers,
    StopMembers,
)
from .asked import StoppedMember
from .live_facts import LiveFacts


def still_valid(
    found: SchedulingPlan,
    stopped: Sequence[tuple[StoppedMember, ...]],
    unchanged: Callable[[ClusterId], bool],
) -> list[tuple[Decision, tuple[StoppedMember, ...]]]:
    """The decisions on workloads that are as the plan saw them, and their claimants, too, each with
    what it stops. If one move for a claimant does not hold, none does, and it does not start."""
    valid = list[tuple[Decision, tuple[StoppedMember, ...]]]()
    in_vain = set[str]()
    for each, vnodes in zip(found.decisions, stopped, strict=True):
        claimant = None if isinstance(each, StartMembers) else each.claimant
        names = [each.workload] if claimant is None else [each.workload, claimant]
        if all(unchanged(ClusterId(name)) for name in names):
            valid.append((each, vnodes))
        elif isinstance(each, MoveMember):
            in_vain.add(each.claimant)
    return [each for each in valid if _for_whom(each[0]) not in in_vain]


def _for_whom(decision: Decision) -> str | None:
    """Whose places a move makes, or which workload starts."""
    if isinstance(decision, StopMembers):
        return None
    return decision.claimant if isinstance(decision, MoveMember) else decision.workload


def relocated(
    state: ClusterState, facts: LiveFacts, moves: Sequence[MoveMember], at: float
) -> list[tuple[Entry, Entry]]:
    """Those of which some members move, as they are, and with notice and new places."""
    to: dict[ClusterId, dict[int, MachineIndex]] = {}
    for move in moves:
        to.setdefault(ClusterId(move.workload), {})[move.position] = move.target.machine
    found = []
    for id, machines in to.items():
        before, why = state.entries[id], moves[0].reason.text  # one claimant, so one reason
        claimant = ClusterId(moves[0].claimant)
        notice = Notice(at=at, claimant=claimant, rule=RELOCATES, reason=why)
        asked = facts.asked[id]
        vnodes = asked.elsewhere(state.ledger, before.request, machines, facts.machines)
        found.append((before, replace(before, leaves=notice, promised=vnodes)))
    return found


def notice_text(notice: Notice, now: float) -> str:
    """A notice in words, as it is given."""
    whom = f"for {notice.claimant}" if notice.claimant is not None else "by itself"
    who = notice.node or "it"
    when = f"within {notice.at - now:.15g} s" if notice.stops else "once it is idle"
    return f"{who} leaves {whom} {when}; {notice.rule}: {notice.reason}"


def departure_text(notice: Notice) -> str:
    """A notice in words, as it is carried out."""
    who, by = notice.node or "it", notice.claimant
    what = f"{who} left for {by}" if by is not None else f"{who} was stopped"
    return f"{what}; {notice.rule}: {notice.reason}"
