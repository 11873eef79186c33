"""Reserves gangs: virtual clusters with workers that end with this process (decision 41)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

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
)
from .core.resources import Resources
from .errors import (
    FabricError,
    GangExists,
    GangInfeasible,
    GangTimeout,
    NameTaken,
    NeverFits,
    NotInTime,
    SpecError,
)
from .ray.protocol import Cluster, Group, GroupState, Worker
from .spec import FixedSizeNode, VirtualCluster

if TYPE_CHECKING:
    from .inside.virtual_clusters import VirtualClusters


Slot = tuple[VNode, Group, int]
"""A vnode, the group that carries it, and the index of its bundle there."""


class Gang:
    """The vnodes of one virtual cluster, held until they are released."""

    def __init__(
        self,
        name: str,
        slots: Sequence[Slot],
        cluster: Cluster,
        undo: ExitStack,
    ) -> None:
        self.name = name
        self.vnodes = tuple(vnode for vnode, _, _ in slots)
        self._slots = {vnode.id: (group, bundle) for vnode, group, bundle in slots}
        self._cluster = cluster
        self._undo = undo
        self._starts = itertools.count()
        self._released = False

    def start_worker(self, vnode: VNode, cls: type[Any], *args: Any) -> Worker:
        """Start `cls(*args)` in a process that holds the whole vnode; calls may follow at once."""
        if self._released:
            raise FabricError(f"gang {self.name!r} is released and starts no workers")
        group, bundle = self._slots[vnode.id]
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

    def reserve(self, spec: VirtualCluster, *, name: str, timeout_s: float = 30.0) -> Gang:
        """Reserve all nodes of a virtual cluster, or none and raise the reason."""
        # 1. Refuse an invalid request.
        if not name:
            raise SpecError("a gang needs a name, got none")
        if name in self._gangs:
            raise GangExists(name)

        # 2. Refuse an infeasible request: Ray would wait for it forever.
        check_feasible(spec, self._cluster.machines(), name=name)

        # 3. Reserve; a failure removes what has been reserved by then.
        with ExitStack() as undo:
            undo.callback(self._gangs.pop, name, None)
            reserved = self._by_manager if self._cluster.shared else self._by_ray
            slots = reserved(spec, name, timeout_s, undo)

            # 4. From here on the gang is responsible for the removal.
            gang = self._gangs[name] = Gang(name, slots, self._cluster, undo.pop_all())
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
        self, spec: VirtualCluster, name: str, timeout_s: float, undo: ExitStack
    ) -> list[Slot]:
        """Have a shared cluster's manager reserve all nodes as a virtual cluster."""
        from .inside.context import enclosing
        from .inside.virtual_clusters import VirtualClusters
        from .terminal.explain import holders

        started, clusters, parent = self._clock(), VirtualClusters(), enclosing() or ROOT
        try:
            found = clusters.create(name, spec, parent=parent, wait_s=timeout_s)
        except NameTaken as taken:
            raise GangExists(name) from taken
        except NeverFits as never:
            raise GangInfeasible(name, str(spec), never.most, never.reason) from never
        except NotInTime as late:
            raise GangTimeout(name, late.waited_s, late.reason) from late
        undo.callback(_delete, clusters, name)
        if not has_started(found["state"]):
            held = holders(clusters.snapshot(), parent, name)
            reason = "; ".join(filter(None, (found["reason"], held)))
            raise GangTimeout(name, self._clock() - started, reason)
        nodes = clusters.show(name)["nodes"]
        nodes.sort(key=lambda node: int(node["id"].rpartition("/")[2]))
        sizes: dict[str, list[Resources]] = {}
        for node in nodes:
            for each in node["groups"]:
                sizes.setdefault(each["id"], []).append(Resources.of(each["resources"]))
        groups = {id: self._cluster.adopt_group(id, each) for id, each in sizes.items()}
        for group in groups.values():
            undo.callback(group.remove)
        slots: list[Slot] = []
        for node in nodes:
            total = Resources.of(node["total"])
            vnode = _vnode(name, node["id"], node["parent"], node["machine"], total, node["labels"])
            (piece,) = node["groups"]
            slots.append((vnode, groups[piece["id"]], int(piece["bundle"])))
        return slots

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


_WHY_NOT_YET: Mapping[GroupState, str] = {
    GroupState.PENDING: "it fits this cluster, but others hold the resources",
    GroupState.INFEASIBLE: "the cluster as it is now cannot hold it",
    GroupState.READY: "it came too late",
    GroupState.REMOVED: "it was removed by someone else",
}
