"""Decides which sites a federation brings in, drains or gives up when their states change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from fedpilot.mediator.core.health import SiteState, takes_new_work, works


class SiteChange(StrEnum):
    """Changes to a federation's site."""

    BRING_IN = "bring_in"
    """Reserve, check and start it, and give it clients."""
    DRAIN = "drain"
    """Let it finish its work and move its clients elsewhere."""
    GIVE_UP = "give_up"
    """Move its clients elsewhere at once."""


def moves(
    states: Mapping[str, SiteState],
    there: Collection[str],
    *,
    among: Collection[str] = (),
    busy: Collection[str] = (),
    first: Collection[str] = (),
    room: int | None = None,
) -> dict[str, SiteChange]:
    """The changes due, by site.

    `there` are sites that hold a part of the gang, `among` those that may (empty: all), `busy`
    those with a change under way. At most `room` sites come in, `first` those that had a part.
    """
    found, ready = {}, []
    for site in sorted(states):
        state = states[site]
        if site in busy:
            continue
        if site in there:
            if not works(state):
                found[site] = SiteChange.GIVE_UP
            elif state is SiteState.DRAINING:
                found[site] = SiteChange.DRAIN
        elif takes_new_work(state) and (not among or site in among):
            ready.append(site)
    ready.sort(key=lambda site: site not in first)
    return found | dict.fromkeys(
        ready if room is None else ready[: max(0, room)], SiteChange.BRING_IN
    )


def passed_over(
    states: Mapping[str, SiteState], there: Collection[str], among: Collection[str]
) -> list[str]:
    """Sites that would take new work, in a run that lacks a site and may not use them."""
    if not among or set(among) <= set(there):
        return []
    return sorted(s for s, state in states.items() if takes_new_work(state) and s not in among)


def chosen(
    ready: Collection[str],
    count: int | None,
    required: Collection[str],
    before: Collection[str] = (),
) -> tuple[str, ...]:
    """The sites that a run begins with, up to `count`: required ones, then those that it had before
    an interruption, then others by name.
    """
    wanted = set(required)
    ordered = sorted(ready, key=lambda site: (site not in wanted, site not in before, site))
    return tuple(sorted(ordered[:count]))
