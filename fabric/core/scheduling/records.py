"""What the scheduler reasons about: queues, workloads and their gangs, settings and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple, NewType

from ..records import SchedulingPolicy
from ..selectors import Condition

WorkloadId = NewType("WorkloadId", str)
QueueIndex = NewType("QueueIndex", int)
"""The place of a queue in its snapshot."""
MachineIndex = NewType("MachineIndex", int)
"""The place of a machine in its snapshot, whose machines are sorted by name."""

Amounts = tuple[int, ...]
"""One whole number of units per resource of the snapshot, in its order."""
Line = tuple[float, WorkloadId]
"""A place in line: submit order and id."""

UNLIMITED = 1 << 62
"""More than any amount: no limit, or a quota of everything."""


def plus(a: Sequence[int], b: Sequence[int]) -> Amounts:
    return tuple([x + y for x, y in zip(a, b, strict=True)])


def minus(a: Amounts, b: Amounts) -> Amounts:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def times(count: int, a: Amounts) -> Amounts:
    return a if count == 1 else tuple([count * x for x in a])


def within(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether `a` is at most `b` in every resource."""
    for x, y in zip(a, b, strict=True):  # noqa: SIM110 - half the time of `all`, asked at each step
        if x > y:
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQueue:
    """What a project, or a department, is promised in one pool."""

    name: str
    pool: str
    parent: QueueIndex | None
    """The queue of its department; None at the top."""
    leaf: bool
    """Whether it is a project's, and so may hold workloads."""
    quota: Amounts
    weight: tuple[Fraction, ...]
    """Its claim on what no quota uses, relative to its siblings'."""
    limit: Amounts
    rationed: tuple[bool, ...]
    """Which resources its siblings and it divide; the quota of the others is `UNLIMITED`."""
    priority: int = 0
    created: int = 0
    """Its rank among queues by age."""
    reclaimable: bool = True
    """False protects the minimums of its workloads from other queues, never their surplus."""
    min_runtime_before_preempt_s: float | None = None
    min_runtime_before_reclaim_s: float | None = None
    usage: tuple[Fraction, ...] | None = None
    """What it used lately, as a part of the pool's capacity; None without a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPart:
    """Members of a gang that ask for the same."""

    request: Amounts
    """Of each member."""
    least: int
    most: int
    """Members above `least` are surplus."""
    flexible: bool = False
    """Whether surplus may claim within the quota of its queue, as flexible demand does."""
    selector: tuple[tuple[str, Condition], ...] = ()
    group: int = 0
    """Which of the gang's policies places it."""

    @property
    def borrowed(self) -> bool:
        """Whether members only leave: they are surplus that is not started by a plan."""
        return not self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """All that a workload asks for. Its minimum starts together or not at all."""

    parts: tuple[GangPart, ...]
    policies: tuple[SchedulingPolicy | None, ...] = (None,)
    """One per group; None leaves it to the pool's placement strategy."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Computed once, since gangs are keys in every step of a round."""

    size: int = field(init=False, repr=False, compare=False)
    """How many members its minimum has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.parts, self.policies)))
        object.__setattr__(self, "size", sum(part.least for part in self.parts))

    def __hash__(self) -> int:
        return self._hash

    @property
    def least(self) -> Amounts:
        """What the minimum takes."""
        return self.total([part.least for part in self.parts])

    def total(self, counts: list[int] | tuple[int, ...]) -> Amounts:
        """What this many members of each part take."""
        if len(self.parts) == 1:
            return times(counts[0], self.parts[0].request)
        found: Amounts = (0,) * len(self.parts[0].request)
        for part, count in zip(self.parts, counts, strict=True):
            if count:
                found = plus(found, times(count, part.request))
        return found


class Member(NamedTuple):
    """A running member of a gang."""

    part: int
    machine: MachineIndex
    gpus: tuple[int, ...] = ()
    """The GPUs that it holds, by number, where the snapshot counts each GPU by itself."""


class Workload(NamedTuple):
    """A gang in its queue, running or not; a tuple, since a round makes many anew."""

    id: WorkloadId
    queue: QueueIndex
    gang: GangSpec
    priority: int
    preemptible: bool
    submit_order: float
    """Smaller is older."""
    members: tuple[Member, ...] = ()
    """In the order in which they started."""
    started_s: float | None = None
    """Since when its minimum runs."""
    stale_since_s: float | None = None
    """Since when some, but fewer than its minimum, run."""
    waits_since_s: float | None = None
    """Since when its minimum does not run."""
    surplus_yields: bool = False
    """Whether its surplus gives way to minimums of its queue even if it is not preemptible."""
    movable: bool = True
    """Whether its members may be moved, if it is preemptible."""

    @property
    def counts(self) -> tuple[int, ...]:
        """How many members of each part run."""
        return self._counts_of(self.members)

    def _counts_of(self, members: tuple[Member, ...]) -> tuple[int, ...]:
        if len(self.gang.parts) == 1:
            return (len(members),)
        counts = [0] * len(self.gang.parts)
        for member in members:
            counts[member.part] += 1
        return tuple(counts)

    @property
    def missing(self) -> tuple[int, ...]:
        """How many members of each part its minimum lacks."""
        return tuple(
            max(0, part.least - n) for part, n in zip(self.gang.parts, self.counts, strict=True)
        )

    @property
    def surplus(self) -> tuple[int, ...]:
        """The positions in `members` of those above the minimum, last started first."""
        if len(self.members) <= self.gang.size or any(self.missing):
            return ()
        left = [n - p.least for n, p in zip(self.counts, self.gang.parts, strict=True)]
        found = []
        for position in range(len(self.members) - 1, -1, -1):
            part = self.members[position].part
            if left[part] > 0:
                left[part] -= 1
                found.append(position)
        return tuple(found)

    def started(self, members: tuple[Member, ...], now: float) -> Workload:
        """This workload with these members more."""
        return self._with((*self.members, *members), now)

    def stopped(self, positions: tuple[int, ...], now: float) -> Workload:
        """This workload without the members at these positions."""
        gone = set(positions)
        left = tuple(each for at, each in enumerate(self.members) if at not in gone)
        return self._with(left, now)

    def moved(self, position: int, target: Member) -> Workload:
        """This workload with a member elsewhere."""
        before, after = self.members[:position], self.members[position + 1 :]
        return self._replace(members=(*before, target, *after))

    def _with(self, members: tuple[Member, ...], now: float) -> Workload:
        parts = self.gang.parts
        if len(parts) == 1:
            complete = len(members) >= parts[0].least
        else:
            counts = self._counts_of(members)
            complete = all(n >= part.least for n, part in zip(counts, parts, strict=True))
        started_s = stale_since_s = waits_since_s = None
        if not (members and complete):
            waits_since_s = now if self.waits_since_s is None else self.waits_since_s
        if members and complete:
            started_s = now if self.started_s is None else self.started_s
        elif members:
            stale_since_s = now if self.stale_since_s is None else self.stale_since_s
        return self._replace(
            members=members,
            started_s=started_s,
            stale_since_s=stale_since_s,
            waits_since_s=waits_since_s,
        )

    def holds(self, positions: tuple[int, ...] | range) -> Amounts:
        """What these members take."""
        if len(self.gang.parts) == 1:
            return times(len(positions), self.gang.parts[0].request)
        counts = [0] * len(self.gang.parts)
        for position in positions:
            counts[self.members[position].part] += 1
        return self.gang.total(counts)


class Strategy(StrEnum):
    """Which machine, and which GPU, a member gets among those with room."""

    BINPACK = "binpack"
    """The one with the least left."""
    SPREAD = "spread"
    """The one with the largest part of it left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStrategies:
    """The strategies of a pool."""

    gpu: Strategy = Strategy.BINPACK
    """For work that asks for GPUs."""
    cpu: Strategy = Strategy.BINPACK
    """For all other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an admin chooses for the whole scheduler."""

    placement: Mapping[str, PoolStrategies] = field(default_factory=dict, hash=False)
    """By pool; a pool that is missing bin-packs."""
    surplus_claims: bool = True
    """Whether flexible demand may claim what other queues have above their quota."""
    consolidation: bool = False
    """Whether members may be moved to make one large room of several small ones."""
    consolidation_candidates: int = 16
    """How many workloads one consolidation may move."""
    stale_gang_grace_s: float = 60.0
    """How long a gang may run below its minimum; negative: for ever."""
    starvation_s: float | None = None
    """After how long a wait machines are kept free for a workload; None: never."""
    saturation_multiplier: float = 1.0
    """How much fuller than a sibling a claimant's queue counts; at least 1."""
    min_runtime_at_leaf: bool = False
    """Where reclaim reads the minimum runtime: at the victim's project first, or (the default) at
    the branch just below what claimant and victim have in common."""
    usage_effect: float = 0.0
    """How strongly past usage moves the weights; 0: not at all."""


