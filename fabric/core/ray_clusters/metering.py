"""How fast a declared Ray cluster follows its declaration, and how much of it is idle.

`metered` folds what is seen of one cluster into a meter. Durations come from the times of events,
so they do not depend on how often it is called.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from .lifecycle import RayClusterState

BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The upper bounds of a histogram's buckets, without the infinite one."""
IDLE_S = 5.0
"""A machine without work for so long counts as idle."""
LONGEST_GAP_S = 30.0
"""Between two looks; of a longer one it is not known what happened meanwhile."""
ACTS = ("machine_", "cluster_", "resource_")
"""How the kinds of events begin that the lifecycle manager tells of."""
_CLUSTER = "cluster_"
_BROKEN = (RayClusterState.SCALING, RayClusterState.RECOVERING, RayClusterState.STARTING)


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of seconds."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    """By bucket: those of `BOUNDS_S`, and what is longer."""
    sum_s: float = 0.0

    def with_one(self, seconds: float) -> Durations:
        """These and one more; a negative one, after a step of the clock, counts as 0."""
        seconds = max(0.0, seconds)
        place = bisect_left(BOUNDS_S, seconds)
        counts = tuple(count + (i == place) for i, count in enumerate(self.counts))
        return Durations(counts, self.sum_s + seconds)

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredEvent:
    """An event of a cluster."""

    at_s: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredCluster:
    """What is seen of a cluster at one moment. Its status is not newer than its events."""

    revision: int
    written_s: float
    """When that revision was declared."""
    seen_revision: int | None
    """The revision that its manager has seen."""
    state: str
    ready: Mapping[str, int] = field(default_factory=dict)
    """Machines that are ready, by group."""
    idle: Mapping[str, int] = field(default_factory=dict)
    """Those of them that are idle, by group; without the groups of which that is not known."""
    events: tuple[MeteredEvent, ...] = ()
    """Those since the last look, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMeter:
    """What was measured of one cluster since it was first looked at."""

    reaction: Durations = Durations()
    """From a declaration to the first act for it."""
    ready: Durations = Durations()
    """From a declaration that takes machines, or their end, to a cluster that is as declared."""
    heal: Durations = Durations()
    """From the notice that something is missing to a cluster that is as declared again."""
    machine_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of machines that were ready, by group."""
    idle_s: Mapping[str, float] = field(default_factory=dict)
    """Those of them without work, by group."""
    revision: int | None = None
    written_s: float = 0.0
    awaits_act: bool = False
    awaits_ready: bool = False
    broken_s: float | None = None
    """Since when something is missing that is not due to a declaration."""
    looked_s: float | None = None


def metered(before: ClusterMeter | None, seen: MeteredCluster, now: float) -> ClusterMeter:
    """The meter after one more look; what has happened before the first look is not measured."""
    found = ClusterMeter() if before is None else before
    events = seen.events
    if before is not None and found.revision != seen.revision:
        for event in events:
            found = _after(found, event) if event.at_s < seen.written_s else found
        events = tuple(each for each in events if each.at_s >= seen.written_s)
    if found.revision != seen.revision:
        found = replace(
            found,
            revision=seen.revision,
            written_s=seen.written_s,
            awaits_act=True,
            awaits_ready=True,
            broken_s=None,
        )
        if before is None and seen.seen_revision == seen.revision:
            found = replace(found, awaits_act=False, awaits_ready=False)
    for event in events if before is not None or found.awaits_act else ():
        found = _after(found, event)
    if seen.seen_revision == seen.revision:  # what its manager did for it is among the events
        waits = found.awaits_ready and seen.state != RayClusterState.READY
        found = replace(found, awaits_act=False, awaits_ready=waits)
    return _with_time(found, seen, now)


def _after(meter: ClusterMeter, event: MeteredEvent) -> ClusterMeter:
    late = event.at_s >= meter.written_s
    if meter.awaits_act and late and event.kind.startswith(ACTS):
        reaction = meter.reaction.with_one(event.at_s - meter.written_s)
        meter = replace(meter, awaits_act=False, reaction=reaction)
    state = event.kind.removeprefix(_CLUSTER) if event.kind.startswith(_CLUSTER) else ""
    if state == RayClusterState.READY:
        if meter.awaits_ready and late:
            ready = meter.ready.with_one(event.at_s - meter.written_s)
            return replace(meter, awaits_ready=False, broken_s=None, ready=ready)
        if meter.broken_s is not None:
            heal = meter.heal.with_one(event.at_s - meter.broken_s)
            return replace(meter, broken_s=None, heal=heal)
    elif state in (RayClusterState.SUSPENDED, RayClusterState.DELETING):
        return replace(meter, awaits_ready=False, broken_s=None)
    elif state in _BROKEN and not meter.awaits_ready and meter.broken_s is None:
        return replace(meter, broken_s=event.at_s)
    return meter


def _with_time(meter: ClusterMeter, seen: MeteredCluster, now: float) -> ClusterMeter:
    gap_s = 0.0 if meter.looked_s is None else now - meter.looked_s
    if not 0 <= gap_s <= LONGEST_GAP_S:
        gap_s = 0.0
    known = {name: count for name, count in seen.ready.items() if name in seen.idle}
    return replace(
        meter,
        looked_s=now,
        machine_s=_added(meter.machine_s, known.items(), gap_s),
        idle_s=_added(meter.idle_s, seen.idle.items(), gap_s),
    )


def _added(
    before: Mapping[str, float], machines: Iterable[tuple[str, int]], gap_s: float
) -> dict[str, float]:
    found = dict(before)
    for group, count in machines:
        found[group] = found.get(group, 0.0) + count * gap_s
    return found
