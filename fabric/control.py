"""What the manager asks of Ray's control plane: the protocol that `Gcs` and its fake meet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .core.audit import Running
from .core.books import JobId
from .core.groups import Group, GroupId
from .core.records import Machine, MachineId
from .core.resources import Resources


@dataclass(frozen=True, slots=True)
class Seen:
    """A placement group as Ray has it."""

    id: GroupId
    name: str
    state: str
    """`pending`, `created` or `rescheduling`."""
    hosts: tuple[MachineId | None, ...]
    """Where each bundle is; None while it is nowhere."""
    carries: tuple[Resources, ...]
    why: str = ""
    """What Ray says of its last attempt to place it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A Ray cluster at one moment."""

    machines: tuple[Machine, ...]
    groups: Mapping[GroupId, Seen]
    available: Mapping[MachineId, Resources]
    """What nobody uses of each machine."""
    jobs: frozenset[JobId]
    """Those that run."""
    in_use: frozenset[GroupId] = frozenset()
    """The placement groups that something runs in."""


class Ray(Protocol):
    """Ray's control plane; OSError or FabricError where it does not answer."""

    async def create(self, group: Group, name: str, labels: Iterable[Mapping[str, str]], /) -> None:
        """Ask for a placement group; asking again for the same changes nothing."""
        ...

    async def wait(self, id: GroupId, timeout_s: float, /) -> bool:
        """Wait until a placement group has its places; False if it has not by then."""
        ...

    async def look(self, id: GroupId, /) -> Seen | None:
        """What has become of a placement group; None if there is none."""
        ...

    async def remove(self, id: GroupId, /) -> None:
        """Remove a placement group, and what runs in it; one that is gone is no error."""
        ...

    async def available(self) -> Mapping[MachineId, Resources]:
        """What Ray takes to be free on each machine."""
        ...

    async def dead(self, actors: Collection[str], /) -> frozenset[str]:
        """Which of these actors have ended, or were never there."""
        ...

    async def bury(self) -> Sequence[MachineId]:
        """Tell Ray of machines that are there, but whose raylet is not; says which."""
        ...

    async def running(self, jobs: Collection[JobId], /) -> Sequence[Running]:
        """The actors and tasks of these jobs that run now, as far as Ray reports them."""
        ...

    async def observe(self) -> Observed:
        """Look at the whole cluster."""
        ...
