"""Work: a task or an actor that was submitted inside a virtual cluster, and its state."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from ..places.groups import GroupId
from ..records import ClusterId, ProcessId, VNodeId, WorkId
from ..resources import Resources
from ..selectors import Selector

NOBODY = ProcessId("")


class WorkState(StrEnum):
    """Whether work has its resources."""

    PLACED = "placed"
    """Its bundle has room for it."""
    QUEUED = "queued"
    """Ray runs it as soon as its placement group has room."""
    HELD = "held"
    """It waits for its own placement group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task or an actor, from its submission to its end."""

    id: WorkId
    number: int
    """The order of submission."""
    cluster: ClusterId
    demand: Resources
    selector: Selector = field(default_factory=dict, hash=False)
    """Which vnodes may run it, by their labels."""
    actor: str = ""
    """The actor's id, once it is known; empty for a task."""
    lasting: bool = False
    """Whether it is an actor, which may live forever."""
    function: str = ""
    """The function of a task; empty after a restart of the manager."""
    owner: ProcessId = NOBODY
    """The process that submitted it."""
    group: GroupId
    bundle: int = 0
    vnode: VNodeId | None = None
    """None until it is placed."""
    state: WorkState = WorkState.HELD


def alike(demand: Resources, selector: Selector) -> Hashable:
    """A key that is equal for all work that may run in the same places."""
    return (demand, tuple(sorted(selector.items(), key=str)) if selector else ())
