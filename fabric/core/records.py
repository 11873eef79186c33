"""The facts that decisions are made of: machines, the bundles asked of them, and vnodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from .pickle_names import reads_older
from .resources import Resources
from .selectors import Selector

MachineId = NewType("MachineId", str)
VNodeId = NewType("VNodeId", str)
WorkId = NewType("WorkId", str)
ProcessId = NewType("ProcessId", str)
"""A driver or a worker of Ray, in hex."""

PlaceId = MachineId | VNodeId
"""What a vnode can be carved out of."""
ClusterId = NewType("ClusterId", str)
"""A virtual cluster, by name."""

ROOT = ClusterId("physical")
"""The Ray cluster itself, whose places are its machines."""

DEFAULT = ClusterId("default")
"""The virtual cluster of jobs that name none: all work on Ray outside the other ones."""
EVERYTHING_ELSE = "what runs on Ray outside all virtual clusters"
"""The meaning of `default`, in words."""

VNODE_LABEL = "ray.io/vnode_id"
VCLUSTER_LABEL = "ray.io/vcluster_id"
NODE_LABEL = "ray.io/node-id"
"""Ray's label with the id of a machine. No machine that joins later can have the same."""


WAITING, STARTING, ACTIVE, RECOVERING = "waiting", "starting", "active", "recovering"
"""The states of a virtual cluster, as spelled in the manager's documents and in users' scripts."""
ENDED = "ended"
"""The state of a virtual cluster that has ended; only histories contain it."""


def has_started(state: str) -> bool:
    """Whether work can run in a virtual cluster in this state."""
    return state not in (WAITING, STARTING)


class SchedulingPolicy(StrEnum):
    """How the nodes of one group are placed on machines; the names are Ray's."""

    PACK = "PACK"
    """On as few machines as possible."""
    SPREAD = "SPREAD"
    """On as many machines as possible."""
    STRICT_PACK = "STRICT_PACK"
    """All on one machine."""
    STRICT_SPREAD = "STRICT_SPREAD"
    """Each on a machine of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A Ray node and its total resources, used or not."""

    id: MachineId
    hostname: str
    total: Resources
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What one vnode needs from its machine."""

    resources: Resources
    selector: Selector = field(default_factory=dict, hash=False)
    """Which machines may carry it, by their labels."""


@reads_older
@dataclass(frozen=True, slots=True, kw_only=True)
class BundleGroup:
    """Bundles that are placed together under one policy."""

    bundles: tuple[Bundle, ...]
    """Its minimum."""
    policy: SchedulingPolicy
    most: int | None = None
    """How many bundles like those it may have; None: never more."""

    @property
    def surplus(self) -> int:
        """How many bundles it may have above its minimum."""
        return 0 if self.most is None else max(0, self.most - len(self.bundles))


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
    """The most flexible resources it may hold, in units; a missing name has no limit."""
    flexible: bool = True
    """Whether it may hold flexible resources at all."""

    def exceeded(self, held: Resources) -> dict[str, int]:
        """The limits that `held` flexible resources would exceed."""
        return {name: most for name, most in self.limits.items() if held[name] > most}


def fixed_id(cluster: ClusterId, number: int) -> VNodeId:
    """The id of a cluster's fixed-size node, by its number in the request."""
    return VNodeId(f"{cluster}/{number}")


def number_of(node: VNodeId) -> int:
    """The number of a fixed-size node, from its id."""
    return int(node.rpartition("/")[2])


def flexible_id(cluster: ClusterId, machine: MachineId) -> VNodeId:
    return VNodeId(f"{cluster}@{machine}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """What a flexible vnode borrowed in one step."""

    vnode: VNodeId
    resources: Resources
    until: float
    """When it is due. Resources in use are returned as soon as the work on them has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Work on a vnode, and the resources that it holds there."""

    vnode: VNodeId
    resources: Resources
