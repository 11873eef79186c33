"""Reserves gangs: virtual clusters with workers that end with this process (decision 41)."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

from fedpilot.common.host.machine import Load, load

from .core.places import placement
from .core.records import (
    ROOT,
    VCLUSTER_LABEL,
    VNODE_LABEL,
    ClusterId,
    Machine,
    MachineId,
    SchedulingPolicy,
    VNode,
    VNodeId,
    has_started,
    number_of,
)
from .core.resources import Resources
from .errors import (
    FabricError,
    GangExists,
    GangInfeasible,
    GangTimeout,
    NameTaken,
    NeverFits,
    NoSuchCluster,
    NotInTime,
    SpecError,
)
from .ray.protocol import Cluster, Group, GroupState, Worker
from .spec import FixedSizeNode, QueueOptions, VirtualCluster

if TYPE_CHECKING:
    from .inside.virtual_clusters import VirtualClusters


Slot = tuple[VNode, Group, int]
"""A vnode, the group that carries it, and the index of its bundle there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNotice:
    """That one vnode must leave, while the others of its gang stay."""

    leaves_in_s: float | None
    """How long until it leaves, at work or not; None: it leaves once it is idle."""
    reason: str
    """For whom it leaves, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a gang holds, and for how long it still may."""

    held: bool = True
    """False while it waits at its place in line, since others have its places."""
    leaves_in_s: float | None = None
    """How long until it must leave; None if nothing has asked it to."""
    reason: str = ""
    """For whom it leaves, or why it waits."""
    slots: tuple[Slot, ...] = ()
    """What it holds now: workers can start there."""
    notices: Mapping[VNodeId, NodeNotice] = field(default_factory=dict)
    """The vnodes that must leave alone."""


class SharedPlaces(Protocol):
    """What the manager of a shared Ray knows of a gang."""

    def standing(self) -> Standing:
        """Its standing now. FabricError, also if it has ended."""

    def leave(self, node: VNodeId | None = None) -> None:
        """Say that all has ended in it, or on one vnode, so that it may leave early."""


