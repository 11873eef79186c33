"""One round of the scheduler: what starts, what stops for it, and why the others wait.

Reclaim comes before preempt: a workload first gets what other queues have above their share, and
only then what less important work of its own queue holds (seed 003). Flexible members claim last.
"""

from __future__ import annotations

from .actions.allocate import allocate
from .actions.consolidate import consolidate
from .actions.keeping import keep_machines_free
from .actions.preempt import preempt
from .actions.reclaim import reclaim, reclaim_flexible
from .actions.round import PlanRound, attempt
from .actions.stale_gangs import stop_stale_gangs
from .order import below_minimum
from .records import SchedulingPlan, Settings
from .snapshot import SchedulingSnapshot


def plan(snapshot: SchedulingSnapshot, now: float, settings: Settings) -> SchedulingPlan:
    """Decide one round; the same facts always give the same decisions."""
    round = PlanRound.of(snapshot, now, settings)
    keep_machines_free(round)
    waiting = allocate(round)
    if settings.consolidation:
        waiting = attempt(round, waiting, consolidate)
    waiting = attempt(round, waiting, reclaim)
    waiting = attempt(round, waiting, preempt)
    if settings.surplus_claims:
        waiting = attempt(round, waiting, reclaim_flexible, flexible=True)
    stop_stale_gangs(round)
    below = [each for each in waiting if below_minimum(each.kind)]
    return SchedulingPlan(
        decisions=tuple(round.trial.decisions),
        waits=tuple(each.told() for each in sorted(below, key=lambda each: each.lines)),
        fairshare=round.shares,
    )
