"""Facts: what machines have free, who waits, and what a lost machine takes with it."""

from __future__ import annotations

import numpy as np
import pytest

from fedpilot.fabric.core.scheduling.records import Member, WorkloadId
from fedpilot.fabric.core.scheduling.snapshot import Facts, MachineSpec, Scale, choose_gpus
from scheduling_situations import GPU, facts, gang, workload


def test_a_running_workload_lessens_what_is_free_and_counts_for_its_queue() -> None:
    kept = facts([2, 2], {"A": 1})
    kept.add(workload("w", 0, gang((1, 2)), on=[0, 1]))
    snapshot = kept.snapshot()
    assert snapshot.free[:, 0].tolist() == [GPU, GPU]
    assert snapshot.allocated == ((2 * GPU,),)
    assert snapshot.guaranteed == ((0,),)
    assert not snapshot.backlog


def test_a_snapshot_does_not_change_with_the_facts() -> None:
    kept = facts([2], {"A": 1})
    snapshot = kept.snapshot()
    kept.add(workload("w", 0, gang((1, 1)), on=[0]))
    assert snapshot.free[0, 0] == 2 * GPU
    with pytest.raises(ValueError, match="read-only"):
        snapshot.free[0, 0] = 0


def test_the_backlog_lists_equal_requests_together_oldest_first() -> None:
    kept = facts([2], {"A": 1})
    for id, age in (("young", 2), ("old", 1), ("alike", 1)):
        kept.add(workload(id, 0, gang((1, 1)), age=age))
    (line,) = kept.snapshot().backlog.values()
    assert [id for _, id in line] == ["alike", "old", "young"]


def test_a_lost_machine_leaves_a_gang_stale_and_a_machine_that_is_back_is_empty() -> None:
    kept = facts([1, 1], {"A": 2})
    kept.add(workload("w", 0, gang((1, 2)), on=[0, 1]))
    assert kept.machine_lost("m1", now=7.0) == ("w",)
    snapshot = kept.snapshot()
    assert snapshot.stale == ("w",)
    assert snapshot.workloads[WorkloadId("w")].stale_since_s == 7.0
    assert snapshot.ready.tolist() == [True, False]
    kept.machine_back("m1")
    assert kept.snapshot().free[:, 0].tolist() == [0, GPU]


def test_running_shares_share_a_gpu() -> None:
    kept = facts([2], {"A": 2}, each_gpu=True)
    kept.add(workload("w", 0, gang((0.5, 2)), on=[0, 0]))
    snapshot = kept.snapshot()
    assert snapshot.devices is not None
    assert sorted(snapshot.devices[0].tolist()) == [0, GPU]
    assert {m.gpus for m in snapshot.workloads[WorkloadId("w")].members} == {(0,)}


@pytest.mark.parametrize(
    ("asked", "spread", "gpus"),
    [
        pytest.param(GPU, False, (2,), id="a whole GPU"),
        pytest.param(GPU // 2, False, (0,), id="bin-pack: the GPU with the least left"),
        pytest.param(GPU // 2, True, (2,), id="spread: the GPU with the most left"),
        pytest.param(0, False, (), id="no GPU"),
    ],
)
def test_a_member_gets_these_gpus(asked: int, spread: bool, gpus: tuple[int, ...]) -> None:
    row = np.array([GPU // 2, GPU * 6 // 10, GPU])
    assert choose_gpus(row, asked, GPU, spread=spread) == gpus


def test_bytes_are_counted_in_wholes_and_all_else_in_fine_units() -> None:
    scale = Scale.of({"memory": 10_000 * 2.0**40, "cpu": 80_000})
    assert dict(zip(scale.names, scale.units, strict=True)) == {"cpu": 10_000, "memory": 1}
    assert scale.by_name(scale.amounts({"cpu": 0.5})) == {"cpu": 0.5, "memory": 0}


def test_a_member_keeps_its_place_when_others_stop() -> None:
    asked = gang((1, 3))
    found = workload("w", 0, asked, on=[0, 1, 2]).stopped((1,), 5.0)
    assert [member.machine for member in found.members] == [0, 2]
    assert found.stale_since_s == 5.0
    assert found.started_s is None
    assert found.started((Member(0, found.members[0].machine),), 9.0).started_s == 9.0


def spec(name: str, gpus: int) -> MachineSpec:
    return MachineSpec(name=name, pool="default", capacity=(gpus * GPU,), labels={})


@pytest.mark.parametrize("each_gpu", [False, True])
def test_machines_that_come_and_go_leave_the_facts_as_if_they_were_made_anew(
    each_gpu: bool,
) -> None:
    kept = facts([2, 1, 3], {"A": 9}, each_gpu=each_gpu)
    kept.add(workload("stays", 0, gang((0.5, 3)), on=[0, 2, 2]))
    kept.add(workload("lost", 0, gang((1, 2)), on=[0, 1]))
    kept.add(workload("waits", 0, gang((4, 1))))
    machines = [spec("k", 5), spec("m0", 2), spec("m2", 4)]
    assert kept.set_machines(machines) == ("lost",)
    queues = kept.snapshot().queues
    anew = Facts(Scale(names=("gpu",), units=(GPU,)), machines, queues, each_gpu=each_gpu)
    anew.add(workload("stays", 0, gang((0.5, 3)), on=[1, 2, 2]))
    anew.add(workload("waits", 0, gang((4, 1))))
    found, expected = kept.snapshot(), anew.snapshot()
    assert found.fleet.names == expected.fleet.names == ("k", "m0", "m2")
    assert found.free.tolist() == expected.free.tolist()
    assert found.allocated == expected.allocated
    assert found.backlog == expected.backlog
    assert found.ready.tolist() == [True] * 3
    assert (found.devices is None) is not each_gpu
    if found.devices is not None and expected.devices is not None:
        assert np.sort(found.devices).tolist() == np.sort(expected.devices).tolist()
    places = [m.machine for m in found.workloads[WorkloadId("stays")].members]
    assert places == [1, 2, 2]
