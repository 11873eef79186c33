"""A trial takes back what it did, exactly, in whatever order it was done."""

from __future__ import annotations

from hypothesis import given, strategies as st

from fedpilot.fabric.core.scheduling.records import (
    MachineIndex,
    Reason,
    Rule,
    Settings,
    WorkloadId,
)
from fedpilot.fabric.core.scheduling.trial import Trial
from scheduling_situations import facts, gang, workload

REASON = Reason(Rule.UNUSED, "for a test")


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_a_rollback_restores_everything(steps: list[tuple[int, bool]]) -> None:
    kept = facts([4, 4], {"A": 2, "B": 2}, each_gpu=True)
    for number in range(4):
        on = [number % 2] if number < 2 else []
        kept.add(workload(f"w{number}", number % 2, gang((0.5, 2)), on=on))
    snapshot = kept.snapshot()
    trial = Trial(snapshot, 0.0, Settings())
    begin = trial.checkpoint()
    for number, starts in steps:
        found = trial.workload(WorkloadId(f"w{number}"))
        if starts and len(found.members) < 4:
            trial.start(found, [(0, MachineIndex(number % 2))], REASON)
        elif found.members:
            trial.stop(found, (len(found.members) - 1,), None, REASON)
    trial.rollback(begin)
    assert (trial.free == snapshot.free).all()
    assert trial.devices is not None
    assert snapshot.devices is not None
    assert (trial.devices == snapshot.devices).all()
    assert [tuple(each) for each in trial.allocated] == list(snapshot.allocated)
    assert all(trial.workload(id) == each for id, each in snapshot.workloads.items())
    assert trial.decisions == []
