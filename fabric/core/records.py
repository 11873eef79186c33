"""The facts that decisions are made of: machines, the bundles asked of them, and vnodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from .resources import Resources
from .selectors import Selector

MachineId = NewType("MachineId", str)
VNodeId = NewType("VNodeId", str)
WorkId = NewType("WorkId", str)
ProcessId = NewType("ProcessId", str)
"""A driver or a worker of Ray's, in hex."""

PlaceId = MachineId | VNodeId
"""Where a vnode can be carved out."""
ClusterId = NewType("ClusterId", str)
"""A virtual cluster, by the name that it was given."""

ROOT = ClusterId("physical")
"""The Ray cluster itself, whose places are its machines."""

DEFAULT = ClusterId("default")
"""The virtual cluster of all jobs that name none: all that runs on Ray without us."""

VNODE_LABEL = "ray.io/vnode_id"
VCLUSTER_LABEL = "ray.io/vcluster_id"
NODE_LABEL = "ray.io/node-id"
"""Ray's label for the machine itself, which no machine that comes can have."""


WAITING, STARTING, ACTIVE, RECOVERING = "waiting", "starting", "active", "recovering"
"""The states of a virtual cluster, as the manager's documents and people's scripts spell them."""
ENDED = "ended"
"""The state of a virtual cluster that only histories name."""


def has_started(state: str) -> bool:
    """Whether work can run in a virtual cluster of that state."""
    return state not in (WAITING, STARTING)


class SchedulingPolicy(StrEnum):
    """How the nodes of one group lie on machines; the names are those of Ray's strategies."""

    PACK = "PACK"
    """On few machines, as far as possible."""
    SPREAD = "SPREAD"
    """On many machines, as far as possible."""
    STRICT_PACK = "STRICT_PACK"
    """All on one machine."""
    STRICT_SPREAD = "STRICT_SPREAD"
    """Each on a machine of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A physical Ray node and all that it has, used or not."""

    id: MachineId
    hostname: str
    total: Resources
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What one vnode asks of its machine."""

    resources: Resources
    selector: Selector = field(default_factory=dict, hash=False)
    """Which machines may carry it, by their labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleGroup:
    """Bundles that are placed together under one policy."""

    bundles: tuple[Bundle, ...]
    policy: SchedulingPolicy


class VNodeKind(StrEnum):
    """Whether a vnode can change its size."""

    FIXED = "fixed"
    FLEXIBLE = "flexible"


@dataclass(frozen=True, slots=True, kw_only=True)
class VNode:
    """A piece of one place that belongs to one virtual cluster."""

    id: VNodeId
    cluster: ClusterId
    parent: PlaceId
    """What it is carved out of: a machine, or a vnode of the parent cluster on that machine."""
    machine: MachineId
    kind: VNodeKind = VNodeKind.FIXED
    resources: Resources
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCluster:
    """A virtual cluster that holds its places."""

    id: ClusterId
    parent: ClusterId
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The most flexible resources it may hold, in units; what is not named has no limit."""
    flexible: bool = True
    """Whether it may hold any at all."""

    def exceeded(self, held: Resources) -> dict[str, int]:
        """The limits that so many flexible resources would exceed."""
        return {name: most for name, most in self.limits.items() if held[name] > most}


def fixed_id(cluster: ClusterId, number: int) -> VNodeId:
    """What a fixed-size node of a cluster is called, by its place in what was asked for."""
    return VNodeId(f"{cluster}/{number}")


def flexible_id(cluster: ClusterId, machine: MachineId) -> VNodeId:
    return VNodeId(f"{cluster}@{machine}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """What a flexible vnode has borrowed at one time."""

    vnode: VNodeId
    resources: Resources
    until: float
    """When it is due; what is in use then goes back as soon as its work has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Work on a vnode, and what of it the work holds."""

    vnode: VNodeId
    resources: Resources
