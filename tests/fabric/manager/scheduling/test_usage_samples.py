"""The manager remembers what projects held and deserved, with room for so many samples."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

from fedpilot.fabric.core.scheduling.records import UNLIMITED, PoolQueue, QueueIndex
from fedpilot.fabric.core.scheduling.snapshot import FINE, Facts, Scale
from fedpilot.fabric.manager.scheduling.usage_samples import (
    MOST,
    PERIOD_S,
    UsageSamples,
)

SCALE = Scale.of({"CPU": 100.0, "GPU": 8.0})


def queue(name: str, leaf: bool = True) -> PoolQueue:
    return PoolQueue(
        name=name,
        pool="p",
        parent=QueueIndex(0) if leaf else None,
        leaf=leaf,
        quota=(UNLIMITED, 0),
        weight=(Fraction(0), Fraction(1)),
        limit=(UNLIMITED, UNLIMITED),
        rationed=(True, True),
    )


QUEUES = (queue("department", leaf=False), queue("project"))


def take(samples: UsageSamples, at: float, cpus: float) -> None:
    facts = Facts(SCALE, [], QUEUES, each_gpu=False)
    held = (int(cpus * FINE), 0)
    snapshot = replace(facts.snapshot(), allocated=(held, held))
    samples.take(at, snapshot, ((UNLIMITED, 2 * FINE),) * 2)


def test_a_sample_has_what_projects_held_and_deserved() -> None:
    samples = UsageSamples()
    take(samples, 5.0, 1.5)
    assert samples.documents() == [
        {
            "time": 5.0,
            "queues": [
                {
                    "name": "project",
                    "pool": "p",
                    "allocated": {"CPU": 1.5},
                    "quota": {"CPU": None, "GPU": 0},
                    "fairshare": {"CPU": None, "GPU": 2},
                }
            ],
        }
    ]


def test_a_sample_is_taken_if_anything_has_changed_and_at_most_once_per_period() -> None:
    samples = UsageSamples()
    for at, cpus in ((0.0, 1), (PERIOD_S / 2, 2), (PERIOD_S, 2), (3 * PERIOD_S, 2), (9.0, 3)):
        take(samples, at, cpus)
    assert [each["time"] for each in samples.documents()] == [0.0, PERIOD_S, 9.0]


def test_when_there_is_no_more_room_samples_become_rarer_and_reach_back_as_far() -> None:
    samples = UsageSamples()
    for n in range(4 * MOST):
        take(samples, float(n), n)
    times = [each["time"] for each in samples.documents()]
    assert len(times) <= MOST
    assert times[0] == 0.0
    assert times[-1] > 4 * MOST - 20
    assert times == sorted(times)
    assert max(b - a for a, b in itertools.pairwise(times)) <= 16
