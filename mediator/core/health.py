"""Site states and transitions: one table, and the transitions caused by time alone.

Heartbeats are signs of life, and so are bytes of a blob, which may delay heartbeats.

A silent site is first suspect, since links flap, and lost after its grace period. A lost site that
returns is `joining` for a stabilization window before it is ready. What the admin set (cordoned,
draining) survives these transitions. A site that has `left` must join again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class SiteState(StrEnum):
    """What `fedpilot site list` shows."""

    JOINING = "joining"
    """In contact, but not yet for the whole stabilization window."""
    READY = "ready"
    CORDONED = "cordoned"
    """Keeps its work and gets no new work."""
    DRAINING = "draining"
    """Like cordoned, and its work moves to other sites."""
    SUSPECT = "suspect"
    """Silent for a few heartbeats; its work goes on."""
    LOST = "lost"
    """Its work moves to other sites, if it may."""
    LEFT = "left"


class SiteEvent(StrEnum):
    """Events of a site."""

    HEARD = "heard"
    MOVED = "moved"
    """Bytes of a blob crossed its link."""
    TROUBLED = "troubled"
    """Its agent reports that its Ray cluster cannot be used."""
    SILENT = "silent"
    GONE = "gone"
    """Silent for longer than the grace period."""
    SETTLED = "settled"
    """In contact for the whole stabilization window."""
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    DRAINED = "drained"
    REMOVE = "remove"


class Wish(StrEnum):
    """What the admin has set for a site."""

    OPEN = "open"
    CORDONED = "cordoned"
    DRAINING = "draining"


_S, _E = SiteState, SiteEvent
AS_WISHED = None
"""In the table: the state that the admin has set."""

_IN_CONTACT: dict[SiteEvent, SiteState | None] = {
    _E.TROUBLED: _S.LOST,
    _E.SILENT: _S.SUSPECT,
    _E.REMOVE: _S.LEFT,
}
_WISHES: dict[SiteEvent, SiteState | None] = {
    _E.CORDON: _S.CORDONED,
    _E.UNCORDON: _S.READY,
    _E.DRAIN: _S.DRAINING,
}
TABLE: dict[SiteState, dict[SiteEvent, SiteState | None]] = {
    _S.JOINING: {**_IN_CONTACT, _E.SETTLED: AS_WISHED},
    _S.READY: {**_IN_CONTACT, **_WISHES},
    _S.CORDONED: {**_IN_CONTACT, **_WISHES},
    _S.DRAINING: {**_IN_CONTACT, **_WISHES, _E.DRAINED: _S.CORDONED},
    _S.SUSPECT: {
        _E.HEARD: AS_WISHED,
        _E.MOVED: AS_WISHED,
        _E.TROUBLED: _S.LOST,
        _E.GONE: _S.LOST,
        _E.REMOVE: _S.LEFT,
    },
    _S.LOST: {_E.HEARD: _S.JOINING, _E.REMOVE: _S.LEFT},
    _S.LEFT: {_E.HEARD: _S.JOINING},
}
"""A missing pair leaves the state as it is; an admin's event still changes the wish."""

_STATE_OF = {Wish.OPEN: _S.READY, Wish.CORDONED: _S.CORDONED, Wish.DRAINING: _S.DRAINING}
_WISH_OF = {
    _E.CORDON: Wish.CORDONED,
    _E.UNCORDON: Wish.OPEN,
    _E.DRAIN: Wish.DRAINING,
    _E.DRAINED: Wish.CORDONED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """How long a mediator waits for sites. Seconds."""

    heartbeat_s: float = 2.0
    """Between two heartbeats."""
    silent_after_s: float = 6.0
    """How long a site may be silent before it is suspect."""
    grace_s: float = 15.0
    """From suspect to lost."""
    stabilization_s: float = 10.0
    """How long a returned site must stay in contact before it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHealth:
    """A site's health. Times are seconds on the clock of `now`."""

    state: SiteState
    since: float
    heard_at: float
    reason: str
    wish: Wish = Wish.OPEN
    was_lost: bool = False
    """Whether the stabilization window applies; it does not to a new site."""


def joined(now: float) -> SiteHealth:
    """The health of a site that joins for the first time."""
    return SiteHealth(state=_S.JOINING, since=now, heard_at=now, reason="it has joined")


def after(standing: SiteHealth, event: SiteEvent, now: float, reason: str) -> SiteHealth:
    """The health after an event; `since` and `reason` change with the state."""
    wish = _WISH_OF.get(event, standing.wish)
    if standing.state is _S.LEFT and event is _E.HEARD:
        wish = Wish.OPEN
    alive = event is _E.HEARD or (event is _E.MOVED and works(standing.state))
    heard_at = now if alive else standing.heard_at
    kept = replace(standing, wish=wish, heard_at=heard_at)
    if event not in TABLE[standing.state]:
        return kept
    to = TABLE[standing.state][event]
    state = _STATE_OF[wish] if to is AS_WISHED else to
    if standing.state is _S.SUSPECT and alive and standing.was_lost:
        state = _S.JOINING  # its window had not passed, and begins again
    if state is standing.state:
        return kept
    lost = state is _S.LOST or (standing.was_lost and state in (_S.JOINING, _S.SUSPECT))
    return replace(kept, state=state, since=now, reason=reason, was_lost=lost)


def due(standing: SiteHealth, now: float, settings: HealthSettings) -> tuple[SiteEvent, str] | None:
    """The event that is due by time alone, and its reason."""
    if not works(standing.state):
        return None
    silent, suspect = now - standing.heard_at, standing.state is _S.SUSPECT
    if silent >= settings.silent_after_s + (settings.grace_s if suspect else 0.0):
        event = _E.GONE if suspect else _E.SILENT
        return event, f"nothing was heard of it for {silent:.0f} s"
    if standing.state is _S.JOINING:
        window = settings.stabilization_s if standing.was_lost else 0.0
        if now - standing.since >= window:
            return _E.SETTLED, "it has joined" if not window else f"in contact for {window:g} s"
    return None


def takes_new_work(state: SiteState) -> bool:
    """Whether the site may get gangs and clients."""
    return state is _S.READY


def works(state: SiteState) -> bool:
    """Whether the site still executes its orders; otherwise they move to other sites."""
    return state not in (_S.LOST, _S.LEFT)
