"""The records of the store. Times are epoch seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ...core.health import SiteState, Wish
from ...core.rules.roles import Role


class RunState(StrEnum):
    """What `fedpilot runs list` shows."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRecord:
    """A site that has joined at some time."""

    name: str
    wish: Wish
    state: SiteState
    since: float
    reason: str
    first_joined: float
    agent: str = ""
    version: str = ""
    data_json: str = ""
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run that was submitted. `ended_at`, `digest` and `reason` belong to its state."""

    id: str
    name: str
    owner: str
    config_yaml: str
    interactive: bool = False
    state: RunState = RunState.SUBMITTED
    restarts: int = 0
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    digest: str = ""
    reason: str = ""
    folder: str = ""
    shared: bool = False
    """Whether all users may read its results, not only its owner and admins."""
    priority_class: str = ""
    """Empty for the default."""
    ask_json: str = ""
    """What it will ask of its sites; empty if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event of a run or, with an empty `run`, of the federation."""

    number: int
    at: float
    run: str
    event_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An act of a user or site, or its refusal."""

    at: float
    who: str
    role: Role
    act: str
    what: str
    outcome: str
