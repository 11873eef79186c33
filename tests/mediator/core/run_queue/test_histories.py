"""In random histories of runs that ask for two sites in opposite orders, no run is stuck.

A run asks its sites one after the other, in an order of its own, and keeps what one of them
promised while it waits for the next, as in the two phases of the mediator.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.scheduling.snapshot import Scale
from fedpilot.fabric.spec.queue_file import queue_file_of
from fedpilot.fabric.spec.queue_table import QueueTable
from fedpilot.mediator.core.run_queue import (
    POOL,
    ProjectQueues,
    RunAsk,
    RunAtWork,
    RunQueueSettings,
    SiteRoom,
    WaitingRun,
    decide,
)

SITES = ("a", "b", "c")
ASKS_FOR_S = 5
"""How long a site tries to find room before it says that it is full."""
LONGEST_S = 20_000


@dataclass(frozen=True)
class Job:
    """A run of a history."""

    name: str
    user: str
    priority: int
    arrives_s: int
    works_s: int
    asks: tuple[str, ...]
    """Its sites, in the order in which it asks them."""
    cpus: int


@dataclass
class Attempt:
    """A run from its turn to its end."""

    job: Job
    alone: bool
    held: list[str] = field(default_factory=list)
    asked_for_s: int = 0
    ends_s: int | None = None


@dataclass
class History:
    """Sites and runs, second by second; `told` is what the queue believes of the sites' sizes."""

    jobs: Sequence[Job]
    cpus: int
    told: int
    settings: RunQueueSettings
    chance: random.Random
    projects: ProjectQueues = field(default_factory=ProjectQueues)
    now: int = 0
    at_work: dict[str, Attempt] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    paused: dict[str, float] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def play(self) -> None:
        """Go on until all runs have ended."""
        while len(self.ended) < len(self.jobs):
            assert self.now < LONGEST_S, f"stuck: {self.at_work}, {self.refusals}"
            self._give_turns()
            attempts = list(self.at_work.values())
            self.chance.shuffle(attempts)
            refused = [each for each in attempts if not self._advance(each)]
            for attempt in refused:  # its sites are told after it has heard from all of them
                self._back_in_line(attempt.job)
            self._check()
            self.now += 1

    def _give_turns(self) -> None:
        waiting = [
            WaitingRun(
                run=job.name,
                user=job.user,
                priority=job.priority,
                submitted_at=float(job.arrives_s),
                ask=_ask(job),
                refused=job.name in self.refusals,
                not_before=self.paused.get(job.name, 0.0),
            )
            for job in self.jobs
            if job.arrives_s <= self.now and job.name not in {*self.at_work, *self.ended}
        ]
        at_work = [
            RunAtWork(
                run=each.job.name,
                user=each.job.user,
                ask=_ask(each.job),
                sites=frozenset(each.job.asks),
                reserving=each.ends_s is None,
                alone=each.alone,
            )
            for each in self.at_work.values()
        ]
        sites = [SiteRoom(name=name, total=Resources.of({"CPU": self.told})) for name in SITES]
        found = decide(waiting, at_work, sites, self.settings, self.now, projects=self.projects)
        assert len(found.begins) + len(found.waits) == len(waiting)
        jobs = {job.name: job for job in self.jobs}
        for begin in found.begins:
            self.begun.append(begin.run)
            self.at_work[begin.run] = Attempt(jobs[begin.run], begin.run in self.refusals)

    def _advance(self, attempt: Attempt) -> bool:
        """Let a second pass; return False if the run gives up, since a site is full."""
        job, left = attempt.job, [each for each in attempt.job.asks if each not in attempt.held]
        if attempt.ends_s is not None:
            if self.now >= attempt.ends_s:
                del self.at_work[job.name]
                self.ended.append(job.name)
                self.paused.clear()
        elif not left:
            attempt.ends_s = self.now + job.works_s
            self.refusals.pop(job.name, None)
        elif self._used(left[0]) + job.cpus <= self.cpus:
            attempt.held.append(left[0])
            attempt.asked_for_s = 0
        elif attempt.asked_for_s < ASKS_FOR_S:
            attempt.asked_for_s += 1
        else:
            return False
        return True

    def _back_in_line(self, job: Job) -> None:
        del self.at_work[job.name]  # it holds nothing while it waits
        self.refusals[job.name] = self.refusals.get(job.name, 0) + 1
        self.paused[job.name] = self.now + self.settings.pause_s(self.refusals[job.name])

    def _used(self, site: str) -> int:
        return sum(each.job.cpus for each in self.at_work.values() if site in each.held)

    def _check(self) -> None:
        assert all(self._used(site) <= self.cpus for site in SITES)
        if (most := self.settings.runs_per_user) is not None:
            users = [each.job.user for each in self.at_work.values()]
            assert all(users.count(user) <= most for user in users)


