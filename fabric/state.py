"""Ray's state of tasks, actors and objects, of the current virtual cluster only.

Ray's state API tells of whole jobs and of placement groups. A task or an actor is in a virtual
cluster if its placement group is one of its own or of those inside it, now or before. The API is a
part of Ray's dashboard; what it reads is asked for here without it.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import where
from .core.records import ClusterId
from .errors import FabricError
from .virtual_clusters import VirtualClusters

LIMIT = 10_000
"""As many rows as Ray's state API tells at once."""

TIMEOUT_S = 30
TASK_ID = 48
"""Hexadecimal digits of the id of a task."""


def tasks(cluster: str | None = None) -> list[Mapping[str, Any]]:
    """The tasks of a virtual cluster, the current one without a name."""
    groups = _groups(cluster)
    return [each for each in _rows("tasks") if each["placement_group_id"] in groups]


def actors(cluster: str | None = None) -> list[Mapping[str, Any]]:
    """The actors of a virtual cluster, the current one without a name."""
    groups = _groups(cluster)
    return [each for each in _rows("actors") if each["placement_group_id"] in groups]


def objects(cluster: str | None = None) -> list[Mapping[str, Any]]:
    """The objects that tasks of a virtual cluster made or its processes hold, each once."""
    work = tasks(cluster)
    pids = {int(each["pid"]) for each in actors(cluster)}
    pids |= {int(each["worker_pid"]) for each in work if each.get("worker_pid")}
    made = {str(each["task_id"]) for each in work}  # the ids of objects begin with them
    found = {
        each["object_id"]: each
        for each in _rows("objects")
        if each["pid"] in pids or each["object_id"][:TASK_ID] in made
    }
    return list(found.values())


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


def _rows(what: str) -> list[Mapping[str, Any]]:
    """All tasks, actors or objects of this Ray cluster."""
    import ray

    address = ray.get_runtime_context().gcs_address
    with ThreadPoolExecutor(1) as apart:  # an event loop may run in this thread
        found: list[Mapping[str, Any]] = apart.submit(asyncio.run, _ask(what, address)).result()
    return found


async def _ask(what: str, address: str) -> list[Mapping[str, Any]]:
    grpc_utils: Any = importlib.import_module("ray._private.grpc_utils")
    aggregator: Any = importlib.import_module("ray.dashboard.state_aggregator")
    manager: Any = importlib.import_module("ray.util.state.state_manager")
    common: Any = importlib.import_module("ray.util.state.common")
    channel, source = grpc_utils.init_grpc_channel(address, asynchronous=True), None
    try:
        source = manager.StateDataSourceClient(channel, manager.GcsClient(address=address))
        with ThreadPoolExecutor(1) as pool:
            asked = getattr(aggregator.StateAPIManager(source, pool), f"list_{what}")
            option = common.ListApiOptions(limit=LIMIT, timeout=TIMEOUT_S, detail=True)
            answer = await asked(option=option)
    except manager.DataSourceUnavailable as error:
        raise FabricError(f"Ray does not tell of its {what}: {error}") from error
    finally:
        await channel.close()
        if source is not None:
            await source._client_session.close()
    found: list[Mapping[str, Any]] = answer.result
    return found


def _summary(rows: Any) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for name, state in rows:
        counts.setdefault(name, Counter())[state] += 1
    return {name: dict(counted) for name, counted in sorted(counts.items())}


def _groups(cluster: str | None) -> set[str]:
    """The placement groups of a virtual cluster and of all inside it, those of the past too."""
    from ray.util.placement_group import placement_group_table

    name = cluster or where.current_id()
    if name is None:
        raise FabricError("this process works in no virtual cluster: name one")
    document = VirtualClusters().snapshot()
    by_id = {each["id"]: each for each in document["clusters"]}
    todo, names = [ClusterId(name)], set[str]()
    while todo:
        each = todo.pop()
        names.add(each)
        todo += by_id[each]["children"]
    made = {id: str(group["name"]).split(":") for id, group in placement_group_table().items()}
    return {id for id, parts in made.items() if len(parts) == 4 and parts[2] in names}
