"""What a process can find out about its virtual cluster, and nothing outside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.records import ROOT
from ..errors import FabricError
from ..spec import VirtualCluster
from .virtual_clusters import WAIT_S, VirtualClusters

UNDIVIDED = ("memory", "object_store_memory")
"""Resources of a machine that a virtual node has exclusively only if it requested them."""


@dataclass(frozen=True)
class VirtualClusterInfo:
    """One virtual cluster; every method asks the manager again (seed 000, "Introspection")."""

    id: str

    def spec(self) -> VirtualCluster:
        """The requested spec."""
        return VirtualCluster.from_dict(self.state()["spec"])

    def cluster_id(self) -> str:
        """Its name."""
        return self.id

    def total_resources(self) -> dict[str, float]:
        """All that it holds now, like `ray.cluster_resources()`."""
        return dict(self.state()["total"])

    def max_resources(self) -> dict[str, float]:
        """What it would hold at its limit, for the resources that have one."""
        document = self.state()
        spec = VirtualCluster.from_dict(document["spec"])
        fixed = _sum(node["total"] for node in document["nodes"] if node["kind"] == "fixed")
        if not spec.flexible:
            return fixed
        names = spec.flex_resource_max.keys()
        return {name: fixed.get(name, 0.0) + spec.flex_resource_max[name] for name in names}

    def available_resources(self) -> dict[str, float]:
        """Its free resources, like `ray.available_resources()`."""
        return dict(self.state()["available"])

    def used_object_store_memory(self) -> int:
        """Bytes of the objects that belong to this virtual cluster's work, as Ray reports them."""
        from .state import objects

        return sum(int(each["object_size"]) for each in objects(self.id))

    def nodes(self) -> list[VirtualNodeInfo]:
        """Its virtual nodes."""
        return [VirtualNodeInfo(self.id, node["id"]) for node in self.state()["nodes"]]

    def state(self) -> Mapping[str, Any]:
        """Its document: state, reason, queue position, nodes, loans, work."""
        return VirtualClusters().show(self.id)

    def wait(self, wait_s: float = WAIT_S) -> None:
        """Wait until it has its places, such as after Preempted. NoSuchCluster, NotInTime."""
        VirtualClusters().wait(self.id, wait_s)

    def child_clusters(self) -> list[VirtualClusterInfo]:
        """The virtual clusters directly inside it."""
        return [VirtualClusterInfo(id) for id in self.state()["children"]]

    def parent_cluster(self) -> VirtualClusterInfo | None:
        """The virtual cluster that it is inside; None directly below the Ray cluster."""
        parent = self.state()["parent"]
        return None if parent == ROOT else VirtualClusterInfo(parent)


@dataclass(frozen=True)
class VirtualNodeInfo:
    """One virtual node."""

    cluster: str
    id: str

    def node_id(self) -> str:
        """Its id."""
        return self.id

    def physical_node_id(self) -> str:
        """The id of its machine, a Ray node."""
        return str(self._document()["machine"])

    def node_labels(self) -> dict[str, str]:
        """The labels of its machine, its own, and those of the fabric."""
        return dict(self._document()["labels"])

    def used_resources(self) -> dict[str, float]:
        """What work holds of it or is carved out of it."""
        total, free = self.total_resources(), self.avail_resources()
        used = {name: amount - free.get(name, 0.0) for name, amount in total.items()}
        return {name: amount for name, amount in used.items() if amount}

    def avail_resources(self) -> dict[str, float]:
        """Its free resources."""
        return dict(self._document()["available"])

    def total_resources(self) -> dict[str, float]:
        """All its resources."""
        return dict(self._document()["total"])

    def leaves_at(self) -> float | None:
        """When it leaves for others at the latest, in seconds since the epoch; None if it stays, or
        if it leaves only once its work has ended."""
        leaves = self._document().get("leaves")
        return None if leaves is None else leaves["at"]

    def parent_node(self) -> VirtualNodeInfo | None:
        """The virtual node that it was carved out of; None if that is a machine."""
        parent = str(self._document()["parent"])
        above = VirtualClusterInfo(self.cluster).parent_cluster()
        return None if above is None else VirtualNodeInfo(above.id, parent)

    def _document(self) -> Mapping[str, Any]:
        for node in VirtualClusters().show(self.cluster)["nodes"]:
            if node["id"] == self.id:
                found: Mapping[str, Any] = node
                return found
        raise FabricError(f"virtual node {self.id!r} is gone")


