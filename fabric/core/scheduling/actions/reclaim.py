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
from .round import Claim, PlanRound
from .victims import Supply, Unit, make_room, units_of


def reclaim(round: PlanRound, claim: Claim) -> str | None:
    """Take places for a workload from other queues; None, or why that is not possible."""
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
    return make_room(supply)


def reclaim_flexible(round: PlanRound, claim: Claim) -> str | None:
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
        self._branches: dict[QueueIndex, tuple[QueueIndex, QueueIndex]] = {}
        """Of each other project: the claimant's branch, and its own."""
        self._in_quota: dict[QueueIndex, bool] = {}
        for index in self._path:
            queue, has = queues[index], trial.allocated[index]
            then = (a + b for a, b in zip(has, self._need, strict=True))
            self._in_quota[index] = all(a <= b for a, b in zip(then, queue.quota, strict=True))
        self._kind = round.machines.kind(self._need)
        for index in sorted(round.snapshot.running):
            if index == claimant.queue or queues[index].pool != claim.pool:
                continue
            self._branches[index] = self._fork(index)
            if not self._may_give(index):
                continue
            units = self._units(index)
            if units:
                self.units[index] = units

    def _may_give(self, index: QueueIndex) -> bool:
        """Whether a queue's branch has more than it may keep of anything that is needed."""
        _, theirs = self._branches[index]
        return any(self._rule(index, theirs, i) for i, more in enumerate(self._need) if more)

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

    def _fork(self, other: QueueIndex) -> tuple[QueueIndex, QueueIndex]:
        mine, theirs = self._path[::-1], self.trial.paths[other][::-1]
        at = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b)
        return mine[at], theirs[at]

    def _min_runtime(self, leaf: QueueIndex) -> float:
        path = self.trial.paths[leaf]
        if not self.trial.settings.min_runtime_at_leaf:
            path = path[path.index(self._branches[leaf][1]) :]
        queues = self.round.snapshot.queues
        values = (queues[index].min_runtime_before_reclaim_s for index in path)
        return next((value for value in values if value is not None), 0.0)

    def _rule(self, leaf: QueueIndex, theirs: QueueIndex, resource: int) -> Rule | None:
        """Under which strategy a branch may give of a resource now."""
        has = self.trial.allocated[theirs][resource]
        if has > self.round.entitled[theirs][resource]:
            return Rule.RECLAIM_FAIRSHARE
        quota = self.round.snapshot.queues[theirs].quota[resource]
        if has > quota and self._in_quota[self._branches[leaf][0]]:
            return Rule.RECLAIM_QUOTA
        return None

    def reason(self, queue: QueueIndex, unit: Unit, amounts: Amounts) -> Reason | None:
        mine, theirs = self._branches[queue]
        queues, scale = self.round.snapshot.queues, self.round.snapshot.scale
        for i, (more, freed) in enumerate(zip(self._need, amounts, strict=True)):
            rule = self._rule(queue, theirs, i) if more and freed else None
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
        keys = {queue: self._key(queue) for queue in heads}
        while heads:
            queue = max(heads, key=keys.__getitem__)
            yield heads[queue]
            following = next(left[queue], None)
            if following is None:
                del heads[queue]
            else:
                heads[queue] = following
            branch = self._branches[queue][1]
            for each in heads:
                if self._branches[each][1] == branch:
                    keys[each] = self._key(each)

    def _key(self, leaf: QueueIndex) -> tuple[object, ...]:
        """Level by level, as queues are ordered, but from the other end."""
        _, theirs = self._branches[leaf]
        path = self.trial.paths[leaf]
        below = path[: path.index(theirs) + 1]
        queues, units = self.round.snapshot.queues, self.round.snapshot.scale.units
        return tuple(
            furthest_over(queues[i], self.round.shares[i], self.trial.allocated[i], units)
            for i in reversed(below)
        )

    def excess(self, queue: QueueIndex) -> int:
        kind = self._kind
        has = self.trial.allocated[queue][kind]
        quota = self.round.snapshot.queues[queue].quota[kind]
        keeps = self.round.entitled[queue][kind]
        if self._in_quota[self._branches[queue][0]]:
            keeps = min(keeps, quota)
        return max(0, has - keeps) if keeps < UNLIMITED else 0

    def objection(self, gave: Iterable[QueueIndex]) -> str | None:
        """Whether a branch of the claimant would be fuller than one that gave (saturation)."""
        more = self.trial.settings.saturation_multiplier
        queues = self.round.snapshot.queues
        branches = sorted({self._branches[queue][1] for queue in gave})
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
