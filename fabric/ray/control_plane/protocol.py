"""The manager's view of Ray's control plane: the protocol that `Gcs` and its fake implement."""

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
    """A placement group in Ray."""

    id: GroupId
    name: str
    """May be empty for a known group, whose name is not requested."""
    state: str
    """`pending`, `created` or `rescheduling`."""
    hosts: tuple[MachineId | None, ...]
    """The machine of each bundle; None if it has none."""
    carries: tuple[Resources, ...]
    why: str = ""
    """Ray's report of its last attempt to place it."""
    being_placed: bool = False
    """Whether Ray is placing it now, rather than waiting for room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A Ray cluster at one moment."""

    machines: tuple[Machine, ...]
    groups: Mapping[GroupId, Seen]
    available: Mapping[MachineId, Resources]
    """The free resources of each machine."""
    jobs: frozenset[JobId]
    """The running jobs."""
    named: Mapping[JobId, str] = field(default_factory=dict)
    """The virtual cluster in the metadata of those jobs that Ray's job server started."""
    in_use: frozenset[GroupId] = frozenset()
    """The placement groups with running work."""
    wanted: Mapping[GroupId, Resources] = field(default_factory=dict)
    """The placement groups that work waits for, each with the largest demands."""


Shown = Mapping[GroupId, Mapping[int, tuple[MachineId, Resources]]]
"""The machine and the resources of each group's bundles by index, as the machines report them."""


def clear(shown: Shown, known: Mapping[GroupId, int]) -> dict[GroupId, Seen]:
    """The known groups whose bundles are all in the machines' reports, which are 0.1 s old."""
    return {
        id: seen_on(id, bundles)
        for id, bundles in shown.items()
        if id in known and bundles.keys() == {*range(known[id])}
    }


def seen_on(
    id: GroupId, bundles: Mapping[int, tuple[MachineId, Resources]], name: str = ""
) -> Seen:
    """A placed group, from the machines' reports, which omit bundles without a place."""
    there = [bundles[index] for index in sorted(bundles)]
    return Seen(
        id=id,
        name=name,
        state="created",
        hosts=tuple(host for host, _ in there),
        carries=tuple(carried for _, carried in there),
    )


class RayControl(Protocol):
    """Ray's control plane. Calls raise OSError or FabricError if it does not answer."""

    async def create(
        self,
        group: PlacementGroupRecord,
        name: str,
        labels: Iterable[Mapping[str, str]],
        timeout_s: float,
        /,
    ) -> bool:
        """Request a group, if it is new, and wait until it is placed; False after `timeout_s`."""

    async def look(self, id: GroupId, /) -> Seen | None:
        """A placement group as it is now; None if there is none."""

    async def remove(self, id: GroupId, /) -> None:
        """Remove a placement group and end its work; a missing group is no error."""

    async def available(self) -> Mapping[MachineId, Resources]:
        """What Ray considers free on each machine."""

    async def dead(self, actors: Collection[str], /) -> frozenset[str]:
        """Those of these actors that have ended or never existed."""

    async def over(self, processes: Collection[ProcessId], /) -> frozenset[ProcessId]:
        """Those of these processes that have ended or never existed."""

    async def bury(self) -> Sequence[MachineId]:
        """Report machines without a raylet to Ray as dead; return them."""

    async def running(self, jobs: Collection[JobId], /) -> Sequence[Running]:
        """The actors and tasks of these jobs that run now, as far as Ray reports them."""

    async def observe(
        self, known: Mapping[GroupId, int], /, *, everything: bool = False
    ) -> Observed:
        """Look at the whole cluster.

        Finds the placement groups in `known` (id to number of bundles) and all placed ones;
        with `everything` also unknown waiting ones, which takes longer with every group ever made.
        """
