"""fabric: one Ray cluster, shared as virtual clusters of reserved nodes, without Ray on import."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedpilot.common.host.imports import lazy_names

from .core import pickle_names as _pickle_names
from .core.places.placement import most
from .core.records import Bundle, ClusterId, Machine, MachineId, SchedulingPolicy, VNode, VNodeId
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
    Preempted,
    SpecError,
    TooLarge,
    UnsupportedRay,
    WorkerFailed,
    WorkerLost,
)
from .gangs import Gang, Standing, VirtualClusterManager, check_feasible
from .manager.settings import KeeperSettings
from .ray.local_machine import local_machine
from .ray.protocol import Cluster, Group, GroupState, Worker
from .ray.warm_cluster import WarmCluster
from .spec import FixedSizeNode, FixedSizeNodes, VirtualCluster, virtual_cluster as _spec

if TYPE_CHECKING:
    from .inside.introspection import VirtualClusterInfo, VirtualNodeInfo
    from .inside.session import current_cluster, current_node, init, shutdown
    from .inside.virtual_clusters import VirtualClusters
    from .ray.cluster import RayCluster

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
    "Preempted",
    "RayCluster",
    "Resources",
    "SchedulingPolicy",
    "SpecError",
    "Standing",
    "TooLarge",
    "UnsupportedRay",
    "VNode",
    "VNodeId",
    "VirtualCluster",
    "VirtualClusterInfo",
    "VirtualClusterManager",
    "VirtualClusters",
    "VirtualNodeInfo",
    "WarmCluster",
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
    "RayCluster": "ray.cluster",
    "VirtualClusterInfo": "inside.introspection",
    "VirtualClusters": "inside.virtual_clusters",
    "VirtualNodeInfo": "inside.introspection",
    "current_cluster": "inside.session",
    "current_node": "inside.session",
    "init": "inside.session",
    "shutdown": "inside.session",
}
"""The module of each name that is imported on first use."""


_pickle_names.install()
_spec.entrance = lambda: importlib.import_module(".inside.session", __name__)


__getattr__ = lazy_names(__name__, _LATER)


def __dir__() -> list[str]:
    return sorted(__all__)
