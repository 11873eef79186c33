"""What the lifecycle manager remembers of a declared Ray cluster, as JSON values and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...core.ray_clusters.declaration import MachineName
from ...core.ray_clusters.failures import Failure
from ...core.ray_clusters.lifecycle import RayClusterMemory, RayClusterState
from ...core.ray_clusters.machines import MachineRecord, MachineState
from ...core.ray_clusters.operated import OperatedMachine

Row = dict[str, Any]


def machine_row(machine: MachineRecord | OperatedMachine) -> Row:
    return {**asdict(machine), "state": str(machine.state)}


def cluster_row(memory: RayClusterMemory) -> Row:
    """All that is remembered but the machines."""
    return {
        "state": str(memory.state),
        "state_since_s": memory.state_since_s,
        "next_number": memory.next_number,
        "failures": [asdict(each) for each in memory.failures],
    }


def memory_of(cluster: Row | None, machines: Mapping[MachineName, Row]) -> RayClusterMemory:
    """What was remembered; of a new cluster, nothing."""
    if cluster is None:
        return RayClusterMemory()
    kept = [
        MachineRecord(**{**row, "state": MachineState(row["state"])}) for row in machines.values()
    ]
    return RayClusterMemory(
        state=RayClusterState(cluster["state"]),
        state_since_s=cluster["state_since_s"],
        machines=tuple(sorted(kept, key=lambda machine: machine.number)),
        next_number=cluster["next_number"],
        failures=tuple(Failure(**each) for each in cluster["failures"]),
    )
