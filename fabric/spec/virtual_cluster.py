"""What a user requests: a virtual cluster, its fixed-size nodes, and their placement on machines.

A spec is Python, a document (`from_dict`, `to_dict`) or a protobuf message (`proto/messages.py`),
with the names of the proposal (ray-project/enhancements#49, seed 000). Amounts are rounded to
Ray's steps of 1/10000.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, TypedDict

from fedpilot.common.text.amounts import SIZE_IN_WORDS, bytes_of

from ..core.places.placement import GPU
from ..core.places.request import Request
from ..core.records import ROOT, Bundle, BundleGroup, ClusterId, SchedulingPolicy
from ..core.resources import UNIT, Resources
from ..core.selectors import Condition, check_label, check_value, describe, parse
from ..errors import SpecError

if TYPE_CHECKING:
    from ..inside.introspection import VirtualClusterInfo

__all__ = [
    "FixedSizeNode",
    "FixedSizeNodes",
    "QueueOptions",
    "SchedulingPolicy",
    "VirtualCluster",
]

entrance: Callable[[], Any] | None = None
"""Returns the module with `enter` and `leave`, for `with`. The package sets it, to keep Ray out."""

OURS = "ray.io/"
"""The prefix of labels that Ray and the fabric set."""

ACTORS, MOST_ACTORS = "max_actors_without_resources", 2**31 - 1
MOST_NODES = 100_000
"""The most nodes of a group."""
MAX_NODES = "max_nodes"

MEMORY = "memory"
"""The suffix of resource names that are counted in bytes."""


class QueueOptions(TypedDict, total=False):
    """How a virtual cluster waits for its places; all but `priority` only at the root."""

    priority: int
    """Higher ones are served first, within a project; it does not decide preemptibility."""
    project: str
    """The project in whose queue it waits; by default `default`."""
    pool: str
    """The node pool that it runs in; by default the first one that its project may use."""
    priority_class: str
    """A class of the file of queues; by default `train`."""
    preemptible: bool | None
    """Whether it may be stopped for others; None: what its priority class says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeNode:
    """One virtual node that keeps its size for life."""

    resources: Mapping[str, float]
    """Amounts by name, such as `{"CPU": 2, "GPU": 1}`."""
    parent_node_selector: Mapping[str, Condition | str] = field(default_factory=dict)
    """Which machines (or vnodes of the parent) may carry it: label -> `In("a", "b")`, or the same
    as text, `in(a,b)`. All conditions must hold."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels in addition to those of what carries it."""

    def __post_init__(self) -> None:
        amounts = _resources("resources", self.resources)
        if not amounts:
            raise SpecError("resources: wanted at least one amount above zero, found none")
        if amounts[GPU] > UNIT and amounts[GPU] % UNIT:
            raise SpecError(
                f"resources: wanted a share of one GPU or whole GPUs, found {amounts.only({GPU})}"
            )
        object.__setattr__(self, "resources", amounts.to_ray())
        selector = {}
        for label, condition in sorted(self.parent_node_selector.items()):
            with located(f"parent_node_selector.{label}"):
                check_label(label)
                selector[label] = _condition(condition)
        object.__setattr__(self, "parent_node_selector", selector)
        for label, value in self.labels.items():
            with located(f"labels.{label}"):
                check_label(label)
                check_value(value)
                if label.startswith(OURS):
                    raise ValueError(f"labels that begin with {OURS!r} are given by the fabric")
        object.__setattr__(self, "labels", dict(sorted(self.labels.items())))

    @property
    def selector(self) -> dict[str, Condition]:
        """`parent_node_selector` with parsed conditions."""
        return {label: _condition(each) for label, each in self.parent_node_selector.items()}

    def bundle(self) -> Bundle:
        return Bundle(resources=Resources.of(self.resources), selector=self.selector)

    def to_dict(self) -> dict[str, Any]:
        """The document: only JSON values, without defaults."""
        selector = {label: str(c) for label, c in self.parent_node_selector.items()}
        return _filled(
            resources=dict(self.resources), parent_node_selector=selector, labels=dict(self.labels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeNodes:
    """A group of virtual nodes that are placed together."""

    nodes: Sequence[FixedSizeNode]
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.PACK
    """How they are placed on machines, or on the vnodes of the parent."""
    max_nodes: int | None = None
    """How many nodes it may have. `nodes` are its minimum; more nodes like them are added while
    resources are free, and leave for others first. All nodes must be equal. This is not in the
    proposal; None: never more than `nodes`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        if not self.nodes:
            raise SpecError("nodes: wanted at least one node, found none")
        try:
            policy = SchedulingPolicy(self.scheduling_policy)
        except ValueError:
            allowed = ", ".join(SchedulingPolicy)
            raise SpecError(
                f"scheduling_policy: wanted one of {allowed}, found {self.scheduling_policy!r}"
            ) from None
        object.__setattr__(self, "scheduling_policy", policy)
        self._check_most()

    def _check_most(self) -> None:
        most, least = self.max_nodes, len(self.nodes)
        if most is None:
            return
        if type(most) is not int or not least <= most <= MOST_NODES:
            raise SpecError(
                f"{MAX_NODES}: wanted a whole number from {least}, the number of nodes given, to "
                f"{MOST_NODES}, found {most!r}"
            )
        if any(node != self.nodes[0] for node in self.nodes):
            raise SpecError(
                f"{MAX_NODES}: wanted equal nodes, since those above the minimum are copies of them"
            )

    @property
    def elastic(self) -> bool:
        """Whether it may have more nodes than its minimum."""
        return self.max_nodes is not None and self.max_nodes > len(self.nodes)

    def resized(self, count: int) -> FixedSizeNodes:
        """The same group with so many nodes, for good; those above its minimum are copies."""
        nodes = (*self.nodes, *(self.nodes[0],) * (count - len(self.nodes)))
        return replace(self, nodes=nodes, max_nodes=None)

    def group(self) -> BundleGroup:
        made = {id(node): node.bundle() for node in self.nodes}  # a repeated node is made once
        return BundleGroup(
            bundles=tuple(made[id(node)] for node in self.nodes),
            policy=self.scheduling_policy,
            most=self.max_nodes,
        )

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        made = {id(node): node.to_dict() for node in self.nodes}
        nodes = [made[id(node)] for node in self.nodes]
        most = {} if self.max_nodes is None else {MAX_NODES: self.max_nodes}
        return {"nodes": nodes, "scheduling_policy": str(self.scheduling_policy), **most}

    def __str__(self) -> str:
        counts = Counter(
            f"{bundle.resources}"
            + (f" where {describe(bundle.selector)}" if bundle.selector else "")
            for bundle in self.group().bundles
        )
        nodes = " and ".join(
            f"{count} node{'s' if count > 1 else ''} of {what}" for what, count in counts.items()
        )
        most = f", at most {self.max_nodes}" if self.elastic else ""
        return f"{nodes}{most} ({self.scheduling_policy})"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCluster:
    """A partition of a Ray cluster: what it needs before it starts and what it may grow to."""

    flex_resource_min: Mapping[str, float] = field(default_factory=dict)
    """Reserved before the virtual cluster starts, in addition to the fixed-size nodes."""
    flex_resource_max: Mapping[str, float] = field(default_factory=dict)
    """The most flexible resources it may hold; a missing name has no limit. A spec that has
    fixed-size nodes and names no flexible resources gets none."""
    fixed_size_nodes: Sequence[FixedSizeNodes | FixedSizeNode] = ()
    """Groups, each placed under its own policy; a single node is a group of one."""
    max_actors_without_resources: int | None = None
    """The most actors in it without resources; by default the manager's limit. This is not in the
    proposal: such actors fit everywhere, but each is a process."""

    def __post_init__(self) -> None:
        least = _resources("flex_resource_min", self.flex_resource_min)
        most = _resources("flex_resource_max", self.flex_resource_max)
        for name in sorted(self.flex_resource_max):
            if least[name] > most[name]:
                raise SpecError(
                    f"flex_resource_min.{name}: wanted at most flex_resource_max, which is "
                    f"{most[name] / UNIT:.15g}, found {least[name] / UNIT:.15g}"
                )
        actors = self.max_actors_without_resources
        if actors is not None and (type(actors) is not int or not 0 <= actors <= MOST_ACTORS):
            raise SpecError(
                f"{ACTORS}: wanted a whole number from 0 to {MOST_ACTORS}, found {actors!r}"
            )
        limits = {name: most[name] / UNIT for name in sorted(self.flex_resource_max)}
        object.__setattr__(self, "flex_resource_min", least.to_ray())
        object.__setattr__(self, "flex_resource_max", limits)
        object.__setattr__(self, "fixed_size_nodes", self.node_groups)

    @property
    def node_groups(self) -> tuple[FixedSizeNodes, ...]:
        """`fixed_size_nodes`, with each single node as a group."""
        return tuple(
            FixedSizeNodes(nodes=(each,)) if isinstance(each, FixedSizeNode) else each
            for each in self.fixed_size_nodes
        )

    @property
    def flexible(self) -> bool:
        """Whether it may hold flexible resources, and borrows them when it needs more."""
        return bool(self.flex_resource_min or self.flex_resource_max or not self.fixed_size_nodes)

    @property
    def elastic(self) -> bool:
        """Whether it may have more fixed-size nodes than its minimum."""
        return any(group.elastic for group in self.node_groups)

    @property
    def minimum(self) -> int:
        """How many fixed-size nodes its minimum has."""
        return sum(len(group.nodes) for group in self.node_groups)

    @property
    def least(self) -> Resources:
        """`flex_resource_min`, exact."""
        return Resources.of(self.flex_resource_min)

    def groups(self) -> tuple[BundleGroup, ...]:
        """The minimum of a gang's groups, whose nodes all keep their size. SpecError otherwise."""
        if self.flex_resource_min or self.flex_resource_max:
            raise SpecError(
                "a gang takes fixed-size nodes only: leave out flex_resource_min and "
                "flex_resource_max"
            )
        if not self.fixed_size_nodes:
            raise SpecError("fixed_size_nodes: wanted at least one node, found none")
        return tuple(nodes.group() for nodes in self.node_groups)

    def to_dict(self) -> dict[str, Any]:
        """The document: only JSON values, without defaults."""
        return _filled(
            flex_resource_min=dict(self.flex_resource_min),
            flex_resource_max=dict(self.flex_resource_max),
            fixed_size_nodes=[nodes.to_dict() for nodes in self.node_groups],
            max_actors_without_resources=self.max_actors_without_resources,
        )

    @classmethod
    def from_dict(cls, document: object) -> VirtualCluster:
        """Read a document. SpecError names the key, what was found, and what is allowed."""
        keys = ("flex_resource_min", "flex_resource_max", "fixed_size_nodes", ACTORS)
        given = _mapping("a virtual cluster", document, keys)
        groups = _list("fixed_size_nodes", given.get("fixed_size_nodes", []))
        return cls(
            flex_resource_min=_mapping("flex_resource_min", given.get("flex_resource_min", {})),
            flex_resource_max=_mapping("flex_resource_max", given.get("flex_resource_max", {})),
            fixed_size_nodes=tuple(
                _read_group(f"fixed_size_nodes[{i}]", each) for i, each in enumerate(groups)
            ),
            max_actors_without_resources=given.get(ACTORS),
        )

    def request(
        self,
        name: str,
        *,
        parent: ClusterId = ROOT,
        priority: int = 0,
        deadline: float | None = None,
        project: str = "",
        pool: str = "",
        priority_class: str = "",
        preemptible: bool | None = None,
    ) -> Request:
        """The request to the manager, under a name; see `QueueOptions`.

        SpecError for an invalid name, and for a project, pool, class or preemptibility of its own
        inside another virtual cluster, whose own ones decide; and there for groups that may grow.
        """
        if not name or "/" in name or "@" in name or ":" in name:
            raise SpecError(f"name: wanted text without '/', '@' and ':', found {name!r}")
        with located("name"):
            check_value(name)
        if parent != ROOT and (project or pool or priority_class or preemptible is not None):
            raise SpecError(
                "project, pool, priority_class, preemptible: wanted none of them inside virtual "
                f"cluster {parent!r}, which has its own"
            )
        if parent != ROOT and self.elastic:
            raise SpecError(
                f"{MAX_NODES}: wanted no more than the given nodes inside virtual cluster "
                f"{parent!r}; only virtual clusters right below the Ray cluster grow"
            )
        groups = self.node_groups
        return Request(
            id=ClusterId(name),
            parent=parent,
            groups=tuple(group.group() for group in groups),
            labels=tuple(dict(node.labels) for group in groups for node in group.nodes),
            least=self.least,
            limits={n: round(most * UNIT) for n, most in self.flex_resource_max.items()},
            flexible=self.flexible,
            priority=priority,
            deadline=deadline,
            project=project,
            pool=pool,
            priority_class=priority_class,
            preemptible=preemptible,
        )

    def __enter__(self) -> VirtualClusterInfo:
        """Reserve it inside the current virtual cluster, and work in it until the block ends.

        Waits until it has its places. NeverFits; NotInTime if it is deleted meanwhile.
        """
        assert entrance is not None
        entered: VirtualClusterInfo = entrance().enter(self)
        return entered

    def __exit__(self, *_: object) -> None:
        assert entrance is not None
        entrance().leave(self)

    def options(self, target: Any, **options: Any) -> Any:
        """The task or actor class with these options, for work inside this virtual cluster.

        `node_labels={"rank": In("0")}` selects the nodes that may run it.
        """
        return target.options(**options)

    def __str__(self) -> str:
        least, most = Resources.of(self.flex_resource_min), self.flex_resource_max
        parts = [str(nodes) for nodes in self.node_groups]
        if least:
            parts.append(f"at least {least}")
        if most:
            parts.append("at most " + ", ".join(f"{most[name]:.15g} {name}" for name in most))
        actors = self.max_actors_without_resources
        capped = "" if actors is None else f"; at most {actors} actors without resources"
        return ("; ".join(parts) or "all that is free") + capped


def _read_group(at: str, document: object) -> FixedSizeNodes:
    keys = ("nodes", "scheduling_policy", MAX_NODES)
    if isinstance(document, Mapping) and not {*keys} & document.keys():
        return FixedSizeNodes(nodes=(_read_node(at, document),))
    given = _mapping(at, document, keys)
    nodes = _list(f"{at}.nodes", given.get("nodes", []))
    read = tuple(_read_node(f"{at}.nodes[{i}]", node) for i, node in enumerate(nodes))
    with located(at, "."):
        return FixedSizeNodes(
            nodes=read,
            scheduling_policy=given.get("scheduling_policy", SchedulingPolicy.PACK),
            max_nodes=given.get(MAX_NODES),
        )


def _read_node(at: str, document: object) -> FixedSizeNode:
    given = _mapping(at, document, ("resources", "parent_node_selector", "labels"))
    fields = {key: _mapping(f"{at}.{key}", value) for key, value in given.items()}
    with located(at, "."):
        return FixedSizeNode(**{"resources": {}, **fields})


def _mapping(at: str, found: object, keys: Sequence[str] = ()) -> Mapping[str, Any]:
    """Check that `found` is a mapping with only these keys; without `keys`, with any."""
    if not isinstance(found, Mapping):
        raise SpecError(f"{at}: wanted a mapping, found {found!r}")
    for key in found:
        if not isinstance(key, str):
            raise SpecError(f"{at}: wanted text as a key, found {key!r}")
        if keys and key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SpecError(f"{at}: unknown key {key!r}, allowed are {', '.join(keys)}{hint}")
    return found


def _list(at: str, found: object) -> Sequence[object]:
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise SpecError(f"{at}: wanted a list, found {found!r}")
    return found


def _resources(at: str, amounts: Mapping[str, float]) -> Resources:
    read = {name: _amount(f"{at}.{name}", name, amount) for name, amount in amounts.items()}
    with located(at):
        return Resources.of(read)


def _amount(at: str, name: str, found: object) -> float:
    """A number; for memory also a size such as `2GB`."""
    size = bytes_of(found) if isinstance(found, str) and name.endswith(MEMORY) else None
    if size is not None:
        return size
    if not isinstance(found, Real) or isinstance(found, bool):
        wanted = SIZE_IN_WORDS if name.endswith(MEMORY) else "a number"
        raise SpecError(f"{at}: wanted {wanted}, found {found!r}")
    return float(found)


def _condition(found: object) -> Condition:
    if isinstance(found, str):
        return parse(found)
    if not isinstance(found, Condition):
        raise TypeError(f"wanted a condition such as in(a,b), found {found!r}")
    return found


def _filled(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


@contextmanager
def located(at: str, before: str = ": ") -> Iterator[None]:
    """Prefix the text of an error with a place and a separator, and raise it as SpecError."""
    try:
        yield
    except (SpecError, TypeError, ValueError) as error:
        raise SpecError(f"{at}{before}{error}") from error
