"""Preempt: a workload takes the places of less important work in its own queue.

It takes preemptible work of strictly lower priority, and surplus members of any priority, since a
minimum comes before any surplus (seed 001). This also makes room under the queue's limit. What the
queue uses does not grow beyond what allocation permits.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..records import Amounts, QueueIndex, Reason, Rule
from ..snapshot import Kind
from .round import Claim, PlanRound
from .victims import Supply, Unit, make_room, units_of

NOTHING = "nothing in its queue is less important"


def preempt(round: PlanRound, claim: Claim) -> str | None:
    """Take places for a workload within its queue; None, or why that is not possible."""
    supply = _FromOwnQueue(round, claim)
    return make_room(supply) if supply.units else NOTHING


def nothing_to_preempt(round: PlanRound, kind: Kind) -> str | None:
    """Why no workload of a kind may preempt in this round: what starts in it may not be stopped."""
    return None if _less_important(round, kind.queue, kind.priority) else NOTHING


def _less_important(round: PlanRound, queue: QueueIndex, priority: int) -> list[Unit]:
    """What a queue has that gives way to this priority."""
    key = ("may be preempted", priority)
    return round.once(queue, key, lambda: _units_below(round, queue, priority))


def _units_below(round: PlanRound, queue: QueueIndex, priority: int) -> list[Unit]:
    new, least, now = round.new(queue), _min_runtime(round, queue), round.trial.now
    workloads = [
        each
        for each in round.trial.running(queue)
        if (each.preemptible or each.surplus_yields) and each.id not in new
    ]
    whole = frozenset(
        each.id
        for each in workloads
        if each.preemptible
        and each.priority < priority
        and (each.started_s is None or now - each.started_s >= least)
    )
    return units_of(workloads, whole=whole)


def _min_runtime(round: PlanRound, queue: QueueIndex) -> float:
    queues = round.snapshot.queues
    values = (queues[index].min_runtime_before_preempt_s for index in round.trial.paths[queue])
    return next((value for value in values if value is not None), 0.0)


class _FromOwnQueue(Supply):
    """Less important work in the claimant's queue."""

    def __init__(self, round: PlanRound, claim: Claim) -> None:
        super().__init__(round, claim)
        claimant = claim.workload
        units = _less_important(round, claimant.queue, claimant.priority)
        units = [each for each in units if each.workload != claimant.id]
        if units:
            self.units[claimant.queue] = units

    def reason(self, queue: QueueIndex, unit: Unit, amounts: Amounts) -> Reason | None:
        victim = self.trial.workload(unit.workload)
        if victim.preemptible and victim.priority < self.claim.workload.priority:
            text = f"priority {victim.priority} gives way to {self.claim.workload.priority}"
            return Reason(Rule.PREEMPT_PRIORITY, text)
        text = f"surplus gives way to the minimum of {self.claim.workload.id}"
        return Reason(Rule.PREEMPT_SURPLUS, text)

    def in_order(self) -> Iterator[Unit]:
        yield from self.units.get(self.claim.workload.queue, ())

    def excess(self, queue: QueueIndex) -> int:
        return self.trial.allocated[queue][self.round.machines.kind(self.claim.need)]
