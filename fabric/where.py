"""Where a process, or a thread of it, is: in which virtual cluster, in which virtual node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from .core.groups import GroupId
from .core.records import ClusterId
from .reaching import ask, on_forget

JOB_VARIABLE = "FEDPILOT_VIRTUAL_CLUSTER"
"""Names the virtual cluster of a job, in the environment of all its processes."""

_entered: ContextVar[tuple[str, ...]] = ContextVar("entered")
_last_entered: list[str] = []
"""For threads that were started inside a `with` block, and do not inherit its context."""

_owners: dict[str, tuple[str, str, bool] | None] = {}
"""The virtual clusters of placement groups, which never change."""


def current_id() -> str | None:
    """The virtual cluster that this thread works in; None outside of all.

    That is the innermost `with` block; in a worker the one whose placement group it runs in; else
    the job's.
    """
    entered = _entered.get(None)
    if entered is None:
        entered = tuple(_last_entered)
    if entered:
        return entered[-1]
    return _of_this_worker() or os.environ.get(JOB_VARIABLE) or None


@contextlib.contextmanager
def inside(cluster: str) -> Iterator[None]:
    """Work inside a virtual cluster that is there."""
    before = _entered.get(None)
    if before is None:
        before = tuple(_last_entered)
    token = _entered.set((*before, cluster))
    _last_entered.append(cluster)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # Ray was shut down inside the block
            _last_entered.remove(cluster)
        _entered.reset(token)


def current_vnode() -> tuple[str, str] | None:
    """The virtual cluster and the virtual node that this worker runs in."""
    import ray

    here = own_group()
    known = owner_of(here) if here else None
    if here is None or known is None:
        return None
    machine = ray.get_runtime_context().get_node_id()
    for node in ask("show", ClusterId(known[0]))["nodes"]:
        if node["machine"] == machine and any(each["id"] == here for each in node["groups"]):
            return known[0], str(node["id"])
    return None


def enclosing() -> str | None:
    """The innermost virtual cluster here that was not asked for as a placement group."""
    cluster = current_id()
    here = own_group()
    if cluster is None or here is None:
        return cluster
    known = owner_of(here)
    return known[1] if known and known[0] == cluster and known[2] else cluster


def own_group() -> str | None:
    """The placement group that this worker runs in."""
    from ray._private import worker

    ours: Any = worker.global_worker
    if not ours.connected or ours.mode != worker.WORKER_MODE:
        return None
    id = ours.core_worker.get_placement_group_id()
    return None if id.is_nil() else str(id.hex())


def captures() -> bool:
    from ray._private.worker import global_worker

    return bool(global_worker.should_capture_child_tasks_in_placement_group)


def _of_this_worker() -> str | None:
    here = own_group()
    if here is None:
        return None
    known = owner_of(here)
    return known[0] if known else None


def is_placement_group(group: str) -> bool:
    known = owner_of(group)
    return bool(known and known[2])


def owner_of(group: str) -> tuple[str, str, bool] | None:
    if group not in _owners:
        known = ask("cluster_of", GroupId(group))
        if known is None:
            return None
        _owners[group] = known
    return _owners[group]


@on_forget
def _forget() -> None:
    _owners.clear()
    _last_entered.clear()
    _entered.set(())
