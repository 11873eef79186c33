"""Preempt: a workload takes the places of less important work in its own queue.

It takes preemptible work of strictly lower priority, and surplus members of any priority, since a
minimum comes before any surplus (seed 001). This also makes room under the queue's limit. What the
queue uses does not grow beyond what allocation permits.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..records import Amounts, QueueIndex, Reason, Rule, Workload
from .round import Claim, Effort, PlanRound
from .victims import Supply, Unit, make_room, units_of


def preempt(round: PlanRound, claim: Claim) -> str | Effort:
    """Take places for a workload within its queue; or why that is not possible."""
    supply = _FromOwnQueue(round, claim)
    if not supply.units:
        return "nothing in its queue is less important"
    return lambda: make_room(supply)


class _FromOwnQueue(Supply):
    """Less important work in the claimant's queue."""

    def __init__(self, round: PlanRound, claim: Claim) -> None:
        super().__init__(round, claim)
        claimant = claim.workload
        key = ("may be preempted", claimant.priority)
        units = round.once(claimant.queue, key, lambda: self._units_of(claimant))
        units = [each for each in units if each.workload != claimant.id]
        if units:
            self.units[claimant.queue] = units

    def _units_of(self, claimant: Workload) -> list[Unit]:
        """What is less important than a workload of this priority."""
        new, least, now = self.round.new(claimant.queue), self._min_runtime(), self.trial.now
        workloads = [
            each
            for each in self.trial.running(claimant.queue)
            if (each.preemptible or each.surplus_yields) and each.id not in new
        ]
        whole = frozenset(
            each.id
            for each in workloads
            if each.preemptible
            and each.priority < claimant.priority
            and (each.started_s is None or now - each.started_s >= least)
        )
        return units_of(workloads, whole=whole)

    def _min_runtime(self) -> float:
        queues = self.round.snapshot.queues
        path = self.trial.paths[self.claim.workload.queue]
        values = (queues[index].min_runtime_before_preempt_s for index in path)
        return next((value for value in values if value is not None), 0.0)

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
