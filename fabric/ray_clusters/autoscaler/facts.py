"""What an autoscaler knows of a declared Ray cluster: from Ray, and from the feed of its manager of
virtual clusters."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.ray_clusters.autoscaling import NODE_GROUP, Demand, PendingGang, SuppliedMachine
from ...core.ray_clusters.declaration import GroupName, MachineName
from ...core.records import Bundle, BundleGroup, SchedulingPolicy
from ...core.resources import UNIT, Resources
from ...core.selectors import parse
from ...ray.control_plane.demand_feed import FORMAT
from ...ray.control_plane.ray_nodes import RayNode, RayView

STALE_S = 30.0
"""An older feed says nothing: its manager is away."""
READY = "ready"
"""The state of a machine in the records of the lifecycle manager."""


class FirstSeen:
    """Since when Ray has had no room for what it does not date itself."""

    def __init__(self) -> None:
        self._since: dict[tuple[BundleGroup, int], float] = {}

    def gangs(self, pending: Sequence[BundleGroup], now: float) -> list[PendingGang]:
        """What waits, each with the time since which as many of its kind do."""
        counts: dict[BundleGroup, int] = {}
        found, keys = [], []
        for each in pending:
            counts[each] = counts.get(each, 0) + 1
            keys.append((each, counts[each]))
        self._since = {key: self._since.get(key, now) for key in keys}
        for number, key in enumerate(keys):
            gang = PendingGang(id=f"ray-{number}", groups=(key[0],), since_s=self._since[key])
            found.append(gang)
        return found


def demand_of(
    view: RayView,
    feed: bytes | None,
    machines: Mapping[MachineName, Mapping[str, Any]],
    stuck: Iterable[GroupName],
    waiting: FirstSeen,
    now: float,
) -> Demand:
    """The facts of one moment; `machines` are the records of the lifecycle manager.

    Ray knows a machine by its name, or by the `node` of its record.
    """
    ready = {
        MachineName(row.get("node") or name): {**row, "name": name}
        for name, row in machines.items()
        if row["state"] == READY
    }
    there = {True: list[SuppliedMachine](), False: list[SuppliedMachine]()}
    for node in view.nodes.values():
        if node.name in ready and not node.draining:
            there[node.head].append(_supply(node, ready[MachineName(node.name)], now))
    fed = _fed(feed, now)
    return Demand(
        seen_s=now,
        gangs=(*(fed or ()), *waiting.gangs(view.pending, now)),
        whole=fed is not None,
        machines=tuple(there[False]),
        head=next(iter(there[True]), None),
        offers={
            GroupName(node.labels.get(NODE_GROUP, "")): node.total
            for node in view.nodes.values()
            if not node.head
        },
        stuck=frozenset(stuck),
    )


def _supply(node: RayNode, row: Mapping[str, Any], now: float) -> SuppliedMachine:
    return SuppliedMachine(
        name=MachineName(row["name"]),
        group=GroupName(row["group"]),
        free=node.available,
        labels=node.labels,
        since_s=row["since_s"],
        idle_since_s=now - node.idle_s if node.idle_s else None,
    )


def _fed(feed: bytes | None, now: float) -> list[PendingGang] | None:
    """The gangs of the feed that more machines would help; None if it is old, or not understood.

    Without a feed there is no manager of virtual clusters, and so none of them waits.
    """
    if feed is None:
        return []
    try:
        document = json.loads(feed)
        if document["format"] != FORMAT or now - document["seen"] > STALE_S:
            return None
        return [
            PendingGang(id=each["id"], groups=groups, since_s=each["since"])
            for each in document["gangs"]
            if each["machines_help"] and (groups := _groups(each))
        ]
    except (AttributeError, KeyError, TypeError, ValueError):  # any job may write there
        return None


def _groups(gang: Mapping[str, Any]) -> tuple[BundleGroup, ...]:
    found = [
        BundleGroup(
            bundles=tuple(b for each in group["bundles"] for b in _bundles(each)),
            policy=SchedulingPolicy(group["policy"]),
        )
        for group in gang["groups"]
    ]
    if flexible := Resources.of(gang["flexible"]):
        found.append(BundleGroup(bundles=_in_parts(flexible), policy=SchedulingPolicy.PACK))
    return tuple(found)


def _bundles(of: Mapping[str, Any]) -> list[Bundle]:
    selector = {label: parse(text) for label, text in of["selector"].items()}
    bundle = Bundle(resources=Resources.of(of["resources"]), selector=selector)
    return [bundle] * int(of["count"])


def _in_parts(flexible: Resources) -> tuple[Bundle, ...]:
    """What may be on any machines in any parts, in parts of at most one CPU and one GPU each."""
    parts = max(1, *(math.ceil(flexible[name] / UNIT) for name in ("CPU", "GPU")))
    one = Resources.of({name: amount / parts for name, amount in flexible.to_ray().items()})
    return (Bundle(resources=one),) * parts
