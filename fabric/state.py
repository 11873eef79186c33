"""Ray's state of tasks, actors and objects, of the current virtual cluster only.

Ray's state API tells of whole jobs and of placement groups. A task or an actor is in a virtual
cluster if its placement group is one of its own or of those inside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from . import inside
from .core.records import ClusterId
from .errors import FabricError
from .virtual_clusters import VirtualClusters

LIMIT = 10_000
"""As many rows as Ray's state API tells at once."""


def tasks(cluster: str | None = None) -> list[Mapping[str, Any]]:
    """The tasks of a virtual cluster, the current one without a name."""
    from ray.util.state import list_tasks

    groups = _groups(cluster)
    return [
        _row(each)
        for each in list_tasks(limit=LIMIT, detail=True, raise_on_missing_output=False)
        if each.placement_group_id in groups
    ]


def actors(cluster: str | None = None) -> list[Mapping[str, Any]]:
    """The actors of a virtual cluster, the current one without a name."""
    from ray.util.state import list_actors

    groups = _groups(cluster)
    return [
        _row(each)
        for each in list_actors(limit=LIMIT, detail=True, raise_on_missing_output=False)
        if each.placement_group_id in groups
    ]


def objects(cluster: str | None = None) -> list[Mapping[str, Any]]:
    """The objects that processes of a virtual cluster hold, the current one without a name."""
    from ray.util.state import list_objects, list_workers

    pids = {int(each["pid"]) for each in actors(cluster)}
    pids |= {int(each["worker_pid"]) for each in tasks(cluster) if each.get("worker_pid")}
    workers = list_workers(limit=LIMIT, detail=True, raise_on_missing_output=False)
    mine = {each.pid for each in workers if each.pid in pids}
    return [
        _row(each)
        for each in list_objects(limit=LIMIT, detail=True, raise_on_missing_output=False)
        if each.pid in mine
    ]


def summarize_tasks(cluster: str | None = None) -> dict[str, dict[str, int]]:
    """How many tasks of each name are in each state."""
    return _summary((each["name"], each["state"]) for each in tasks(cluster))


def summarize_actors(cluster: str | None = None) -> dict[str, dict[str, int]]:
    """How many actors of each class are in each state."""
    return _summary((each["class_name"], each["state"]) for each in actors(cluster))


def summarize_objects(cluster: str | None = None) -> dict[str, int]:
    """How many objects there are, and their bytes."""
    found = objects(cluster)
    return {"objects": len(found), "bytes": sum(int(each["object_size"]) for each in found)}


def _row(found: Any) -> Mapping[str, Any]:
    row: Mapping[str, Any] = found.asdict()
    return row


def _summary(rows: Any) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for name, state in rows:
        counts.setdefault(name, Counter())[state] += 1
    return {name: dict(counted) for name, counted in sorted(counts.items())}


def _groups(cluster: str | None) -> set[str]:
    """The placement groups of a virtual cluster and of all inside it."""
    name = cluster or inside.current_id()
    if name is None:
        raise FabricError("this process works in no virtual cluster: name one")
    document = VirtualClusters().snapshot()
    by_id = {each["id"]: each for each in document["clusters"]}
    todo, found = [ClusterId(name)], set[str]()
    while todo:
        each = by_id[todo.pop()]
        todo += each["children"]
        found |= {group["id"] for node in each["nodes"] for group in node["groups"]}
    return found
