"""Ray's state of tasks, actors and objects, limited to one virtual cluster.

A task or actor is in a virtual cluster if its placement group belongs, or belonged, to it or to one
inside it. This module needs no dashboard, unlike Ray's state API.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import FabricError
from ..manager.snapshot import find
from ..ray import private_ray
from . import context
from .virtual_clusters import VirtualClusters

Row = Mapping[str, Any]

ALL = 2**31 - 1
"""A limit above any number of rows: Ray would also count rows outside the virtual cluster."""

TIMEOUT_S = 30
TASK_ID = 48
"""Hexadecimal digits of a task's id."""


def tasks(cluster: str | None = None) -> list[Row]:
    """The tasks of a virtual cluster, by default the current one. NoSuchCluster."""
    groups = _groups(cluster)
    return [each for each in _rows("tasks") if each["placement_group_id"] in groups]


def actors(cluster: str | None = None) -> list[Row]:
    """The actors of a virtual cluster, by default the current one. NoSuchCluster."""
    groups = _groups(cluster)
    return [each for each in _rows("actors") if each["placement_group_id"] in groups]


def objects(cluster: str | None = None) -> list[Row]:
    """The objects that a virtual cluster's tasks made or its processes hold, each once."""
    work, living = tasks(cluster), actors(cluster)
    return of_work(_rows("objects"), work, living, _rows("nodes"))


def of_work(
    objects: Iterable[Row], tasks: Iterable[Row], actors: Iterable[Row], nodes: Iterable[Row]
) -> list[Row]:
    """The objects that these tasks made, or that their or these actors' processes hold.

    Ray reports the address of the machine that holds an object, but the node's id for work.
    """
    tasks = list(tasks)
    addresses = {each["node_id"]: each["node_ip"] for each in nodes}
    processes = [(each["node_id"], each["pid"]) for each in actors if each["state"] == "ALIVE"]
    processes += [(each.get("node_id"), each.get("worker_pid")) for each in tasks]
    holders = {(addresses[node], pid) for node, pid in processes if node in addresses}
    made = {str(each["task_id"]) for each in tasks}  # an object's id begins with its task's
    found = {
        each["object_id"]: each
        for each in objects
        if (each["ip"], each["pid"]) in holders or each["object_id"][:TASK_ID] in made
    }
    return list(found.values())


def summarize_tasks(cluster: str | None = None) -> dict[str, dict[str, int]]:
    """The number of tasks by name and state."""
    return _summary((each["name"], each["state"]) for each in tasks(cluster))


def summarize_actors(cluster: str | None = None) -> dict[str, dict[str, int]]:
    """The number of actors by class and state."""
    return _summary((each["class_name"], each["state"]) for each in actors(cluster))


def summarize_objects(cluster: str | None = None) -> dict[str, int]:
    """The number of objects, and their bytes."""
    found = objects(cluster)
    return {"objects": len(found), "bytes": sum(int(each["object_size"]) for each in found)}


def _rows(what: str) -> list[Row]:
    """All tasks, actors, objects or nodes of Ray; warns if Ray's answer is incomplete."""
    import ray

    address = ray.get_runtime_context().gcs_address
    with ThreadPoolExecutor(1) as apart:  # an event loop may run in this thread
        answer = apart.submit(asyncio.run, _ask(what, address)).result()
    if (lack := lacking(what, answer)) is not None:
        warnings.warn(lack, RuntimeWarning, stacklevel=3)
    found: list[Row] = answer.result
    return found


async def _ask(what: str, address: str) -> Any:
    private_ray.require(private_ray.STATE)
    aggregator: Any = importlib.import_module("ray.dashboard.state_aggregator")
    manager: Any = importlib.import_module("ray.util.state.state_manager")
    common: Any = importlib.import_module("ray.util.state.common")
    channel, source = private_ray.channel(address), None
    try:
        source = manager.StateDataSourceClient(channel, manager.GcsClient(address=address))
        for method in ("get_all_task_info", "get_all_actor_info", "get_object_info"):
            setattr(source, method, functools.partial(getattr(source, method), limit=ALL))
        with ThreadPoolExecutor(1) as pool:
            asked = getattr(aggregator.StateAPIManager(source, pool), f"list_{what}")
            option = common.ListApiOptions(limit=ALL, timeout=TIMEOUT_S, detail=True)
            return await asked(option=option)
    except manager.DataSourceUnavailable as error:
        raise FabricError(f"Ray does not tell of its {what}: {error}") from error
    finally:
        await channel.close()
        if source is not None:
            await source._client_session.close()


def lacking(what: str, answer: Any) -> str | None:
    """What Ray's answer leaves out, since Ray forgets old tasks and dead actors; or None."""
    if answer.partial_failure_warning:
        return f"Ray does not tell of all {what}: {answer.partial_failure_warning}"
    forgotten = answer.total - answer.num_after_truncation
    if what in ("tasks", "actors") and forgotten > 0:
        return f"Ray has forgotten {forgotten} {what} of this Ray cluster, perhaps some of these"
    return None


def _summary(rows: Any) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for name, state in rows:
        counts.setdefault(name, Counter())[state] += 1
    return {name: dict(counted) for name, counted in sorted(counts.items())}


def _groups(cluster: str | None) -> set[str]:
    """The present and past placement groups of a virtual cluster and of all inside it."""
    from ray.util.placement_group import placement_group_table

    name = cluster or context.current_id()
    if name is None:
        raise FabricError("this process works in no virtual cluster: name one")
    names = _below(VirtualClusters().snapshot(), name)
    made = {id: str(group["name"]).split(":") for id, group in placement_group_table().items()}
    return {id for id, parts in made.items() if len(parts) == 4 and parts[2] in names}


def _below(document: Mapping[str, Any], name: str) -> set[str]:
    """A virtual cluster and all inside it. NoSuchCluster."""
    children = {each["id"]: each["children"] for each in document["clusters"]}
    todo, found = [str(find(document, name)["id"])], set[str]()
    while todo:
        each = todo.pop()
        found.add(each)
        todo += children[each]
    return found
