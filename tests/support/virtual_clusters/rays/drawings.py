"""Machines and virtual nodes as the proposal draws them, and what Ray itself says of them."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from fedpilot.fabric import VirtualClusterInfo, VirtualClusters
from rays.machines import PATIENCE_S
from real_ray import eventually

VNODE, VCLUSTER = "ray.io/vnode_id", "ray.io/vcluster_id"


@dataclass(frozen=True, order=True)
class Row:
    """A node as the proposal draws it: its cluster, and CPUs in total and available."""

    cluster: str
    total: float
    available: float


def drawn(clusters: VirtualClusters) -> list[list[Row]]:
    """Each machine: itself and its virtual nodes; machines that look alike are not told apart."""
    document = clusters.snapshot()
    rows = {m["id"]: [_row("physical", m)] for m in document["machines"]}
    for cluster in document["clusters"]:
        for node in cluster["nodes"]:
            assert node["labels"][VCLUSTER] == cluster["id"]
            assert node["labels"][VNODE] == node["id"]
            rows[node["machine"]].append(_row(cluster["id"], node))
    return sorted(sorted(each, key=lambda row: row.cluster != "physical") for each in rows.values())


def _row(cluster: str, document: Mapping[str, Any]) -> Row:
    return Row(cluster, document["total"].get("CPU", 0), document["available"].get("CPU", 0))


def becomes(clusters: VirtualClusters, *machines: Sequence[tuple[str, float, float]]) -> None:
    """The drawing looks like this within a moment."""
    wanted = sorted([Row(*each) for each in rows] for rows in machines)
    found: list[Any] = []

    def same() -> bool:
        found[:] = drawn(clusters)
        return found == wanted

    try:
        eventually(same, PATIENCE_S, "the drawing")
    except AssertionError:
        assert found == wanted
        raise


def rays_own(cluster: Cluster) -> Counter[float]:
    """How many machines of Ray's have so many CPUs that no placement group or work holds."""
    state: Any = importlib.import_module("ray._private.state")
    free = state.available_resources_per_node()
    return Counter(round(each.get("CPU", 0), 3) for each in free.values())


def made_for(group: str) -> str:
    """The virtual cluster that a placement group was made for, by what Ray knows of it."""
    if group == "f" * len(group):
        return "none"
    name: str = placement_group_table()[group]["name"]
    return name.split(":")[2]


def state_of(cluster: VirtualClusterInfo) -> dict[str, int]:
    """How much of its work is in each state."""
    return dict(cluster.state()["work"])
