"""All that the actions of one round share, and how an action is tried for everybody who waits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..admission_rules import refusal
from ..fairshare import requested, shares_of
from ..node_choice import Machines, NoPlaces, Placed
from ..order import Contest, entitlement, flexible_need, minimum_need
from ..records import (
    Amounts,
    GangSpec,
    Line,
    Pending,
    QueueIndex,
    Reason,
    Rule,
    Settings,
    StartMembers,
    Strategy,
    Workload,
    WorkloadId,
    plus,
    within,
)
from ..snapshot import Kind, SchedulingSnapshot, kind_of
from ..trial import Trial

T = TypeVar("T")

IN_VAIN = (Rule.NEVER, Rule.MAY_COME)
"""Why a workload waits that no action can help."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Workloads of one kind that still wait, oldest first, and why."""

    kind: Kind
    lines: tuple[Line, ...]
    reason: Reason

    def told(self) -> Pending:
        return Pending(tuple([id for _, id in self.lines]), self.reason)


@dataclass(frozen=True, slots=True)
class Claim:
    """What an action makes room for: all that a workload's minimum lacks, or a flexible member."""

    workload: Workload
    lacking: tuple[int, ...]
    """Members of each part."""
    need: Amounts
    pool: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Machines that are kept free for a workload, and what is left for all others of its pool."""

    workload: WorkloadId
    others: Machines


@dataclass(frozen=True, slots=True)
class Fork:
    """Where the paths of two projects part, below what they have in common."""

    mine: QueueIndex
    theirs: QueueIndex
    below: tuple[QueueIndex, ...]
    """From `theirs` down to the other project."""


@dataclass(slots=True, kw_only=True)
class PlanRound:
    """A trial, and what does not change during a round."""

    trial: Trial
    machines: Machines
    kept: dict[str, Kept] = field(default_factory=dict)
    """By pool."""
    shares: tuple[Amounts, ...]
    """The fair share of each queue."""
    entitled: tuple[Amounts, ...]
    """The larger of quota and share, within the limit."""
    could_run: dict[Kind, bool]
    """Which kinds of the backlog could run if all ready machines were empty."""
    may_run: dict[Kind, bool]
    """Which could run if all machines that may come were there as well."""
    no_room: dict[tuple[str, GangSpec], NoPlaces] = field(default_factory=dict)
    """Gangs that found no places since anything was stopped last."""
    _known: dict[QueueIndex, dict[Hashable, Any]] = field(default_factory=dict)
    """What was found out of each queue since an action changed it last."""
    _new: dict[QueueIndex, set[WorkloadId]] = field(default_factory=dict)
    """The workloads that have started, by queue."""
    _forks: dict[tuple[QueueIndex, QueueIndex], Fork] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: SchedulingSnapshot, now: float, settings: Settings) -> PlanRound:
        """Compute the shares, and begin a trial."""
        machines = Machines(snapshot)
        allowed = {kind: _allowed(snapshot, kind) for kind in snapshot.backlog}
        could_run = {
            kind: may and machines.could_run(snapshot.queues[kind.queue].pool, kind.gang)
            for kind, may in allowed.items()
        }
        may_run = _with_machines_to_come(snapshot, allowed, could_run)
        shares = shares_of(snapshot, requested(snapshot, may_run), settings)
        return cls(
            trial=Trial(snapshot, now, settings),
            machines=machines,
            shares=shares,
            entitled=tuple(map(entitlement, snapshot.queues, shares)),
            could_run=could_run,
            may_run=may_run,
        )

    @property
    def snapshot(self) -> SchedulingSnapshot:
        return self.trial.snapshot

    def pool(self, queue: QueueIndex) -> str:
        return self.snapshot.queues[queue].pool

    def fork(self, mine: QueueIndex, other: QueueIndex) -> Fork:
        """Where the paths of two projects part."""
        found = self._forks.get((mine, other))
        if found is None:
            ours, theirs = self.trial.paths[mine][::-1], self.trial.paths[other][::-1]
            at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            found = self._forks[mine, other] = Fork(ours[at], theirs[at], theirs[at:])
        return found

    def keeps(self, workload: Workload) -> Kept | None:
        """What is kept free for another workload."""
        kept = self.kept.get(self.pool(workload.queue))
        if kept is None or kept.workload == workload.id:
            return None
        return kept if any(self.trial.workload(kept.workload).missing) else None

    def machines_for(self, workload: Workload) -> Machines:
        """The machines that a workload may use."""
        kept = self.keeps(workload)
        return self.machines if kept is None else kept.others

    def claim(self, workload: Workload, lacking: tuple[int, ...]) -> Claim:
        return Claim(workload, lacking, workload.gang.total(lacking), self.pool(workload.queue))

    def once(self, queue: QueueIndex, key: Hashable, find: Callable[[], T]) -> T:
        """What `find` answers about a queue; asked again only once an action has changed the
        queue, since one that fails changes nothing."""
        known = self._known.setdefault(queue, {})
        if key not in known:
            known[key] = find()
        found: T = known[key]
        return found

    def new(self, queue: QueueIndex) -> Set[WorkloadId]:
        """The workloads of a queue that have started in this round, which does not stop them."""
        return self._new.get(queue, frozenset())

    def succeeded(self, since: int) -> set[QueueIndex]:
        """Forget what an action has changed by its decisions since then; return these queues."""
        self.no_room.clear()
        touched = self.keep_starts(since)
        for queue in touched:
            self._known.pop(queue, None)
        return touched

    def keep_starts(self, since: int) -> set[QueueIndex]:
        """Count those as new that decisions since then start; return the queues they concern."""
        touched = set()
        for decision in self.trial.decisions[since:]:
            queue = self.snapshot.workloads[decision.workload].queue
            touched.add(queue)
            if isinstance(decision, StartMembers):
                self._new.setdefault(queue, set()).add(decision.workload)
        return touched

    def contest(self, waiting: Iterable[tuple[Kind, Sequence[Line]]]) -> Contest:
        """A contest between workloads that wait."""
        return Contest.of(
            self.snapshot.queues,
            self.shares,
            self.entitled,
            self.trial.allocated,
            self.snapshot.scale.units,
            waiting,
        )

    def refusal(self, workload: Workload, need: Amounts) -> Reason | None:
        """Why limits or quotas forbid a workload `need` more."""
        return refusal(
            self.snapshot.queues,
            self.trial.paths[workload.queue],
            self.trial.allocated,
            self.trial.guaranteed,
            need,
            preemptible=workload.preemptible,
            scale=self.snapshot.scale,
        )

    def place(self, workload: Workload, lacking: Sequence[int]) -> Placed | NoPlaces:
        """Places for these many more members of each part, among what is free."""
        pool = self.pool(workload.queue)
        favoured = (kept := self.kept.get(pool)) is not None and kept.workload == workload.id
        whole = not workload.members and not favoured
        if whole and (known := self.no_room.get((pool, workload.gang))) is not None:
            return known
        lone = self._lone_place(pool, workload, lacking)
        if lone is not None:
            return lone
        found = self._search(self.machines_for(workload), workload, lacking)
        if whole and isinstance(found, NoPlaces):
            self.no_room[pool, workload.gang] = found
        return found

    def has_kept_room(self, workload: Workload, lacking: Sequence[int]) -> bool:
        """Whether there would be places if nothing were kept free."""
        return not isinstance(self._search(self.machines, workload, lacking), NoPlaces)

    def _search(
        self, machines: Machines, workload: Workload, lacking: Sequence[int]
    ) -> Placed | NoPlaces:
        return machines.choose(
            self.pool(workload.queue),
            workload.gang,
            lacking,
            [(member.part, member.machine) for member in workload.members],
            free=self.trial.free,
            devices=self.trial.devices,
            strategy=self.trial.strategy,
        )

    def _lone_place(self, pool: str, workload: Workload, lacking: Sequence[int]) -> Placed | None:
        """The place of one member that is bin-packed; None for other work, and without room.

        A policy says nothing about the only member of a gang.
        """
        if sum(lacking) != 1:
            return None
        number = lacking.index(1)
        gang, trial = workload.gang, self.trial
        part, machines = gang.parts[number], self.machines_for(workload)
        if gang.policies[part.group] is not None and workload.members:
            return None
        if trial.strategy(pool, part.request) is not Strategy.BINPACK:
            return None
        machine = machines.fullest(pool, part, trial.free, trial.devices, trial.changes)
        return None if machine is None else [(number, machine)]

    def start_reason(self, workload: Workload, need: Amounts, *, surplus: bool) -> Reason:
        """Under which rule a workload starts `need`, on what is free."""
        queue, index = self.snapshot.queues[workload.queue], workload.queue
        if surplus:
            return Reason(Rule.SURPLUS, "a member above its minimum, on free resources")
        then = plus(self.trial.allocated[index], need)
        if within(then, queue.quota):
            return Reason(Rule.IN_QUOTA, f"{queue.name} stays within its quota")
        if within(then, self.shares[index]):
            return Reason(Rule.WITHIN_FAIRSHARE, f"{queue.name} stays within its fair share")
        return Reason(Rule.UNUSED, f"no other queue can use it; {queue.name} is above its share")


Effort = Callable[[], str | None]
"""Make room for a workload and start it; None, or why that failed."""
Action = Callable[[PlanRound, Claim], str | Effort]
"""What to try for a workload; or why nothing is worth a try, which changes nothing."""


def attempt(
    round: PlanRound, waiting: Iterable[Waiting], action: Action, *, flexible: bool = False
) -> list[Waiting]:
    """Try an action for all that wait below their minimum, or for `flexible` members above it, in
    order; return those that still wait.

    If it fails for one of a kind, it fails for all of that kind in this round.
    """
    asks = flexible_need if flexible else minimum_need

    def effort(kind: Kind, line: Line) -> str | Effort | None:
        """What to try for a workload that waits; None if it has meanwhile what it lacked."""
        workload = round.trial.workload(line[1])
        as_it_was = workload is round.snapshot.workloads[workload.id]
        lacking = asks(kind if as_it_was else kind_of(workload) or kind)
        return action(round, round.claim(workload, lacking)) if lacking else None

    able: list[Waiting] = []
    still: list[Waiting] = []
    for each in waiting:
        in_vain = asks(each.kind) is None or each.reason.rule in IN_VAIN
        (still if in_vain else able).append(each)
    refused = _all_refused(able, effort)
    if refused is not None:
        return [*still, *refused]
    reasons = {each.kind: each.reason for each in able}
    contest = round.contest((each.kind, each.lines) for each in able)
    while (found := contest.pop()) is not None:
        kind, line = found
        before = round.trial.checkpoint()
        why = effort(kind, line)
        if callable(why):
            why = why()
        if why is None:
            for queue in round.succeeded(before.decisions):
                contest.touch(queue)
            then = kind_of(round.trial.workload(line[1]))
            if flexible and then is not None and asks(then) is not None:
                reasons.setdefault(then, reasons[kind])
                contest.add(then, line)
            continue
        round.trial.rollback(before)
        still.append(Waiting(kind, (line, *contest.drop(kind)), reasons[kind].also(why)))
    return still


def _all_refused(
    able: Iterable[Waiting], effort: Callable[[Kind, Line], str | Effort | None]
) -> list[Waiting] | None:
    """Those that wait, each with why nothing is worth a try; None if something is for one of them.

    As nothing changes, they need no order, and a contest costs more than all their refusals.
    """
    refused = []
    for each in able:
        why = effort(each.kind, each.lines[0])
        if not isinstance(why, str):
            return None
        refused.append(Waiting(each.kind, each.lines, each.reason.also(why)))
    return refused


def _allowed(snapshot: SchedulingSnapshot, kind: Kind) -> bool:
    """Whether limits and quotas would allow a kind its minimum if nothing else ran."""
    least = kind.gang.least
    zero = [(0,) * len(least)] * len(snapshot.queues)
    forbidden = refusal(
        snapshot.queues,
        snapshot.path(kind.queue),
        zero,
        zero,
        least,
        preemptible=kind.preemptible,
        scale=snapshot.scale,
    )
    return forbidden is None


def _with_machines_to_come(
    snapshot: SchedulingSnapshot, allowed: dict[Kind, bool], could_run: dict[Kind, bool]
) -> dict[Kind, bool]:
    """Which kinds could run on all machines, those to come as well."""
    asking = [kind for kind, may in allowed.items() if may and not could_run[kind]]
    if not asking or not snapshot.may_come:
        return could_run
    most = max(max(kind.gang.size, 1) for kind in asking)
    machines = Machines(snapshot.with_all_that_may_come(most))
    pools = {kind: snapshot.queues[kind.queue].pool for kind in asking}
    return could_run | {kind: machines.could_run(pools[kind], kind.gang) for kind in asking}
