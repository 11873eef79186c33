"""Starts what fits on free resources: minimums as a whole, then surplus member by member.

After every start all queues are compared again. A workload that does not fit is skipped, and so are
all of its kind: during this action free resources only become fewer.
"""

from __future__ import annotations

from ..node_choice import NoPlaces
from ..order import below_minimum, next_needs
from ..records import Reason, Rule, Workload
from ..snapshot import Kind, kind_of
from .round import PlanRound, Waiting


def allocate(round: PlanRound) -> list[Waiting]:
    """Start all that fits; return those that wait below their minimum, or could grow."""
    trial = round.trial
    waiting = []
    able = []
    for kind, lines in round.snapshot.backlog.items():
        if round.could_run[kind] or not below_minimum(kind):
            able.append((kind, lines))
        else:
            waiting.append(Waiting(kind, lines, _never(round, kind)))
    contest = round.contest(able)
    while (found := contest.pop()) is not None:
        kind, line = found
        workload = trial.workload(line[1])
        reason = _start(round, workload, kind)
        if reason is not None:
            waiting.append(Waiting(kind, (line, *contest.drop(kind)), reason))
            continue
        then = kind_of(trial.workload(line[1]))
        if then is None:
            contest.touch(kind.queue)
        else:
            contest.add(then, line)
    round.keep_starts(0)
    return waiting


def _start(round: PlanRound, workload: Workload, kind: Kind) -> Reason | None:
    """Start what a workload needs next, or say why that is not possible."""
    reason: Reason | None = None
    for lacking in next_needs(kind):
        need = kind.gang.total(lacking)
        forbidden = round.refusal(workload, need)
        if forbidden is not None:
            reason = reason or forbidden
            continue
        places = round.place(workload, lacking)
        if isinstance(places, NoPlaces):
            reason = reason or _no_room(round, workload, lacking, places)
            continue
        surplus = not below_minimum(kind)
        round.trial.start(workload, places, round.start_reason(workload, need, surplus=surplus))
        return None
    return reason


def _no_room(
    round: PlanRound, workload: Workload, lacking: tuple[int, ...], found: NoPlaces
) -> Reason:
    """Whether there is no room, or none that is not kept free for another workload."""
    kept = round.keeps(workload)
    if kept is None or not round.has_kept_room(workload, lacking):
        return Reason(Rule.NO_ROOM, found.text)
    limit = round.trial.settings.starvation_s
    return Reason(
        Rule.KEPT, f"machines are kept free for {kept.workload}, which has waited {limit:.15g} s"
    )


def _never(round: PlanRound, kind: Kind) -> Reason:
    """Why a kind could not run even on empty machines."""
    ids = round.snapshot.backlog[kind]
    workload = round.trial.workload(ids[0][1])
    forbidden = round.refusal(workload, kind.gang.total(workload.missing))
    if forbidden is not None:
        return forbidden
    if round.may_run[kind]:
        return Reason(Rule.MAY_COME, "its minimum fits only with machines that may come")
    return Reason(Rule.NEVER, "its minimum would not fit the ready machines if they were empty")
