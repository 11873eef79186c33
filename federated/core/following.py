"""What a federation does about its sites when they change: who is brought in, drained, given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from fedpilot.mediator.core.health import SiteState, takes_new_work, works


class Move(StrEnum):
    """What to do about one site."""

    BRING_IN = "bring_in"
    """It is reserved, checked and started, and given clients."""
    DRAIN = "drain"
    """It finishes what it is at work on; its clients go elsewhere."""
    GIVE_UP = "give_up"
    """Its clients go elsewhere at once."""


def moves(
    states: Mapping[str, SiteState],
    there: Collection[str],
    *,
    among: Collection[str] = (),
    busy: Collection[str] = (),
) -> dict[str, Move]:
    """What to do, by site, for those that are not as they should be.

    `there` are the sites that hold a part of the gang, `among` those that may (empty: all), `busy`
    those that something is being done about.
    """
    found = {}
    for site in sorted(states):
        state = states[site]
        if site in busy:
            continue
        if site in there:
            if not works(state):
                found[site] = Move.GIVE_UP
            elif state is SiteState.DRAINING:
                found[site] = Move.DRAIN
        elif takes_new_work(state) and (not among or site in among):
            found[site] = Move.BRING_IN
    return found


def chosen(ready: Collection[str], count: int | None, required: Collection[str]) -> tuple[str, ...]:
    """The sites that a run begins with: the required ones, and others by name up to a count."""
    ordered = [*sorted(set(required) & set(ready)), *sorted(set(ready) - set(required))]
    return tuple(sorted(ordered[:count]))
