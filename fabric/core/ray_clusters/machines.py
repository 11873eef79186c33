"""The machines of a declared Ray cluster: their states, and how one follows another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from .declaration import GroupName, MachineName

MachinePlace: TypeAlias = tuple[str, MachineName]
"""A host, empty where the provider runs, and a machine on it."""


class MachineState(StrEnum):
    """What the manager of a Ray cluster knows about a machine."""

    STARTING = "starting"
    """The provider starts it, or will; Ray does not know it yet."""
    READY = "ready"
    """Ray uses it."""
    DRAINING = "draining"
    """Its work has notice, and Ray gives it no more."""
    STOPPING = "stopping"
    """The provider ends it."""
    GONE = "gone"
    """Nothing of it is left."""


class MachineEvent(StrEnum):
    """What happens to a machine."""

    JOINED = "joined"
    """Ray has accepted it."""
    DRAIN = "drain"
    """It must leave once its work has."""
    STOP = "stop"
    """It must leave now, or has failed, and what is left of it must end."""
    ENDED = "ended"
    """The provider has nothing of it any more."""


S, E = MachineState, MachineEvent
TRANSITIONS: Mapping[MachineState, Mapping[MachineEvent, MachineState]] = {
    S.STARTING: {E.JOINED: S.READY, E.DRAIN: S.STOPPING, E.STOP: S.STOPPING, E.ENDED: S.GONE},
    S.READY: {E.JOINED: S.READY, E.DRAIN: S.DRAINING, E.STOP: S.STOPPING, E.ENDED: S.GONE},
    S.DRAINING: {E.JOINED: S.DRAINING, E.DRAIN: S.DRAINING, E.STOP: S.STOPPING, E.ENDED: S.GONE},
    S.STOPPING: {E.JOINED: S.STOPPING, E.DRAIN: S.STOPPING, E.STOP: S.STOPPING, E.ENDED: S.GONE},
    S.GONE: {event: S.GONE for event in MachineEvent},
}
"""Every event is decided in every state; `gone` is the end."""
LIVE = (MachineState.READY, MachineState.STARTING)
"""The states of the machines that count for their group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """A machine that the manager has asked its provider for."""

    name: MachineName
    number: int
    """Unique in its cluster, and part of its name; a later machine has a larger one."""
    group: GroupName
    host: str
    """One of the group's hosts; empty: where the provider runs."""
    template: str
    """The digest of the template that it started with."""
    head: MachineName
    """The head that it was started for; a head names itself."""
    state: MachineState = MachineState.STARTING
    since_s: float
    """Since when it is in this state."""
    reason: str
    """Why it is in this state."""

    def after(self, event: MachineEvent, now: float, reason: str) -> MachineRecord:
        """This machine after an event; an event that changes nothing keeps time and reason."""
        state = TRANSITIONS[self.state][event]
        if state is self.state:
            return self
        return replace(self, state=state, since_s=now, reason=reason)

    @property
    def live(self) -> bool:
        """Whether it counts towards the machines that its group should have."""
        return self.state in LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What provider and Ray say about a machine now."""

    exists: bool | None
    """Whether the provider has anything of it; None while its host does not answer."""
    joined: bool = False
    """Whether Ray uses it."""
    dead: bool = False
    """Whether Ray has declared it dead, or a process of it that the others need has ended."""
    idle_since_s: float | None = None
    """Since when no work is on it; None: there is some."""
    loss: float = 0.0
    """What ending it would cost the work on it, in CPU seconds or any unit of one cluster."""
    trouble: str = ""
    """What went wrong with it, in words."""
