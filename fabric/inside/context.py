"""The virtual cluster and the virtual node of a process or a thread.

A `with` block applies to the thread or asyncio task that entered it, and to the threads, tasks and
calls that start inside it, until it ends.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..core.places.groups import GroupId
from ..core.records import ClusterId
from ..ray.private_ray import own_group, resource_names
from .manager_client import ask, on_forget

JOB_VARIABLE = "FEDPILOT_VIRTUAL_CLUSTER"
"""The environment variable that names a job's virtual cluster in all its processes."""


@dataclass(slots=True, eq=False)
class Block:
    """A `with` block that has a virtual cluster."""

    cluster: str
    spec: object
    """The object of the `with` statement."""
    open: bool = True


_entered: ContextVar[tuple[Block, ...]] = ContextVar("entered", default=())
"""The blocks around the running code, outermost first; some may have ended."""

_open: dict[Block, None] = {}
"""All open blocks of this process."""

_before: list[str | None] = []
"""Earlier values of JOB_VARIABLE, one for each virtual cluster that this process joined."""

_owners: dict[str, tuple[str, str, bool] | None] = {}
"""A cache of placement groups' virtual clusters, which never change."""


def current_id() -> str | None:
    """The virtual cluster of the innermost open block, otherwise of this worker or of the job."""
    for block in reversed(_entered.get()):
        if block.open:
            return block.cluster
    known = owner_of(own_group())
    return known[0] if known else os.environ.get(JOB_VARIABLE) or None


def join(cluster: str) -> None:
    """Work inside a virtual cluster as a job, until the connection to Ray ends."""
    _before.append(os.environ.get(JOB_VARIABLE))
    os.environ[JOB_VARIABLE] = cluster


def enter(block: Block) -> None:
    """Work inside an existing virtual cluster until `leave`."""
    _open[block] = None
    _entered.set((*_entered.get(), block))


def leave(spec: object) -> Block | None:
    """End the innermost block of a spec; None if it ended with the connection to Ray.

    A thread that leaves without having entered ends the spec's latest block.
    """
    mine = [block for block in _entered.get() if block.spec is spec]
    known = mine or [block for block in list(_open) if block.spec is spec]
    if not known:
        return None
    block = known[-1]
    _entered.set(tuple(each for each in _entered.get() if each is not block))
    if not block.open:
        return None
    block.open = False
    _open.pop(block, None)
    return block


def start_inside(original: Callable[..., Any], thread: threading.Thread) -> None:
    """`Thread.start`: the thread runs in the blocks in which it was started.

    Only the thread's own `run` is replaced, and restored before it runs; others' wrappers stay.
    """
    blocks = _entered.get()
    if not blocks:
        original(thread)
        return
    run, own = thread.run, vars(thread)
    given = own.get("run")

    def put_back() -> None:
        if own.get("run") is not run_inside:
            return
        if given is None:
            del own["run"]
        else:
            own["run"] = given

    def run_inside() -> None:
        put_back()
        _entered.set(blocks)
        run()

    own["run"] = run_inside
    try:
        original(thread)
    except RuntimeError:  # it was already started, or there are too many threads
        put_back()
        raise


def submit_inside(
    original: Callable[..., Any], pool: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """`ThreadPoolExecutor.submit`: the call runs in the blocks in which it was submitted.

    A thread that the pool starts for this call also serves others, so it is in no block.
    """
    blocks = _entered.get()
    if not blocks:
        return original(pool, call, *args, **kwargs)

    def call_inside() -> Any:
        before = _entered.set(blocks)
        try:
            return call(*args, **kwargs)
        finally:
            _entered.reset(before)

    before = _entered.set(())
    try:
        return original(pool, call_inside)
    finally:
        _entered.reset(before)


def current_vnode() -> tuple[str, str] | None:
    """The virtual cluster and the virtual node that this worker runs in."""
    import ray

    here = own_group()
    known = owner_of(here)
    if here is None or known is None:
        return None
    machine = ray.get_runtime_context().get_node_id()
    bundle = own_bundle(here)
    for node in ask("show", ClusterId(known[0]))["nodes"]:
        if node["machine"] == machine and carries(node, here, bundle):
            return known[0], str(node["id"])
    return None


def carries(node: Mapping[str, Any], group: str, bundle: int | None) -> bool:
    """Whether a bundle of a placement group carries a virtual node; None means any bundle."""
    return any(each["id"] == group and bundle in (None, each["bundle"]) for each in node["groups"])


def bundle_of(resources: Iterable[str], group: str) -> int | None:
    """The bundle in names such as `CPU_group_<bundle>_<group>`; `CPU_group_<group>` names none."""
    found = (re.fullmatch(rf".+_group_(\d+)_{group}", name) for name in resources)
    return next((int(each[1]) for each in found if each), None)


def own_bundle(group: str) -> int | None:
    """The index of the bundle of a placement group that this worker runs in."""
    return bundle_of(resource_names(), group)


def enclosing() -> str | None:
    """The innermost virtual cluster here that was not requested as a placement group."""
    cluster = current_id()
    known = owner_of(own_group()) if cluster else None
    return known[1] if known and known[0] == cluster and known[2] else cluster


def is_placement_group(group: str) -> bool:
    known = owner_of(group)
    return bool(known and known[2])


def owner_of(group: str | None) -> tuple[str, str, bool] | None:
    """The answer of `ManagerActor.cluster_of` for a placement group, cached."""
    if group is None:
        return None
    if group not in _owners:
        known = ask("cluster_of", GroupId(group))
        if known is None:
            return None
        _owners[group] = known
    return _owners[group]


@on_forget
def _forget() -> None:
    _owners.clear()
    for block in list(_open):
        block.open = False
    _open.clear()
    while _before:
        before = _before.pop()
        os.environ.pop(JOB_VARIABLE, None)
        if before is not None:
            os.environ[JOB_VARIABLE] = before
