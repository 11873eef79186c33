"""Who stops for a claimant: as few as possible, in order, and only if the claimant then runs."""

from __future__ import annotations

import random

import pytest

from fedpilot.fabric.core.scheduling.plan import plan
from fedpilot.fabric.core.scheduling.records import (
    GangPart,
    GangSpec,
    SchedulingPlan,
    Settings,
    StartMembers,
    StopMembers,
)
from fedpilot.fabric.core.scheduling.snapshot import Facts
from scheduling_situations import GPU, facts, gang, workload


def decided(situation: Facts) -> SchedulingPlan:
    return plan(situation.snapshot(), 0.0, Settings())


def stopped(planned: SchedulingPlan) -> list[str]:
    return sorted(each.workload for each in planned.decisions if isinstance(each, StopMembers))


@pytest.mark.parametrize("machines", [30, 60])
@pytest.mark.parametrize("ages", [0, 30])
def test_a_gang_of_whole_machines_stops_just_what_it_needs(machines: int, ages: int) -> None:
    """Three queues must give all that they have above quota, and no more."""
    members = machines // 10
    rest = (machines - members) * 8 // 3
    situation = facts([8] * machines, {"A": members * 8, "B": rest, "C": rest, "D": rest})
    places = [machine for machine in range(machines) for _ in range(8)]
    random.Random(ages).shuffle(places)
    for number, place in enumerate(places):
        job = workload(f"w{number}", 1 + number % 3, gang((1, 1)), age=number, on=[place])
        situation.add(job)
    situation.add(workload("gang", 0, gang((8, members)), age=9_999))
    planned = decided(situation)
    assert len(stopped(planned)) == 8 * members
    assert [each.workload for each in planned.decisions if isinstance(each, StartMembers)] == [
        "gang"
    ]


def test_the_youngest_stops_of_equals() -> None:
    situation = facts([2], {"A": 1, "B": 0})
    situation.add(workload("old", 1, gang((1, 1)), age=1, on=[0]))
    situation.add(workload("young", 1, gang((1, 1)), age=2, on=[0]))
    situation.add(workload("claim", 0, gang((1, 1)), age=3))
    assert stopped(decided(situation)) == ["young"]


def test_one_that_turns_out_not_to_be_needed_goes_on() -> None:
    situation = facts([1, 2], {"A": 2, "B": 0})
    situation.add(workload("small", 1, gang((1, 1)), age=2, on=[0]))
    situation.add(workload("large", 1, gang((2, 1)), age=1, on=[1]))
    situation.add(workload("claim", 0, gang((2, 1)), age=3))
    assert stopped(decided(situation)) == ["large"]


def test_nothing_stops_if_the_claimant_would_not_fit_all_the_same() -> None:
    situation = facts([1, 1], {"A": 2, "B": 0})
    situation.add(workload("b1", 1, gang((1, 1)), on=[0]))
    situation.add(workload("b2", 1, gang((1, 1)), on=[1]))
    situation.add(workload("claim", 0, gang((2, 1))))
    planned = decided(situation)
    assert planned.decisions == ()
    assert [wait.workloads for wait in planned.waits] == [("claim",)]


def test_a_minimum_is_not_taken_for_surplus_beside_an_equal_member() -> None:
    """A machine has a member of the minimum and one above it, which give way by machine."""
    elastic = GangSpec(parts=(GangPart(request=(2 * GPU,), least=1, most=4),))
    situation = facts([2, 4], {"A": 6})
    situation.add(workload("elastic", 0, elastic, age=1, on=[1, 0, 1], priority=75))
    situation.add(workload("claim", 0, gang((2, 3)), age=2))
    assert decided(situation).decisions == ()


def test_a_gang_with_members_that_differ_claims_too() -> None:
    situation = facts([4], {"A": 3, "B": 0})
    situation.add(workload("b1", 1, gang((1, 1)), age=1, on=[0]))
    situation.add(workload("b2", 1, gang((1, 1)), age=2, on=[0]))
    situation.add(workload("b3", 1, gang((1, 1)), age=3, on=[0]))
    situation.add(workload("claim", 0, gang((2, 1), (1, 1))))
    assert stopped(decided(situation)) == ["b2", "b3"]
