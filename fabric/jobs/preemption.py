"""What a job does when its virtual cluster gives up its places: a table of phases and events.

A command under notice is told to end, and killed when the notice is over. Its exit code does not
count from then on: scripts that save their work on SIGTERM end with 0 although they have not
finished. So the command runs again, whatever its code, once its virtual cluster has places again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from ..core.records import has_started
from .job_log import PREEMPTED


class JobPhase(StrEnum):
    """Where a job is."""

    WAITS = "waits"
    """Its command does not run: its virtual cluster has no places, or leaves them."""
    RUNS = "runs"
    LEAVES = "leaves"
    """Its command was told to end, since its virtual cluster loses its places."""
    ENDS = "ends"
    """Its command was told to end, since its virtual cluster has ended."""
    DONE = "done"
    """Its command has ended by itself."""
    PREEMPTED = "preempted"
    """Its command has ended, and does not run again."""
    LOST = "lost"
    """Its virtual cluster has ended."""


class JobEvent(StrEnum):
    """What a job learns about its virtual cluster, and about its command."""

    SILENT = "silent"
    """The manager does not answer."""
    QUEUED = "queued"
    """The virtual cluster has no places, or no longer those that the command began with."""
    NOTICED = "noticed"
    """It has to leave its places."""
    PLACED = "placed"
    """It has its places."""
    GONE = "gone"
    """It has ended."""
    EXITED = "exited"
    """The command has ended, and all that it started if it was told to end."""


TRANSITIONS: dict[JobPhase, dict[JobEvent, JobPhase]] = {
    JobPhase.WAITS: {
        JobEvent.SILENT: JobPhase.WAITS,
        JobEvent.QUEUED: JobPhase.WAITS,
        JobEvent.NOTICED: JobPhase.WAITS,
        JobEvent.PLACED: JobPhase.RUNS,
        JobEvent.GONE: JobPhase.LOST,
    },
    JobPhase.RUNS: {
        JobEvent.SILENT: JobPhase.RUNS,
        JobEvent.QUEUED: JobPhase.LEAVES,
        JobEvent.NOTICED: JobPhase.LEAVES,
        JobEvent.PLACED: JobPhase.RUNS,
        JobEvent.GONE: JobPhase.ENDS,
        JobEvent.EXITED: JobPhase.DONE,
    },
    JobPhase.LEAVES: {
        JobEvent.SILENT: JobPhase.LEAVES,
        JobEvent.QUEUED: JobPhase.LEAVES,
        JobEvent.NOTICED: JobPhase.LEAVES,
        JobEvent.PLACED: JobPhase.LEAVES,  # the notice was withdrawn, but the command ends anyway
        JobEvent.GONE: JobPhase.ENDS,
        JobEvent.EXITED: JobPhase.WAITS,
    },
    JobPhase.ENDS: {
        **dict.fromkeys(set(JobEvent) - {JobEvent.EXITED}, JobPhase.ENDS),
        JobEvent.EXITED: JobPhase.LOST,
    },
}
"""Phases that are not here are the last ones of a job."""


def after(phase: JobPhase, event: JobEvent, *, requeue: bool = True) -> JobPhase:
    """The next phase; without `requeue` a preempted command does not run again."""
    found = TRANSITIONS[phase][event]
    return (
        JobPhase.PREEMPTED
        if phase is JobPhase.LEAVES and found is JobPhase.WAITS and not requeue
        else found
    )


def event_of(document: Mapping[str, Any] | None, since: float | None = None) -> JobEvent:
    """What the document of a virtual cluster says; None: it has ended.

    `since` is when it got the places that the command began with; None if it has not begun.
    """
    if document is None:
        return JobEvent.GONE
    if not has_started(document["state"]) or since not in (None, since_of(document)):
        return JobEvent.QUEUED
    notice = document.get("leaves")
    leaves = notice is not None and notice["at"] is not None  # without a time nothing is stopped
    return JobEvent.NOTICED if leaves else JobEvent.PLACED


def since_of(document: Mapping[str, Any]) -> float:
    """When a virtual cluster got its places, in seconds since the epoch; 0 if that is unknown."""
    return float(document.get("since", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Why a virtual cluster leaves its places."""

    claimant: str = ""
    """The virtual cluster that gets them; empty if there is none."""
    rule: str = ""
    """The scheduler's rule."""
    reason: str = ""
    at: float | None = None
    """When it loses them, in seconds since the epoch; None if it has lost them."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """The cause in the document of a virtual cluster that must leave, or has left."""
        notice = document.get("leaves")
        told = notice or document.get("stopped") or {"reason": document.get("reason")}
        return cls(
            claimant=told.get("claimant") or "",
            rule=told.get("rule") or "",
            reason=told.get("reason") or "",
            at=float(notice["at"]) if notice else None,
        )

    @property
    def why(self) -> str:
        """The reason and the rule, after a colon; empty if neither is known."""
        rule = f"({self.rule})" if self.rule else ""
        told = " ".join(filter(None, (self.reason, rule)))
        return f": {told}" if told else ""

    def told(self, name: str, now: float) -> str:
        """What the job's log says of virtual cluster `name`."""
        to = f" to {self.claimant}" if self.claimant else ""
        if self.at is None:
            return f"virtual cluster {name} has lost its places{to}{self.why}"
        left_s = max(0.0, self.at - now)
        return f"virtual cluster {name} has to leave its places{to} in {left_s:.0f} s{self.why}"

    def __str__(self) -> str:
        by = f" by {self.claimant}" if self.claimant else ""
        return f"{PREEMPTED}{by}{self.why}"
