"""Reclaim: a workload that its queue deserves takes from other queues what they have above theirs.

A claimant's queue stays within its fair share with it, and within quota if it is non-preemptible.
Compare the two branches just below what both queues have in common. A unit may be taken while

* fair-share strategy: the victim's branch has more than it is entitled to, or
* quota strategy: the claimant's branch stays within its quota, and the victim's has more than its
  quota,

of a resource that the claimant needs and the unit frees. So a queue within quota never gives,
although one large unit may carry it below. Afterwards no branch of the claimant may be fuller than
a sibling that gave (saturation), or both would take from each other for ever.

A flexible member above a minimum claims as well, but only while its project stays within its quota.

First give queues over their share, then those over quota; priorities mean nothing between queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..order import furthest_over
from ..records import UNLIMITED, Amounts, QueueIndex, Reason, Rule, plus, within
from .round import Claim, Effort, Fork, PlanRound
from .victims import Supply, Unit, make_room, units_of


def reclaim(round: PlanRound, claim: Claim) -> str | Effort:
    """Take places for a workload from other queues; or why that is not possible."""
    index = claim.workload.queue
    name, share = round.snapshot.queues[index].name, round.shares[index]
    then = plus(tuple(round.trial.allocated[index]), claim.need)
    if not within(then, share):
        return f"with it {name} would exceed its fair share"
    forbidden = round.refusal(claim.workload, claim.need)
    own_limit = not within(then, round.snapshot.queues[index].limit)
    if forbidden is not None and (own_limit or forbidden.rule is not Rule.LIMIT):
        return ""  # what other queues give helps only against the limit of a common department
    supply = _FromOthers(round, claim)
    if not supply.units:
        return "no other queue has anything to give"
    return lambda: make_room(supply)


def reclaim_flexible(round: PlanRound, claim: Claim) -> str | Effort:
    """Take places for one flexible member above the minimum of its workload, within quota."""
    index = claim.workload.queue
    queue = round.snapshot.queues[index]
    if not within(plus(tuple(round.trial.allocated[index]), claim.need), queue.quota):
        return f"{queue.name} would exceed its quota"
    return reclaim(round, claim)


class _FromOthers(Supply):
    """Preemptible work in the other queues of the pool."""

    def __init__(self, round: PlanRound, claim: Claim) -> None:
        super().__init__(round, claim)
        claimant, self._need = claim.workload, claim.need
        trial, queues = self.trial, round.snapshot.queues
        self._path = trial.paths[claimant.queue]
        self._forks: dict[QueueIndex, Fork] = {}
        """Where the claimant's path and that of each other project part."""
        self._in_quota: dict[QueueIndex, bool] = {}
        for index in self._path:
            queue, has = queues[index], trial.allocated[index]
            then = (a + b for a, b in zip(has, self._need, strict=True))
            self._in_quota[index] = all(a <= b for a, b in zip(then, queue.quota, strict=True))
        self._kind = round.machines.kind(self._need)
        may_give: dict[QueueIndex, bool] = {}
        for index in sorted(round.snapshot.running):
            if index == claimant.queue or queues[index].pool != claim.pool:
                continue
            fork = self._forks[index] = round.fork(claimant.queue, index)
            if fork.theirs not in may_give:
                may_give[fork.theirs] = self._may_give(fork)
            if not may_give[fork.theirs]:
                continue
            units = self._units(index)
            if units:
                self.units[index] = units

    def _may_give(self, fork: Fork) -> bool:
        """Whether a branch has more than it may keep of anything that is needed."""
        return any(self._rule(fork, i) for i, more in enumerate(self._need) if more)

    def _units(self, index: QueueIndex) -> list[Unit]:
        least = self._min_runtime(index)
        return self.round.once(
            index, ("may be reclaimed", least), lambda: self._units_of(index, least)
        )

    def _units_of(self, index: QueueIndex, least: float) -> list[Unit]:
        """What a queue may lose whose workloads are protected for so long."""
        queue, now = self.round.snapshot.queues[index], self.trial.now
        new = self.round.new(index)
        workloads = [
            each for each in self.trial.running(index) if each.preemptible and each.id not in new
        ]
        whole = frozenset(
            each.id
            for each in workloads
            if queue.reclaimable and (each.started_s is None or now - each.started_s >= least)
        )
        return units_of(workloads, whole=whole)

    def _min_runtime(self, leaf: QueueIndex) -> float:
        path = self.trial.paths[leaf]
        if not self.trial.settings.min_runtime_at_leaf:
            path = path[path.index(self._forks[leaf].theirs) :]
        queues = self.round.snapshot.queues
        values = (queues[index].min_runtime_before_reclaim_s for index in path)
        return next((value for value in values if value is not None), 0.0)

    def _rule(self, fork: Fork, resource: int) -> Rule | None:
        """Under which strategy a branch may give of a resource now."""
        has = self.trial.allocated[fork.theirs][resource]
        if has > self.round.entitled[fork.theirs][resource]:
            return Rule.RECLAIM_FAIRSHARE
        quota = self.round.snapshot.queues[fork.theirs].quota[resource]
        if has > quota and self._in_quota[fork.mine]:
            return Rule.RECLAIM_QUOTA
        return None

    def reason(self, queue: QueueIndex, unit: Unit, amounts: Amounts) -> Reason | None:
        fork = self._forks[queue]
        mine, theirs = fork.mine, fork.theirs
        queues, scale = self.round.snapshot.queues, self.round.snapshot.scale
        for i, (more, freed) in enumerate(zip(self._need, amounts, strict=True)):
            rule = self._rule(fork, i) if more and freed else None
            if rule is None:
                continue
            unit_size, name = scale.units[i], scale.names[i]
            has = self.trial.allocated[theirs][i] / unit_size
            if rule is Rule.RECLAIM_FAIRSHARE:
                may, what = self.round.entitled[theirs][i] / unit_size, "may keep"
                side = f"{queues[mine].name} is within its fair share"
            else:
                may, what = queues[theirs].quota[i] / unit_size, "has a quota of"
                side = f"{queues[mine].name} stays within its quota"
            text = f"{queues[theirs].name} has {has:.15g} {name} and {what} {may:.15g}; {side}"
            return Reason(rule, text)
        return None

    def in_order(self) -> Iterator[Unit]:
        """From the queue furthest over, as it is then."""
        left = {queue: iter(units) for queue, units in self.units.items()}
        heads = {queue: next(units) for queue, units in left.items()}
        over: dict[QueueIndex, tuple[object, ...]] = {}
        keys = {queue: self._key(queue, over) for queue in heads}
        while heads:
            queue = max(heads, key=keys.__getitem__)
            yield heads[queue]
            following = next(left[queue], None)
            if following is None:
                del heads[queue]
            else:
                heads[queue] = following
            branch = self._forks[queue].theirs
            for changed in self.trial.paths[queue]:
                over.pop(changed, None)
            for each in heads:
                if self._forks[each].theirs == branch:
                    keys[each] = self._key(each, over)

    def _key(
        self, leaf: QueueIndex, over: dict[QueueIndex, tuple[object, ...]]
    ) -> tuple[object, ...]:
        """Level by level, as queues are ordered, but from the other end; `over` keeps what is
        known of each."""
        round = self.round
        queues, units = round.snapshot.queues, round.snapshot.scale.units
        below = self._forks[leaf].below
        for i in below:
            if i not in over:
                over[i] = furthest_over(
                    queues[i], round.shares[i], round.entitled[i], self.trial.allocated[i], units
                )
        return tuple([over[i] for i in below])

    def excess(self, queue: QueueIndex) -> int:
        kind = self._kind
        has = self.trial.allocated[queue][kind]
        quota = self.round.snapshot.queues[queue].quota[kind]
        keeps = self.round.entitled[queue][kind]
        if self._in_quota[self._forks[queue].mine]:
            keeps = min(keeps, quota)
        return max(0, has - keeps) if keeps < UNLIMITED else 0

    def objection(self, gave: Iterable[QueueIndex]) -> str | None:
        """Whether a branch of the claimant would be fuller than one that gave (saturation)."""
        more = self.trial.settings.saturation_multiplier
        queues = self.round.snapshot.queues
        branches = sorted({self._forks[queue].theirs for queue in gave})
        for index in self._path:
            for other in branches:
                if queues[other].parent != queues[index].parent:
                    continue
                for i, amount in enumerate(self._need):
                    then = self.trial.allocated[index][i] + amount
                    mine = _fullness(then, self.round.shares[index][i])
                    theirs = _fullness(self.trial.allocated[other][i], self.round.shares[other][i])
                    if amount and mine > 1 and mine * more >= theirs:
                        return f"{queues[index].name} would be fuller than {queues[other].name}"
        return None


def _fullness(allocated: int, share: int) -> float:
    if share >= UNLIMITED or not allocated:
        return 0.0
    return allocated / share if share else float("inf")
