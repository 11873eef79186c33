"""What users declare: virtual clusters (`virtual_cluster`), Ray clusters, and their queues.

`queues` has the keys of an admin's file of queues, `queue_file` reads and checks it, and
`queue_table` turns it into what the scheduler's core reasons about; `ray_cluster/` reads the
document `RayCluster`; `proto/` has virtual clusters as messages. Importing this package imports
none of these, nor pydantic.
"""

from __future__ import annotations

from ..core.records import SchedulingPolicy
from .virtual_cluster import (
    ACTORS,
    FixedSizeNode,
    FixedSizeNodes,
    QueueOptions,
    VirtualCluster,
    located,
)

__all__ = [
    "ACTORS",
    "FixedSizeNode",
    "FixedSizeNodes",
    "QueueOptions",
    "SchedulingPolicy",
    "VirtualCluster",
    "located",
]
