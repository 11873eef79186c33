"""Stops gangs that have run below their minimum for longer than the grace period."""

from __future__ import annotations

from ..records import Reason, Rule
from .round import PlanRound


def stop_stale_gangs(round: PlanRound) -> None:
    """Stop every gang whose grace is over and that no action has repaired; even one that is
    non-preemptible, since it holds resources and cannot work."""
    grace = round.trial.settings.stale_gang_grace_s
    if grace < 0:
        return
    for id in round.snapshot.stale:
        workload = round.trial.workload(id)
        since = workload.stale_since_s
        if since is None or round.trial.now - since < grace:
            continue
        has, wants = len(workload.members), sum(part.least for part in workload.gang.parts)
        text = f"has run {has} of at least {wants} members for {grace:.15g} s or more"
        positions = tuple(range(has))
        round.trial.stop(workload, positions, None, Reason(Rule.STALE_GANG, text))