class Gang:
    """The vnodes of one virtual cluster, held until they are released.

    On a shared Ray others may claim them: `standing` says so, `leave` gives them up early, and
    `follow` takes over what the gang holds by then. The vnodes above the minimum of an elastic
    gang come and leave one by one.
    """

    def __init__(
        self,
        name: str,
        slots: Sequence[Slot],
        cluster: Cluster,
        undo: ExitStack,
        shared: SharedPlaces | None = None,
        minimum: int | None = None,
    ) -> None:
        """`minimum`: vnodes that stay together, if there may be others; None: all stay."""
        self.name = name
        self.shared = shared is not None
        """Whether others may claim its places."""
        self.elastic = minimum is not None
        """Whether vnodes come and leave one by one."""
        self._minimum = minimum
        self._shared = shared
        self._cluster = cluster
        self._undo = undo
        self._starts = itertools.count()
        self._released = False
        self._hold(slots)

    def _hold(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self.vnodes = tuple(vnode for vnode, _, _ in slots)
        self._carriers = {vnode.id: (group, bundle) for vnode, group, bundle in slots}

    def standing(self) -> Standing:
        """Whether it holds its vnodes. FabricError if the manager does not say."""
        return Standing() if self._shared is None else self._shared.standing()

    def leave(self, node: VNodeId | None = None) -> None:
        """Give all vnodes up before their time is over, or one; their workers have ended."""
        if self._shared is not None:
            self._shared.leave(node)

    def follow(self, standing: Standing) -> tuple[tuple[VNode, ...], tuple[VNodeId, ...]]:
        """Hold what a standing says; return the vnodes that came, and those that left.

        A vnode that is carried by something else now has left and come again.
        """
        before = self._carriers
        self._hold(standing.slots)
        kept = {
            id
            for id, (group, _) in self._carriers.items()
            if id in before and before[id][0] is group
        }
        came = tuple(vnode for vnode in self.vnodes if vnode.id not in kept)
        return came, tuple(id for id in before if id not in kept)

    def may_leave(self, vnode: VNode) -> bool:
        """Whether others may claim this vnode alone."""
        return self._minimum is not None and number_of(vnode.id) >= self._minimum

    def start_worker(self, vnode: VNode, cls: type[Any], *args: Any) -> Worker:
        """Start `cls(*args)` in a process that holds the whole vnode; calls may follow at once."""
        if self._released:
            raise FabricError(f"gang {self.name!r} is released and starts no workers")
        group, bundle = self._carriers[vnode.id]
        worker = group.start_worker(vnode, bundle, f"{vnode.id}/{next(self._starts)}", cls, args)
        self._undo.callback(worker.kill)
        return worker

    def load(self) -> Load:
        """How busy this machine is, and the niceness of workers on it."""
        return load(self._cluster.worker_niceness())

    def put(self, value: Any) -> Any:
        """Store a value once for all workers; return its reference, to be passed in calls."""
        return self._cluster.put(value)

    def release(self) -> None:
        """End the workers and release the vnodes; may be called again."""
        self._released = True
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualClusterManager:
    """Reserves virtual clusters, each as a whole or not at all."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._gangs: dict[str, Gang] = {}

    def reserve(
        self,
        spec: VirtualCluster,
        *,
        name: str,
        timeout_s: float = 30.0,
        **queue: Unpack[QueueOptions],
    ) -> Gang:
        """Reserve all nodes of a virtual cluster, or none and raise the reason.

        One that may grow begins with its minimum; on a private Ray it has all nodes that fit, for
        good. `queue` says in which queue of a shared Ray it waits, and who may stop it there.
        """
        # 1. Refuse an invalid request.
        if not name:
            raise SpecError("a gang needs a name, got none")
        if name in self._gangs:
            raise GangExists(name)

        # 2. Refuse an infeasible request: a private Ray would wait for it forever. The manager of a
        # shared one judges by itself, since it knows queues, and whether machines may come.
        if not self._cluster.shared:
            check_feasible(spec, self._cluster.machines(), name=name)

        # 3. Reserve; a failure removes what has been reserved by then.
        with ExitStack() as undo:
            undo.callback(self._gangs.pop, name, None)
            shared, minimum = None, None
            if self._cluster.shared:
                shared = self._by_manager(spec, name, timeout_s, queue, undo)
                slots: Sequence[Slot] = shared.standing().slots
                minimum = spec.minimum if spec.elastic else None
            else:
                slots = self._by_ray(filled(spec, self._cluster.machines()), name, timeout_s, undo)

            # 4. From here on the gang is responsible for the removal.
            made = Gang(name, slots, self._cluster, undo.pop_all(), shared, minimum)
            gang = self._gangs[name] = made
        return gang

    def _by_ray(
        self, spec: VirtualCluster, name: str, timeout_s: float, undo: ExitStack
    ) -> list[Slot]:
        """Have a private Ray, which has no other user, reserve all groups under one deadline."""
        started, groups, slots = self._clock(), list[Group](), list[Slot]()
        for number, ask in enumerate(spec.groups()):
            try:
                group = self._cluster.create_group(f"{name}/{number}", ask.bundles, ask.policy)
            except GangExists as taken:
                raise GangExists(name) from taken
            undo.callback(group.remove)
            groups.append(group)
        hosts = []
        for group in groups:
            found = group.wait(max(0.0, started + timeout_s - self._clock()))
            if found is None:
                reason = _WHY_NOT_YET[group.state()]
                raise GangTimeout(name, self._clock() - started, reason)
            hosts.append(found)
        machines = {machine.id: machine for machine in self._cluster.machines()}
        for asked, group, found in zip(spec.node_groups, groups, hosts, strict=True):
            for bundle, (node, host) in enumerate(zip(asked.nodes, found, strict=True)):
                id = VNodeId(f"{name}/{len(slots)}")
                inherited = machines[host].labels if host in machines else {}
                labels = {**inherited, **node.labels, VNODE_LABEL: id, VCLUSTER_LABEL: name}
                vnode = _vnode(name, id, host, host, node.bundle().resources, labels)
                slots.append((vnode, group, bundle))
        return slots

    def _by_manager(
        self,
        spec: VirtualCluster,
        name: str,
        timeout_s: float,
        queue: QueueOptions,
        undo: ExitStack,
    ) -> _Managed:
        """Have a shared cluster's manager reserve all nodes as a virtual cluster."""
        from .inside.context import enclosing
        from .inside.virtual_clusters import VirtualClusters
        from .manager.snapshot import held_by_others

        started, clusters, parent = self._clock(), VirtualClusters(), enclosing() or ROOT
        try:
            if parent != ROOT:
                queue = {}
            found = clusters.create(
                name, spec, parent=parent, wait_s=timeout_s, says_what_ended=True, **queue
            )
        except NameTaken as taken:
            raise GangExists(name) from taken
        except NeverFits as never:
            raise GangInfeasible(name, str(spec), never.most, never.reason) from never
        except NotInTime as late:
            raise GangTimeout(name, late.waited_s, late.reason) from late
        undo.callback(_delete, clusters, name)
        if not has_started(found["state"]):
            held = held_by_others(clusters.snapshot(), parent, name)
            reason = "; ".join(filter(None, (found["reason"], held)))
            raise GangTimeout(name, self._clock() - started, reason)
        managed = _Managed(clusters, name, found["asked_at"], self._cluster, spec.minimum)
        undo.callback(managed.remove)
        return managed

    def most(self, node: FixedSizeNode, policy: SchedulingPolicy) -> int:
        """Count how many such nodes the machines could hold together if idle."""
        return placement.most(node.bundle(), policy, self._cluster.machines())

    def release(self, gang: Gang) -> None:
        gang.release()

    def gangs(self) -> tuple[Gang, ...]:
        """The gangs that are held, oldest first."""
        return tuple(self._gangs.values())

    def close(self) -> None:
        """Release everything; may be called again."""
        with ExitStack() as undo:
            for gang in self.gangs():
                undo.callback(gang.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Managed:
    """A gang that the manager of a shared Ray reserved."""

    def __init__(
        self,
        clusters: VirtualClusters,
        name: str,
        asked_at: float,
        cluster: Cluster,
        minimum: int,
    ) -> None:
        self._clusters = clusters
        self._name = name
        self._asked_at = asked_at
        self._cluster = cluster
        self._minimum = minimum
        self._groups: dict[str, Group] = {}
        self._made: set[str] = set()
        """The placement groups of nodes above the minimum that Ray has made."""
        self._since: float | None = None
        """Since when it holds its places, as last seen."""

    def standing(self) -> Standing:
        found = self._clusters.show(self._name)
        if found["asked_at"] != self._asked_at:
            raise NoSuchCluster(self._name)
        leaves = found.get("leaves")
        since, before = found.get("since"), self._since
        self._since = None
        if not has_started(found["state"]):
            return Standing(held=False, reason=found["reason"])
        if before not in (None, since):  # it lost them between two looks, and has others
            return Standing(held=False, reason="it goes on at other places")
        self._since = since
        slots = self._slots(found["nodes"])
        if leaves is not None:
            left, why = _left_s(leaves) or 0.0, _whom_and_why(leaves)
            return Standing(leaves_in_s=left, reason=why, slots=slots)
        notices = {
            VNodeId(node["id"]): NodeNotice(leaves_in_s=_left_s(each), reason=_whom_and_why(each))
            for node in found["nodes"]
            if (each := node.get("leaves")) is not None
        }
        return Standing(slots=slots, notices=notices)

    def leave(self, node: VNodeId | None = None) -> None:
        self._clusters.leave(self._name, node)

    def _slots(self, nodes: Iterable[Mapping[str, Any]]) -> tuple[Slot, ...]:
        """Where workers can start: where nodes above the minimum are, once Ray has made them."""
        held = sorted(nodes, key=lambda node: number_of(VNodeId(node["id"])))
        sizes: dict[str, dict[int, Resources]] = {}
        for node in held:
            for piece in node["groups"]:
                bundles = sizes.setdefault(piece["id"], {})
                bundles[int(piece["bundle"])] = Resources.of(piece["resources"])
        for id in [id for id in self._groups if id not in sizes]:
            self._groups.pop(id).remove()
        for id in [id for id in sizes if id not in self._groups]:
            self._groups[id] = self._adopted(id, sizes[id])
        slots: list[Slot] = []
        for node in held:
            total = Resources.of(node["total"])
            places = node["id"], node["parent"], node["machine"]
            vnode = _vnode(self._name, *places, total, node["labels"])
            (piece,) = node["groups"]
            if number_of(vnode.id) < self._minimum or self._is_made(piece["id"]):
                slots.append((vnode, self._groups[piece["id"]], int(piece["bundle"])))
        return tuple(slots)

    def _is_made(self, id: str) -> bool:
        self._made &= self._groups.keys()
        if id not in self._made and self._groups[id].state() is GroupState.READY:
            self._made.add(id)
        return id in self._made

    def _adopted(self, id: str, bundles: Mapping[int, Resources]) -> Group:
        """A group of which some bundles are known; the others are as large as one of these."""
        size = next(iter(bundles.values()))
        every = [bundles.get(bundle, size) for bundle in range(max(bundles) + 1)]
        return self._cluster.adopt_group(id, every)

    def remove(self) -> None:
        """Remove the placement groups that it has now."""
        for group in tuple(self._groups.values()):
            group.remove()


def _left_s(notice: Mapping[str, Any]) -> float | None:
    return None if notice["at"] is None else max(0.0, notice["at"] - time.time())


def _whom_and_why(notice: Mapping[str, Any]) -> str:
    whom = f"for {notice['claimant']}: " if notice["claimant"] else ""
    return f"{whom}{notice['reason']}"


def _vnode(
    gang: str, id: str, parent: str, machine: str, size: Resources, labels: Mapping[str, str]
) -> VNode:
    return VNode(
        id=VNodeId(id),
        cluster=ClusterId(gang),
        parent=MachineId(parent),
        machine=MachineId(machine),
        resources=size,
        labels=labels,
    )


def _delete(clusters: VirtualClusters, name: str) -> None:
    with suppress(FabricError):  # it has already ended
        clusters.delete(name)


def check_feasible(spec: VirtualCluster, machines: Iterable[Machine], *, name: str) -> None:
    """Raise `GangInfeasible` if these machines could not hold the virtual cluster when idle."""
    match placement.fit_all(spec.groups(), machines):
        case placement.Misfit(reason, most):
            raise GangInfeasible(name, str(spec), most, reason)
        case placement.Placement() | placement.Undecided():
            return


def filled(spec: VirtualCluster, machines: Iterable[Machine]) -> VirtualCluster:
    """The virtual cluster with all the nodes that these machines hold when idle, for good.

    Its first groups grow first.
    """
    groups, there = list(spec.node_groups), tuple(machines)
    for at, asked in enumerate(groups):
        if not asked.elastic:
            continue

        def too_many(count: int, at: int = at) -> bool:
            grown = [each.group() for each in groups]
            grown[at] = groups[at].resized(count).group()
            return not isinstance(placement.fit_all(grown, there), placement.Placement)

        counts = range(len(asked.nodes), (asked.max_nodes or 0) + 1)
        fitting = bisect_right(counts, False, key=too_many)
        groups[at] = asked.resized(counts[max(0, fitting - 1)])
    return replace(spec, fixed_size_nodes=tuple(groups))


_WHY_NOT_YET: Mapping[GroupState, str] = {
    GroupState.PENDING: "it fits this cluster, but others hold the resources",
    GroupState.INFEASIBLE: "the cluster as it is now cannot hold it",
    GroupState.READY: "it came too late",
    GroupState.REMOVED: "it was removed by someone else",
}
