"""Parses Ray's messages about resources, without Ray: a machine's bundles, work's demands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...core.places.groups import GroupId
from ...core.records import MachineId
from ...core.resources import Resources


@dataclass(frozen=True, slots=True)
class MachineView:
    """A machine's report about itself."""

    machine: MachineId
    available: Resources
    bundles: Mapping[tuple[GroupId, int], Resources]
    """The resources of each bundle on this machine."""
    in_use: frozenset[GroupId]
    """The placement groups with running work on this machine."""


def view_of(usage: Any) -> MachineView:
    """Parse a machine's report, Ray's `ResourcesData`.

    It has `CPU_group_<index>_<id>` for the CPUs of a bundle, `CPU_group_<id>` for those of all the
    group's bundles there, and `bundle_group_<index>_<id>`, of which all work there takes a part.
    """
    plain: list[str] = []
    bundles: dict[tuple[GroupId, int], dict[str, float]] = {}
    in_use: set[GroupId] = set()
    available = usage.resources_available
    for name, amount in usage.resources_total.items():
        resource, group, index = parsed(name)
        if group is None:
            plain.append(name)
        elif resource == "bundle":
            if available.get(name, 0.0) < amount:
                in_use.add(group)
        elif index is not None:
            bundles.setdefault((group, index), {})[resource] = amount
    return MachineView(
        machine=MachineId(usage.node_id.hex()),
        available=offered({name: available.get(name, 0.0) for name in plain}),
        bundles={where: Resources.of(amounts) for where, amounts in bundles.items()},
        in_use=frozenset(in_use),
    )


@lru_cache(maxsize=2**17)
def parsed(name: str) -> tuple[str, GroupId | None, int | None]:
    """The resource in a name, its placement group, and the bundle's index there."""
    resource, of, where = name.rpartition("_group_")
    if not of:
        return name, None, None
    index, _, group = where.rpartition("_")
    return resource, GroupId(group), int(index) if index else None


def offered(resources: Mapping[str, float]) -> Resources:
    """What a machine offers to all work, without Ray's own resources and those of groups."""
    return Resources.of(
        {
            name: max(0.0, amount)
            for name, amount in resources.items()
            if not name.startswith(("node:", "bundle_group"))
            and "_group_" not in name
            and name != "object_store_memory"
        }
    )


def held(required: Mapping[str, float]) -> tuple[Resources, GroupId | None]:
    """The resources that work holds, and their placement group.

    For one CPU in bundle 1, Ray demands `CPU_group_1_<id>` and `CPU_group_<id>`.
    """
    plain, held_of = offered(required), None
    for name, amount in required.items():
        resource, group, _ = parsed(name)
        if group is not None and resource != "bundle":
            held_of = group
            plain |= Resources.of({resource: amount})
    return plain, held_of


def wanted(demands: Iterable[Any]) -> dict[GroupId, Resources]:
    """The placement groups that work waits for, from Ray's `ResourceDemand`s."""
    found: dict[GroupId, Resources] = {}
    for each in demands:
        resources, group = held(each.shape)
        if group is None:
            group = next((parsed(name)[1] for name in each.shape), None)  # it takes no resources
        if group is not None:
            found[group] = found.get(group, Resources()) | resources
    return found
