"""What the manager asks of Ray's control plane: the protocol that `Gcs` and its fake meet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...core.audit import Running
from ...core.cluster_state import JobId
from ...core.places.groups import GroupId, PlacementGroupRecord
from ...core.records import Machine, MachineId, ProcessId
from ...core.resources import Resources


@dataclass(frozen=True, slots=True)
class Seen:
    """A placement group as Ray has it."""

    id: GroupId
    name: str
    """Empty where it was not asked for, of those that were known."""
    state: str
    """`pending`, `created` or `rescheduling`."""
    hosts: tuple[MachineId | None, ...]
    """Where each bundle is; None while it is nowhere."""
    carries: tuple[Resources, ...]
    why: str = ""
    """What Ray says of its last attempt to place it."""
    being_placed: bool = False
    """Whether Ray is looking for places now; not while it waits for room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A Ray cluster at one moment."""

    machines: tuple[Machine, ...]
    groups: Mapping[GroupId, Seen]
    available: Mapping[MachineId, Resources]
    """What is free of each machine."""
    jobs: frozenset[JobId]
    """Those that run."""
    named: Mapping[JobId, str] = field(default_factory=dict)
    """The virtual clusters that Ray's job server was told for those of them that it started."""
    in_use: frozenset[GroupId] = frozenset()
    """The placement groups that something runs in."""
    wanted: Mapping[GroupId, Resources] = field(default_factory=dict)
    """The placement groups that something waits for, and the largest that does."""


Shown = Mapping[GroupId, Mapping[int, tuple[MachineId, Resources]]]
"""Where the bundles of placement groups are, by their index, as the machines themselves say."""


def clear(shown: Shown, known: Mapping[GroupId, int]) -> dict[GroupId, Seen]:
    """The known groups of which machines show all bundles, in their view of 0.1 s ago."""
    return {
        id: seen_on(id, bundles)
        for id, bundles in shown.items()
        if id in known and bundles.keys() == {*range(known[id])}
    }


def seen_on(
    id: GroupId, bundles: Mapping[int, tuple[MachineId, Resources]], name: str = ""
) -> Seen:
    """A placement group as the machines show it, which do not show what is nowhere."""
    there = [bundles[index] for index in sorted(bundles)]
    return Seen(
        id=id,
        name=name,
        state="created",
        hosts=tuple(host for host, _ in there),
        carries=tuple(carried for _, carried in there),
    )


class RayControl(Protocol):
    """Ray's control plane; OSError or FabricError where it does not answer."""

    async def create(
        self,
        group: PlacementGroupRecord,
        name: str,
        labels: Iterable[Mapping[str, str]],
        timeout_s: float,
        /,
    ) -> bool:
        """Ask for a group, if it is new, and wait for its places; False if it has none by then."""

    async def look(self, id: GroupId, /) -> Seen | None:
        """What has become of a placement group; None if there is none."""

    async def remove(self, id: GroupId, /) -> None:
        """Remove a placement group, and what runs in it; one that is gone is no error."""

    async def available(self) -> Mapping[MachineId, Resources]:
        """What Ray takes to be free on each machine."""

    async def dead(self, actors: Collection[str], /) -> frozenset[str]:
        """Which of these actors have ended, or were never there."""

    async def over(self, processes: Collection[ProcessId], /) -> frozenset[ProcessId]:
        """Which of these processes have ended, or were never there."""

    async def bury(self) -> Sequence[MachineId]:
        """Tell Ray of machines that are there, but whose raylet is not; says which."""

    async def running(self, jobs: Collection[JobId], /) -> Sequence[Running]:
        """The actors and tasks of these jobs that run now, as far as Ray reports them."""

    async def observe(
        self, known: Mapping[GroupId, int], /, *, everything: bool = False
    ) -> Observed:
        """Look at the whole cluster.

        Finds the placement groups in `known` (id to number of bundles) and all that have a place.
        Unknown ones that wait are found with `everything`, which takes longer with every group
        that there ever was.
        """
