"""Decides which virtual clusters a new head lost, from a record that outlives it (decision 38)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..cluster_state import Entry
from ..records import ROOT, ClusterId

TOLD_S = 86400.0
"""How long lost virtual clusters of jobs, which cannot be restored, are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A virtual cluster, with all that is needed to request it again."""

    id: ClusterId
    parent: ClusterId = ROOT
    spec: Mapping[str, Any] = field(default_factory=dict, hash=False)
    owner: str | None = None
    """The job that it belonged to; without a job it is detached, and can be restored."""
    user: str = ""
    priority: int = 0
    project: str = ""
    pool: str = ""
    priority_class: str = ""
    preemptible: bool | None = None
    deadline: float | None = None
    """When it stops waiting; None if it had its places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """A head of a Ray cluster, its virtual clusters, and those lost with earlier heads."""

    session: str
    began: float
    """Seconds since the epoch."""
    clusters: tuple[Remembered, ...] = ()
    gone: tuple[Remembered, ...] = ()
    """Virtual clusters of earlier heads, parents before their children."""

    @property
    def empty(self) -> bool:
        """Whether the next head needs nothing from this record."""
        return not self.clusters and not self.gone


def remembered(entries: Iterable[Entry]) -> tuple[Remembered, ...]:
    """Records of the entries, except placement groups that users requested."""
    return tuple(
        Remembered(
            id=entry.request.id,
            parent=entry.request.parent,
            spec=entry.spec,
            owner=entry.owner,
            user=entry.user,
            priority=entry.request.priority,
            project=entry.request.project,
            pool=entry.request.pool,
            priority_class=entry.request.priority_class,
            preemptible=entry.request.preemptible,
            deadline=entry.request.deadline if entry.waiting else None,
        )
        for entry in entries
        if entry.group is None
    )


def succeed(found: HeadRecord | None, session: str, began: float) -> HeadRecord:
    """The record for this head, given the stored one: its own, an earlier head's, or none."""
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
    """The record with these virtual clusters; those and the dropped ones are no longer `gone`."""
    there = {each.id for each in clusters}.union(drop)
    return replace(record, clusters=clusters, gone=gone_of(record, there, now))


def gone_of(record: HeadRecord, there: Collection[str], now: float) -> tuple[Remembered, ...]:
    """The lost virtual clusters not in `there`; those of jobs only until `TOLD_S` is over."""
    told = now < record.began + TOLD_S
    return tuple(
        each for each in record.gone if each.id not in there and (told or each.owner is None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """The virtual clusters to request again, in order, and why the others are refused."""

    again: tuple[Remembered, ...]
    refused: Mapping[str, str]


def restorable(
    gone: Sequence[Remembered], there: Collection[str], names: Collection[str], now: float
) -> Restoration:
    """Decide which of the named lost virtual clusters can be restored; no names: all detached."""
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
