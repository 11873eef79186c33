"""What would come of other queues, once all of it is carried out."""

from __future__ import annotations

from typing import Any

from ...core.scheduling.plan import plan
from ...core.scheduling.records import MoveMember, Rule, StopMembers
from .live_facts import LiveFacts

MOST_ROUNDS = 20
"""After so many rounds a look ahead ends; every known case takes a few."""


def would(live: LiveFacts, now: float) -> dict[str, Any]:
    """What would start, stop, move and wait. The facts are fresh, and are changed."""
    starts, stops, moves = dict[str, str](), list[dict[str, Any]](), list[dict[str, Any]]()
    for _ in range(MOST_ROUNDS):
        found = plan(live.snapshot(), now, live.settings)
        if not found.decisions:
            break
        for decision in found.decisions:
            live.apply(decision, now)
            if isinstance(decision, StopMembers | MoveMember):
                told = {"claimant": decision.claimant, "reason": str(decision.reason)}
                which = stops if isinstance(decision, StopMembers) else moves
                which.append({"id": decision.workload, **told})
            elif decision.reason.rule is not Rule.SURPLUS:
                starts[decision.workload] = str(decision.reason)
    waits = {id: str(wait.reason) for wait in found.waits for id in wait.workloads}
    return {"starts": starts, "stops": stops, "moves": moves, "waits": waits}
