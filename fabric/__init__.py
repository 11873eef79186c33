"""fabric: one Ray cluster, shared as virtual clusters of reserved nodes.

Importing this package does not import Ray; the first use of what speaks to Ray does.
"""

from __future__ import annotations

import importlib
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
    NameTaken,
    NeverFits,
    NoSuchCluster,
    NotInstalled,
    NotInTime,
    NotYours,
    SpecError,
    TooLarge,
    UnsupportedRay,
    WorkerFailed,
    WorkerLost,
)
from .local import local_machine
from .manager import Gang, VirtualClusterManager, check_feasible
from .settings import KeeperSettings
from .spec import FixedSizeNode, FixedSizeNodes, SchedulingPolicy, VirtualCluster

if TYPE_CHECKING:
    from .introspection import VirtualClusterInfo, VirtualNodeInfo
    from .ray_cluster import RayCluster
    from .session import current_cluster, current_node, init, shutdown
    from .virtual_clusters import VirtualClusters

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
    "KeeperSettings",
    "Machine",
    "MachineId",
    "NameTaken",
    "NeverFits",
    "NoSuchCluster",
    "NotIn",
    "NotInTime",
    "NotInstalled",
    "NotYours",
    "RayCluster",
    "Resources",
    "SchedulingPolicy",
    "SpecError",
    "TooLarge",
    "UnsupportedRay",
    "VNode",
    "VNodeId",
    "VirtualCluster",
    "VirtualClusterInfo",
    "VirtualClusterManager",
    "VirtualClusters",
    "VirtualNodeInfo",
    "Worker",
    "WorkerFailed",
    "WorkerLost",
    "check_feasible",
    "current_cluster",
    "current_node",
    "init",
    "local_machine",
    "most",
    "shutdown",
]


_LATER = {
    "RayCluster": "ray_cluster",
    "VirtualClusterInfo": "introspection",
    "VirtualClusters": "virtual_clusters",
    "VirtualNodeInfo": "introspection",
    "current_cluster": "session",
    "current_node": "session",
    "init": "session",
    "shutdown": "session",
}
"""What is imported when it is used, and from where."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
