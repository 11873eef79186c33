"""What a process that submits work asks the router, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.pickle_names import travels
from ...core.places.groups import GroupId
from ...core.records import ClusterId, ProcessId, WorkId
from ...core.resources import Resources
from ...core.selectors import Selector


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A task or an actor that is about to be submitted."""

    id: WorkId
    """18 bytes in hex, also the id of a placement group of its own, if it needs one."""
    cluster: ClusterId
    demand: Resources
    selector: Selector
    owner: ProcessId
    """The process that submits it."""
    actor: bool = False
    function: str = ""
    """The function of a task; tasks of one function are assumed to take equally long."""
    wait: bool = True
    """Whether it may wait; otherwise it is refused if there is no room now."""
    inside: tuple[GroupId, int] | None = None
    """The bundle of its submitter, if it waits for that room, even beyond the submitter's end."""


@travels
@dataclass(frozen=True, slots=True)
class Placed:
    """The answer to `Ask`: where the work runs."""

    group: GroupId
    bundle: int
    sizes: tuple[Mapping[str, float], ...]
    """The resources of the placement group's bundles; empty if it does not exist yet."""
    state: str
