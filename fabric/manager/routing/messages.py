"""What a process that submits work asks the router, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.places.groups import GroupId
from ...core.records import ClusterId, ProcessId, WorkId
from ...core.resources import Resources
from ...core.selectors import Selector
from ...pickle_names import travels


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A task or an actor that is about to be submitted."""

    id: WorkId
    """18 bytes in hex, which name a placement group if it needs one of its own."""
    cluster: ClusterId
    demand: Resources
    selector: Selector
    owner: ProcessId
    """The process that submits it."""
    actor: bool = False
    function: str = ""
    """What a task calls: tasks of one function last alike."""
    wait: bool = True
    """Whether it may wait; otherwise it is refused where there is no room now."""
    inside: tuple[GroupId, int] | None = None
    """The bundle of what submits it, if it waits for the room of that, which may end before."""


@travels
@dataclass(frozen=True, slots=True)
class Placed:
    """Where work runs, as its submitter is told."""

    group: GroupId
    bundle: int
    sizes: tuple[Mapping[str, float], ...]
    """What the bundles of the placement group have; nothing if it does not exist yet."""
    state: str