def nodes_of(
    document: Mapping[str, Any], machines: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The virtual nodes of a virtual cluster, in the format of `ray.nodes()`."""
    addresses = {each["NodeID"]: each["NodeManagerAddress"] for each in machines}
    return [
        {
            "NodeID": node["machine"],
            "VNodeID": node["id"],
            "Alive": True,
            "NodeManagerHostname": node["hostname"],
            "NodeManagerAddress": addresses.get(node["machine"], node["hostname"]),
            "Resources": node["total"],
            "Labels": node["labels"],
            "alive": True,
        }
        for node in document["nodes"]
    ]


def attainable_of(
    asking: VirtualClusters, cluster: str, machines: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The machines of a virtual cluster, each as large as its part of it could be now.

    Otherwise Ray's libraries, which divide what they see, would never make it grow. Memory that
    no vnode reserved is counted in proportion to the part's CPUs (or GPUs).
    """
    document = asking.snapshot()
    found, left = [], _most(document, cluster)
    for machine in machines:
        total, room = _part(document, cluster, machine["NodeID"])
        for name, amount in room.items():
            if name in UNDIVIDED:
                continue
            granted = max(0.0, min(amount, left.get(name, amount)))
            total[name] = total.get(name, 0.0) + granted
            if name in left:
                left[name] -= granted
        total = {name: amount for name, amount in total.items() if amount > 0}
        if not total or not machine["Alive"]:
            continue
        whole = machine["Resources"]
        share = max(
            (total[n] / whole[n] for n in ("CPU", "GPU") if n in total and whole.get(n)), default=0
        )
        memory = {n: whole[n] * min(share, 1.0) for n in whole if n in UNDIVIDED and n not in total}
        found.append({**machine, "Resources": {**total, **memory}})
    return found


def _part(
    document: Mapping[str, Any], cluster: str, machine: str
) -> tuple[dict[str, float], dict[str, float]]:
    """What a virtual cluster has of a machine, and what more it could borrow there now."""
    from ..manager.snapshot import find  # not every worker needs the manager's modules

    known = find(document, cluster)
    total = _sum(node["total"] for node in known["nodes"] if node["machine"] == machine)
    if not VirtualCluster.from_dict(known["spec"]).flexible:
        return total, {}
    if known["parent"] == ROOT:
        free = [each["available"] for each in document["machines"] if each["id"] == machine]
        return total, _sum(free)
    above = find(document, known["parent"])
    nearer = [node["available"] for node in above["nodes"] if node["machine"] == machine]
    return total, _sum([*nearer, _part(document, known["parent"], machine)[1]])


def _most(document: Mapping[str, Any], cluster: str) -> dict[str, float]:
    """What a virtual cluster may still borrow on all machines together, if a limit applies."""
    from ..manager.snapshot import find  # not every worker needs the manager's modules

    known = find(document, cluster)
    held = _sum(node["total"] for node in known["nodes"] if node["kind"] == "flexible")
    limits = VirtualCluster.from_dict(known["spec"]).flex_resource_max
    left = {name: most - held.get(name, 0.0) for name, most in limits.items()}
    if known["parent"] != ROOT:
        free = find(document, known["parent"])["available"]
        for name, most in _most(document, known["parent"]).items():
            through = most + free.get(name, 0.0)
            left[name] = min(left.get(name, through), through)
    return left


def _sum(many: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for each in many:
        for name, amount in each.items():
            total[name] = total.get(name, 0.0) + amount
    return total
