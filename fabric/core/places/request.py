"""Request: what a virtual cluster asks for. QueuePolicy: the order of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..pickle_names import reads_older, travels
from ..records import ROOT, Bundle, BundleGroup, ClusterId, PlacedCluster, VNodeId, number_of
from ..resources import Resources


@travels
class QueuePolicy(StrEnum):
    """The order of a queue."""

    FIFO = "fifo"
    """By the time of the request."""
    PRIORITY = "priority"
    """By priority, the highest first; ties by the time of the request."""


@travels
@reads_older
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
    project: str = ""
    """The project whose queue it waits in, if its parent is the Ray cluster; empty: `default`."""
    pool: str = ""
    """The node pool that it runs in; empty: the first one that its project may use."""
    priority_class: str = ""
    """Empty: `train`."""
    preemptible: bool | None = None
    """Whether it may be stopped for others; None: what its priority class says."""

    @property
    def needs(self) -> Resources:
        asked = (bundle.resources for group in self.groups for bundle in group.bundles)
        return Resources.total(asked) + self.least

    # -- its fixed-size nodes, by number ------------------------------------------------------
    #
    # The minimum has the first numbers, group after group. Nodes above it (surplus) have numbers
    # behind those, in the order in which they were added; the remainder names their group.

    @property
    def elastic(self) -> bool:
        """Whether it may have nodes above its minimum."""
        return any(group.surplus for group in self.groups)

    @property
    def minimum(self) -> int:
        """How many nodes its minimum has."""
        return sum(len(group.bundles) for group in self.groups)

    @property
    def most(self) -> int:
        """How many nodes it may have."""
        return sum(len(group.bundles) + group.surplus for group in self.groups)

    def group_of(self, number: int) -> int:
        """The position of a node's group."""
        for at, group in enumerate(self.groups):
            if number < len(group.bundles):
                return at
            number -= len(group.bundles)
        return number % len(self.groups)

    def bundle(self, number: int) -> Bundle:
        """What a node asks for."""
        return self._copied(number)[0]

    def own_labels(self, number: int) -> Mapping[str, str]:
        """A node's labels in addition to those of its machine."""
        return self.labels[self._copied(number)[1]] if self.labels else {}

    def _copied(self, number: int) -> tuple[Bundle, int]:
        """The node of the minimum that a node is a copy of, or itself: its bundle and number."""
        at = self.group_of(number)
        first = sum(len(group.bundles) for group in self.groups[:at])
        number = first if number >= self.minimum else number
        return self.groups[at].bundles[number - first], number

    def is_surplus(self, node: VNodeId) -> bool:
        """Whether a vnode of it is a node above its minimum."""
        _, slash, number = node.rpartition("/")
        return bool(slash) and int(number) >= self.minimum

    def next_surplus(self, group: int, held: Iterable[VNodeId]) -> int:
        """The number of the next node above the minimum of a group, beside those it holds."""
        numbers = [number_of(each) for each in held if self.is_surplus(each)]
        turn = (max(numbers) - self.minimum) // len(self.groups) + 1 if numbers else 0
        return self.minimum + turn * len(self.groups) + group

    @property
    def cluster(self) -> PlacedCluster:
        return PlacedCluster(
            id=self.id, parent=self.parent, limits=self.limits, flexible=self.flexible
        )
