"""Which virtual clusters a new head of a Ray cluster has lost.

Ray and the ledger in its session's folder end with the head. A record beside the sessions stays,
and tells the manager on the next head what was there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .cluster_state import Entry
from .records import ROOT, ClusterId

TOLD_S = 86400.0
"""How long lost virtual clusters of jobs are listed: they cannot be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A virtual cluster, with all that is needed to ask for it again."""

    id: ClusterId
    parent: ClusterId = ROOT
    spec: Mapping[str, Any] = field(default_factory=dict, hash=False)
    owner: str | None = None
    """The job that it belonged to; without one it is detached, and can be restored."""
    user: str = ""
    priority: int = 0
    deadline: float | None = None
    """When it gives up; only for one that waited for its places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """The head of a Ray cluster, its virtual clusters, and those that heads before it had."""

    session: str
    began: float
    """Seconds since the epoch."""
    clusters: tuple[Remembered, ...] = ()
    gone: tuple[Remembered, ...] = ()
    """Those of heads before, parents before their children."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing that the next head would have to know."""
        return not self.clusters and not self.gone


def remembered(entries: Iterable[Entry]) -> tuple[Remembered, ...]:
    """The records of a head's virtual clusters, parents first, without placement groups of jobs."""
    return tuple(
        Remembered(
            id=entry.request.id,
            parent=entry.request.parent,
            spec=entry.spec,
            owner=entry.owner,
            user=entry.user,
            priority=entry.request.priority,
            deadline=entry.request.deadline if entry.waiting else None,
        )
        for entry in entries
        if entry.group is None
    )


def succeed(found: HeadRecord | None, session: str, began: float) -> HeadRecord:
    """The record of a head, from the one that is there: its own, a former head's, or none."""
    if found is None:
        return HeadRecord(session=session, began=began)
    if found.session == session:
        return found
    latest = {each.id for each in found.clusters}
    before = (each for each in found.gone if each.owner is None and each.id not in latest)
    return HeadRecord(session=session, began=began, gone=(*before, *found.clusters))


def update(
    record: HeadRecord, clusters: tuple[Remembered, ...], now: float, drop: Collection[str] = ()
) -> HeadRecord:
    """The record with these virtual clusters; what was made again, or is dropped, is not gone."""
    there = {each.id for each in clusters}.union(drop)
    return replace(record, clusters=clusters, gone=gone_of(record, there, now))


def gone_of(record: HeadRecord, there: Collection[str], now: float) -> tuple[Remembered, ...]:
    """What is gone and not there again; of jobs, only as long as it is told."""
    told = now < record.began + TOLD_S
    return tuple(
        each for each in record.gone if each.id not in there and (told or each.owner is None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What can be asked for again, in order, and why the rest cannot."""

    again: tuple[Remembered, ...]
    refused: Mapping[str, str]


def restorable(
    gone: Sequence[Remembered], there: Collection[str], names: Collection[str], now: float
) -> Restoration:
    """Which of these names, or of all detached ones without names, can be asked for again."""
    wanted = [each for each in gone if (each.id in names if names else each.owner is None)]
    again: list[Remembered] = []
    refused: dict[str, str] = {}
    for each in wanted:
        if each.owner is not None:
            refused[each.id] = f"it belonged to job {each.owner}, which ended with the head"
        elif each.deadline is not None and each.deadline <= now:
            refused[each.id] = "it waited for its places, and its deadline is over"
        elif each.parent != ROOT and each.parent not in {*there, *(a.id for a in again)}:
            refused[each.id] = f"{each.parent}, which it was inside of, is not there"
        else:
            again.append(each)
    return Restoration(again=tuple(again), refused=refused)