def _ask(job: Job) -> RunAsk:
    return RunAsk(
        vnode={"CPU": float(job.cpus)}, workers=1, count=2, required=job.asks, project=job.user
    )


def _shared(limit: float) -> ProjectQueues:
    """A project of each user, with quotas that are not equal."""
    projects = [
        {
            "name": name,
            "quota": {POOL: {"CPU": cpus}},
            "over_quota_weight": {POOL: {"CPU": 1}},
            "limit": {POOL: {"CPU": limit}},
        }
        for name, cpus in zip("uvw", (0, 1, 3), strict=True)
    ]
    file = queue_file_of({"projects": projects})
    scale = Scale.of({"CPU": 1.0})
    return ProjectQueues(scale=scale, queues=QueueTable(file, scale, (POOL,)).queues)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Up to a dozen runs of three users, each at two of three sites."""
    number = draw(st.integers(2, 12))
    return [
        Job(
            name=f"r{i}",
            user=draw(st.sampled_from("uvw")),
            priority=draw(st.sampled_from((50, 100))),
            arrives_s=draw(st.integers(0, 30)),
            works_s=draw(st.integers(1, 20)),
            asks=tuple(draw(st.permutations(SITES))[:2]),
            cpus=draw(st.integers(1, 2)),
        )
        for i in range(number)
    ]


@given(
    jobs=jobs(),
    told=st.sampled_from((2, 2, 3, 8)),
    limit=st.sampled_from((None, 1, 2)),
    starvation_s=st.sampled_from((10.0, 600.0)),
    seed=st.integers(0, 1_000),
    projects=st.sampled_from((ProjectQueues(), _shared(4.0), _shared(99.0))),
)
def test_no_run_is_stuck(
    jobs: list[Job],
    told: int,
    limit: int | None,
    starvation_s: float,
    seed: int,
    projects: ProjectQueues,
) -> None:
    """With sites that are as large as the queue believes, or smaller."""
    rules = RunQueueSettings(runs_per_user=limit, starvation_s=starvation_s, longest_pause_s=20.0)
    history = History(jobs, 2, told, rules, random.Random(seed), projects)
    history.play()
    if told == 2:
        assert len(history.begun) == len(jobs), "no attempt was in vain"


@pytest.mark.parametrize("limit", [None, 1])
def test_runs_that_block_each_other_behind_the_queues_back_do_so_once(limit: int | None) -> None:
    jobs = [
        Job("r0", "u", 50, 0, 10, ("a", "b"), 2),
        Job("r1", "v", 50, 0, 10, ("b", "a"), 2),
    ]
    history = History(jobs, 2, 8, RunQueueSettings(runs_per_user=limit), random.Random(1))
    history.play()
    assert history.begun[:2] == ["r0", "r1"], "both get one site and wait for the other"
    assert history.begun.count("r0") == 2, "then the first has them for itself"
    assert history.ended == ["r0", "r1"]


@pytest.mark.parametrize("limit", [None, 1])
def test_runs_in_opposite_orders_end_one_after_the_other(limit: int | None) -> None:
    both = [("a", "b"), ("b", "a")]
    jobs = [Job(f"r{i}", f"u{i % 2}", 50, 0, 10, both[i % 2], 2) for i in range(6)]
    history = History(jobs, 2, 2, RunQueueSettings(runs_per_user=limit), random.Random(1))
    history.play()
    assert history.ended == [f"r{i}" for i in range(6)]
