"""Request: what a virtual cluster asks for. QueuePolicy: the order of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...pickle_names import travels
from ..records import ROOT, BundleGroup, ClusterId, PlacedCluster
from ..resources import Resources


@travels
class QueuePolicy(StrEnum):
    """The order of a queue."""

    FIFO = "fifo"
    """By the time of the request."""
    PRIORITY = "priority"
    """By priority, the highest first; ties by the time of the request."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a virtual cluster asks for, and inside which parent."""

    id: ClusterId
    parent: ClusterId = ROOT
    groups: tuple[BundleGroup, ...] = ()
    labels: tuple[Mapping[str, str], ...] = ()
    """The labels of each fixed-size node, group after group; empty: no node has labels."""
    least: Resources = field(default_factory=Resources)
    """`flex_resource_min`."""
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    """`flex_resource_max`, in units."""
    flexible: bool = True
    """Whether it may hold flexible resources at all."""
    priority: int = 0
    deadline: float | None = None
    """When it stops waiting, in seconds since the epoch."""

    @property
    def needs(self) -> Resources:
        asked = (bundle.resources for group in self.groups for bundle in group.bundles)
        return Resources.total(asked) + self.least

    @property
    def cluster(self) -> PlacedCluster:
        return PlacedCluster(
            id=self.id, parent=self.parent, limits=self.limits, flexible=self.flexible
        )
