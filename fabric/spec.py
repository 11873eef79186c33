"""What a user asks for: a virtual cluster, its fixed-size nodes, and how they lie on machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .core.placement import GPU, describe_selector
from .core.records import Bundle, BundleGroup, SchedulingPolicy
from .core.resources import UNIT, Resources
from .core.selectors import parse
from .errors import SpecError

__all__ = ["FixedSizeNode", "FixedSizeNodes", "SchedulingPolicy", "VirtualCluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeNode:
    """One virtual node that keeps its size for life."""

    resources: Mapping[str, float]
    """Amounts by name, such as `{"CPU": 2, "GPU": 1}`."""
    parent_node_selector: Mapping[str, str] = field(default_factory=dict)
    """Which machines may carry it: label -> `a`, `!a`, `in(a,b)` or `!in(a,b)`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels it has beyond those of its machine."""

    def __post_init__(self) -> None:
        try:
            amounts = Resources.of(self.resources)
        except (TypeError, ValueError) as error:
            raise SpecError(f"resources of a node: {error}") from error
        if not amounts:
            raise SpecError("resources of a node: wanted at least one amount above zero, got none")
        if amounts[GPU] > UNIT and amounts[GPU] % UNIT:
            raise SpecError(
                "resources of a node: wanted a share of one GPU or whole GPUs, "
                f"found {amounts.only({GPU})}"
            )
        for label, condition in self.parent_node_selector.items():
            try:
                parse(condition)
            except ValueError as error:
                raise SpecError(f"parent_node_selector of a node: {label}: {error}") from error

    def bundle(self) -> Bundle:
        return Bundle(
            resources=Resources.of(self.resources), selector=dict(self.parent_node_selector)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeNodes:
    """A group of virtual nodes that are placed together."""

    nodes: tuple[FixedSizeNode, ...]
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.PACK

    def group(self) -> BundleGroup:
        return BundleGroup(
            bundles=tuple(node.bundle() for node in self.nodes), policy=self.scheduling_policy
        )

    def __str__(self) -> str:
        counts = Counter(
            f"{bundle.resources}"
            + (f" where {describe_selector(bundle.selector)}" if bundle.selector else "")
            for bundle in self.group().bundles
        )
        nodes = " and ".join(
            f"{count} node{'s' if count > 1 else ''} of {what}" for what, count in counts.items()
        )
        return f"{nodes or 'no nodes'} ({self.scheduling_policy})"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCluster:
    """A partition of a Ray cluster: what it needs before it starts and what it may grow to."""

    flex_resource_min: Mapping[str, float] = field(default_factory=dict)
    """Reserved before the virtual cluster starts, beside the fixed-size nodes."""
    flex_resource_max: Mapping[str, float] | None = None
    """The most flexible resources it may hold; None sets no limit."""
    fixed_size_nodes: tuple[FixedSizeNodes, ...] = ()

    def groups(self) -> tuple[BundleGroup, ...]:
        """Say what is to be reserved; refuse what this version cannot reserve."""
        if any(self.flex_resource_min.values()) or self.flex_resource_max is not None:
            raise SpecError(
                "flexible resources are not supported yet: leave out flex_resource_min and "
                "flex_resource_max, and ask for fixed_size_nodes"
            )
        if not self.fixed_size_nodes or not all(group.nodes for group in self.fixed_size_nodes):
            raise SpecError("fixed_size_nodes: wanted at least one node in each group, found none")
        return tuple(nodes.group() for nodes in self.fixed_size_nodes)

    def __str__(self) -> str:
        return "; ".join(str(nodes) for nodes in self.fixed_size_nodes) or "no nodes"
