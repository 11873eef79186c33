"""Work: a task or an actor that is submitted inside a virtual cluster, and how it stands."""

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
    """Ray runs it when its placement group has room."""
    HELD = "held"
    """It waits for a placement group of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task or an actor, from its submission to its end."""

    id: WorkId
    number: int
    """In the order of submission."""
    cluster: ClusterId
    demand: Resources
    selector: Selector = field(default_factory=dict, hash=False)
    """Which vnodes may run it, by their labels."""
    actor: str = ""
    """The id of the actor, once it is known; empty for a task."""
    lasting: bool = False
    """Whether it is an actor, which may live for ever."""
    function: str = ""
    """What a task calls; empty after a restart of the manager."""
    owner: ProcessId = NOBODY
    """The process that submitted it."""
    group: GroupId
    bundle: int = 0
    vnode: VNodeId | None = None
    """None until it is placed."""
    state: WorkState = WorkState.HELD


def alike(demand: Resources, selector: Selector) -> Hashable:
    """The same for all work that may run in the same places."""
    return (demand, tuple(sorted(selector.items(), key=str)) if selector else ())
