"""fabric: one Ray cluster, shared as virtual clusters of reserved nodes.

Importing this package does not import Ray; the first use of `RayCluster` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cluster import Cluster, Group, GroupState, Worker
from .core.placement import most
from .core.records import Bundle, ClusterId, Machine, MachineId, VNode, VNodeId
from .core.resources import Resources
from .core.selectors import DoesNotExist, Exists, In, NotIn
from .errors import (
    ClusterStartFailed,
    ClusterUnreachable,
    FabricError,
    GangExists,
    GangInfeasible,
    GangTimeout,
    SpecError,
    WorkerFailed,
    WorkerLost,
)
from .local import local_machine
from .manager import Gang, VirtualClusterManager, check_feasible
from .spec import FixedSizeNode, FixedSizeNodes, SchedulingPolicy, VirtualCluster

if TYPE_CHECKING:
    from .ray_cluster import RayCluster

__all__ = [
    "Bundle",
    "Cluster",
    "ClusterId",
    "ClusterStartFailed",
    "ClusterUnreachable",
    "DoesNotExist",
    "Exists",
    "FabricError",
    "FixedSizeNode",
    "FixedSizeNodes",
    "Gang",
    "GangExists",
    "GangInfeasible",
    "GangTimeout",
    "Group",
    "GroupState",
    "In",
    "Machine",
    "MachineId",
    "NotIn",
    "RayCluster",
    "Resources",
    "SchedulingPolicy",
    "SpecError",
    "VNode",
    "VNodeId",
    "VirtualCluster",
    "VirtualClusterManager",
    "Worker",
    "WorkerFailed",
    "WorkerLost",
    "check_feasible",
    "local_machine",
    "most",
]


def __getattr__(name: str) -> Any:
    if name == "RayCluster":
        from .ray_cluster import RayCluster

        return RayCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
