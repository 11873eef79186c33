"""Small situations of one pool, one resource and projects without departments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from fedpilot.fabric.core.scheduling.records import (
    UNLIMITED,
    GangPart,
    GangSpec,
    MachineIndex,
    Member,
    PoolQueue,
    QueueIndex,
    Workload,
    WorkloadId,
)
from fedpilot.fabric.core.scheduling.snapshot import Facts, MachineSpec, Scale

GPU = 10_000
"""One GPU, in units."""


def facts(gpus: Sequence[int], quotas: Mapping[str, int], *, each_gpu: bool = False) -> Facts:
    """Machines m0, m1, ... of so many GPUs, and projects with these quotas."""
    machines = [
        MachineSpec(name=f"m{i}", pool="default", capacity=(n * GPU,), labels={})
        for i, n in enumerate(gpus)
    ]
    queues = [
        PoolQueue(
            name=name,
            pool="default",
            parent=None,
            leaf=True,
            quota=(quota * GPU,),
            weight=(Fraction(0),),
            limit=(UNLIMITED,),
            rationed=(True,),
            created=i,
        )
        for i, (name, quota) in enumerate(quotas.items())
    ]
    return Facts(Scale(names=("gpu",), units=(GPU,)), machines, queues, each_gpu=each_gpu)


def gang(*parts: tuple[float, int], policy: object = None) -> GangSpec:
    """A gang of parts: GPUs of a member, and the number of members."""
    made = tuple(GangPart(request=(round(g * GPU),), least=n, most=n) for g, n in parts)
    return GangSpec(parts=made, policies=(policy,))  # type: ignore[arg-type]


def workload(
    id: str,
    queue: int,
    asked: GangSpec,
    *,
    age: int = 0,
    on: Sequence[int] = (),
    priority: int = 50,
) -> Workload:
    """A preemptible workload, with a member on each of these machines."""
    found = Workload(
        id=WorkloadId(id),
        queue=QueueIndex(queue),
        gang=asked,
        priority=priority,
        preemptible=True,
        submit_order=age,
    )
    members = tuple(Member(0, MachineIndex(machine)) for machine in on)
    return found.started(members, 0.0) if members else found
