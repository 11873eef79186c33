"""Site states and transitions: one table, and the transitions that time alone brings.

Signs of life are heartbeats, and bytes of a blob that cross the site's link: heartbeats may wait
behind them in queues.

A silent site is suspect first, since links flap, and lost when its grace is over. A lost site that
comes back waits out a stabilization window (`joining`) before it is ready again. An admin's wish
(cordoned, draining) outlasts all that. `left` is final: the name must join again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class SiteState(StrEnum):
    """What `fedpilot site list` shows."""

    JOINING = "joining"
    """In contact, and not yet for the whole stabilization window."""
    READY = "ready"
    CORDONED = "cordoned"
    """It keeps its work and gets nothing new."""
    DRAINING = "draining"
    """Like cordoned, and its work moves away."""
    SUSPECT = "suspect"
    """Silent for some heartbeats; its work goes on."""
    LOST = "lost"
    """Its work is done elsewhere, if it may move."""
    LEFT = "left"


class SiteEvent(StrEnum):
    """Events of a site."""

    HEARD = "heard"
    MOVED = "moved"
    """Bytes of a blob have crossed its link."""
    TROUBLED = "troubled"
    """Its agent reports that its Ray cluster cannot be used."""
    SILENT = "silent"
    GONE = "gone"
    """Silent for longer than the grace."""
    SETTLED = "settled"
    """In contact for the whole stabilization window."""
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    DRAINED = "drained"
    REMOVE = "remove"


class Wish(StrEnum):
    """What the admin wants of a site that is in contact."""

    OPEN = "open"
    CORDONED = "cordoned"
    DRAINING = "draining"


_S, _E = SiteState, SiteEvent
AS_WISHED = None
"""In the table: the state that the admin's wish names."""

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
"""A pair that is missing changes no state; an admin's event still changes the wish."""

_STATE_OF = {Wish.OPEN: _S.READY, Wish.CORDONED: _S.CORDONED, Wish.DRAINING: _S.DRAINING}
_WISH_OF = {
    _E.CORDON: Wish.CORDONED,
    _E.UNCORDON: Wish.OPEN,
    _E.DRAIN: Wish.DRAINING,
    _E.DRAINED: Wish.CORDONED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """A mediator's patience with sites."""

    heartbeat_s: float = 2.0
    """Between two heartbeats of an agent."""
    silent_after_s: float = 6.0
    """Without a sign of life, until a site is suspect."""
    grace_s: float = 15.0
    """From suspect to lost."""
    stabilization_s: float = 10.0
    """For which a site that was lost has to stay in contact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHealth:
    """A site's health. Times are seconds on the clock that `now` is read from."""

    state: SiteState
    since: float
    heard_at: float
    reason: str
    wish: Wish = Wish.OPEN
    was_lost: bool = False
    """Whether it has to wait out the window; a new site does not."""


def joined(now: float) -> SiteHealth:
    """A site that joins for the first time."""
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
    """The event that is due by time alone, and why."""
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
    """Whether to wait for the site's orders; otherwise they are done elsewhere."""
    return state not in (_S.LOST, _S.LEFT)