class Rule(StrEnum):
    """The rules that a reason can name."""

    IN_QUOTA = "in-quota"
    """Started within its queue's quota."""
    WITHIN_FAIRSHARE = "within-fairshare"
    """Started above quota, within its queue's fair share."""
    UNUSED = "unused"
    """Started above its queue's fair share, on what no other queue can use now."""
    SURPLUS = "surplus"
    """A member above the minimum, started on free resources."""
    RECLAIM_FAIRSHARE = "reclaim-fairshare"
    """Stopped: its queue had more than its share, and the claimant's had less."""
    RECLAIM_QUOTA = "reclaim-quota"
    """Stopped: its queue had more than its quota, and the claimant stays within its quota."""
    PREEMPT_PRIORITY = "preempt-priority"
    """Stopped for a workload of higher priority in its queue."""
    PREEMPT_SURPLUS = "preempt-surplus"
    """A surplus member, stopped for the minimum of a workload in its queue."""
    CONSOLIDATE = "consolidate"
    """Moved, so that scattered room becomes one."""
    STALE_GANG = "stale-gang"
    """Stopped: it ran below its minimum for longer than the grace period."""
    LIMIT = "limit"
    """Waits: its queue, or its department, would exceed its limit."""
    NONPREEMPTIBLE_QUOTA = "nonpreemptible-quota"
    """Waits: non-preemptible work may not exceed the quota of its queue or department."""
    NO_ROOM = "no-room"
    """Waits: its gang has no place now."""
    KEPT = "kept-free"
    """Waits: the machines with room are kept free for a workload that has waited too long."""
    MAY_COME = "may-come"
    """Waits: only with machines that may come could its gang have places."""
    NEVER = "never"
    """Waits: no machine could hold its gang, even if all were empty."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The rule, and the facts that it met."""

    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"

    def also(self, why: str) -> Reason:
        """The same rule with one more fact, if there is one."""
        return Reason(self.rule, f"{self.text}; {why}") if why else self


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMembers:
    """Start members; all that the minimum lacks, or one surplus member."""

    workload: WorkloadId
    members: tuple[Member, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMembers:
    """Stop members; they are pending again, with their place in line."""

    workload: WorkloadId
    positions: tuple[int, ...]
    """Their places in the workload's `members` when it is applied."""
    members: tuple[Member, ...]
    claimant: WorkloadId | None
    """For whom; the same plan starts it. None only for a stale gang."""
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveMember:
    """Stop a member and start it elsewhere, at once."""

    workload: WorkloadId
    position: int
    """Its place in the workload's `members` when it is applied, and afterwards."""
    source: Member
    target: Member
    claimant: WorkloadId
    reason: Reason


Decision = StartMembers | StopMembers | MoveMember


@dataclass(frozen=True, slots=True)
class Pending:
    """Workloads that stay as they are, and why."""

    workloads: tuple[WorkloadId, ...]
    """Oldest first."""
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPlan:
    """One round."""

    decisions: tuple[Decision, ...]
    """In the order in which to apply them."""
    waits: tuple[Pending, ...]
    """Every workload below its minimum, once."""
    fairshare: tuple[Amounts, ...]
    """By queue; `UNLIMITED` where nothing is rationed."""
