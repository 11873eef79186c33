"""Whether a site can be worked with: one table of states and events, and what time alone brings.

A sign of life is a heartbeat, or bytes of a blob that cross the site's link: whoever transfers is
there, however long its heartbeats wait in queues on the way.

A site that falls silent is suspect first, since links flap, and lost when its grace is over. One
that comes back from being lost waits out a stabilization window (`joining`) before it is ready
again. What an admin wishes of it (cordoned, draining) is remembered through all that. `left` is
final: the name must join again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class SiteState(StrEnum):
    """What `fedpilot site list` shows."""

    JOINING = "joining"
    """It is in contact and has to stay so for a while."""
    READY = "ready"
    CORDONED = "cordoned"
    """It keeps what it has and gets nothing new."""
    DRAINING = "draining"
    """Like cordoned, and its work is moved away."""
    SUSPECT = "suspect"
    """It was not heard of for some heartbeats; its work goes on."""
    LOST = "lost"
    """Its work is done elsewhere, where that may be."""
    LEFT = "left"


class SiteEvent(StrEnum):
    """What can happen to a site."""

    HEARD = "heard"
    MOVED = "moved"
    """Bytes of a blob have crossed its link."""
    TROUBLED = "troubled"
    """Its agent says that its Ray cluster cannot be worked with."""
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
"""What is not in it changes nothing but, for an admin's event, the wish."""

_STATE_OF = {Wish.OPEN: _S.READY, Wish.CORDONED: _S.CORDONED, Wish.DRAINING: _S.DRAINING}
_WISH_OF = {
    _E.CORDON: Wish.CORDONED,
    _E.UNCORDON: Wish.OPEN,
    _E.DRAIN: Wish.DRAINING,
    _E.DRAINED: Wish.CORDONED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """How patient a mediator is."""

    heartbeat_s: float = 2.0
    """How often an agent speaks."""
    silent_after_s: float = 6.0
    """Then a site is suspect."""
    grace_s: float = 15.0
    """And so much later it is lost."""
    stabilization_s: float = 10.0
    """How long one that was lost has to stay in contact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHealth:
    """What is known of a site's health. Times are seconds of one clock, which `now` is of too."""

    state: SiteState
    since: float
    heard_at: float
    reason: str
    wish: Wish = Wish.OPEN
    was_lost: bool = False
    """Whether it has to wait out the window; a new site has not."""


def joined(now: float) -> SiteHealth:
    """A site that has just come for the first time."""
    return SiteHealth(state=_S.JOINING, since=now, heard_at=now, reason="it has joined")


def after(standing: SiteHealth, event: SiteEvent, now: float, reason: str) -> SiteHealth:
    """The standing once something has happened; `since` and `reason` change with the state."""
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
        state = _S.JOINING  # its window had not passed; it begins anew
    if state is standing.state:
        return kept
    lost = state is _S.LOST or (standing.was_lost and state in (_S.JOINING, _S.SUSPECT))
    return replace(kept, state=state, since=now, reason=reason, was_lost=lost)


def due(standing: SiteHealth, now: float, settings: HealthSettings) -> tuple[SiteEvent, str] | None:
    """What time alone brings about now, and why."""
    silent = now - standing.heard_at
    match standing.state:
        case _S.LOST | _S.LEFT:
            return None
        case _S.SUSPECT:
            if silent >= settings.silent_after_s + settings.grace_s:
                return _E.GONE, f"nothing was heard of it for {silent:.0f} s"
            return None
    if silent >= settings.silent_after_s:
        return _E.SILENT, f"nothing was heard of it for {silent:.0f} s"
    if standing.state is _S.JOINING:
        window = settings.stabilization_s if standing.was_lost else 0.0
        if now - standing.since >= window:
            return _E.SETTLED, "it has joined" if not window else f"in contact for {window:g} s"
    return None


def takes_new_work(state: SiteState) -> bool:
    """Whether a gang may be reserved there, and clients be given to it."""
    return state is _S.READY


def works(state: SiteState) -> bool:
    """Whether the orders it has are waited for; otherwise they are done elsewhere."""
    return state not in (_S.LOST, _S.LEFT)
