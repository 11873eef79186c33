"""A site's states: every pair of state and event is decided, and time brings what it should."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator.core.health import (
    TABLE,
    HealthSettings,
    SiteEvent,
    SiteHealth,
    SiteState,
    Wish,
    after,
    due,
    joined,
    takes_new_work,
    works,
)

S, E = SiteState, SiteEvent
SETTINGS = HealthSettings(heartbeat_s=2, silent_after_s=6, grace_s=15, stabilization_s=10)


def standing(state: SiteState, wish: Wish = Wish.OPEN, *, was_lost: bool = False) -> SiteHealth:
    return SiteHealth(state=state, since=0, heard_at=0, reason="", wish=wish, was_lost=was_lost)


def told(start: SiteHealth, *events: SiteEvent, now: float = 1.0) -> SiteHealth:
    for event in events:
        start = after(start, event, now, str(event))
    return start


@pytest.mark.parametrize("state", SiteState)
@pytest.mark.parametrize("event", SiteEvent)
def test_every_pair_is_decided(state: SiteState, event: SiteEvent) -> None:
    before = standing(state)
    found = after(before, event, 7.0, "why")
    if event not in TABLE[state]:
        assert found.state is state
    if found.state is state:
        assert (found.since, found.reason) == (0, "")
    else:
        assert (found.since, found.reason) == (7.0, "why")
    alive = event is E.HEARD or (event is E.MOVED and works(state))
    assert found.heard_at == (7.0 if alive else 0)


@pytest.mark.parametrize(
    ("before", "events", "state"),
    [
        pytest.param(joined(0), [E.SETTLED], S.READY, id="a new site becomes ready"),
        pytest.param(standing(S.READY), [E.SILENT], S.SUSPECT, id="silence is suspect first"),
        pytest.param(standing(S.READY), [E.SILENT, E.HEARD], S.READY, id="a link that flaps"),
        pytest.param(standing(S.READY), [E.SILENT, E.GONE], S.LOST, id="its grace is over"),
        pytest.param(standing(S.READY), [E.TROUBLED], S.LOST, id="its Ray is gone"),
        pytest.param(standing(S.LOST), [E.HEARD], S.JOINING, id="it comes back, to wait"),
        pytest.param(standing(S.READY), [E.SILENT, E.MOVED], S.READY, id="who transfers is there"),
        pytest.param(
            standing(S.SUSPECT, was_lost=True), [E.MOVED], S.JOINING,
            id="who transfers in its window begins it anew",
        ),
        pytest.param(
            standing(S.LOST), [E.MOVED], S.LOST, id="the rest of a transfer brings nobody back"
        ),
        pytest.param(
            standing(S.CORDONED, Wish.CORDONED), [E.SILENT, E.GONE, E.HEARD, E.SETTLED],
            S.CORDONED, id="a cordoned site is so after being lost",
        ),
        pytest.param(
            standing(S.LOST), [E.CORDON, E.HEARD, E.SETTLED], S.CORDONED,
            id="cordoned while it was lost",
        ),
        pytest.param(
            standing(S.DRAINING, Wish.DRAINING), [E.DRAINED], S.CORDONED,
            id="drained, it stays closed",
        ),
        pytest.param(
            standing(S.DRAINING, Wish.DRAINING), [E.SILENT, E.HEARD], S.DRAINING,
            id="a flap does not end a drain",
        ),
        pytest.param(
            standing(S.CORDONED, Wish.CORDONED), [E.UNCORDON], S.READY, id="opened again"
        ),
        pytest.param(
            standing(S.CORDONED, Wish.CORDONED), [E.REMOVE, E.HEARD, E.SETTLED], S.READY,
            id="who joins anew after being removed starts anew",
        ),
        pytest.param(standing(S.LEFT), [E.SILENT, E.GONE, E.CORDON], S.LEFT, id="left is left"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_site(
    before: SiteHealth, events: list[SiteEvent], state: SiteState
) -> None:
    assert told(before, *events).state is state


@pytest.mark.parametrize(
    ("before", "now", "event"),
    [
        pytest.param(joined(0), 0, E.SETTLED, id="a new site waits for nothing"),
        pytest.param(standing(S.READY), 5.9, None, id="some heartbeats may be late"),
        pytest.param(standing(S.READY), 6.0, E.SILENT, id="then it is suspect"),
        pytest.param(standing(S.CORDONED), 6.0, E.SILENT, id="a cordoned one as well"),
        pytest.param(standing(S.SUSPECT), 20.9, None, id="within its grace"),
        pytest.param(standing(S.SUSPECT), 21.0, E.GONE, id="after its grace"),
        pytest.param(standing(S.LOST), 1e6, None, id="lost stays lost by itself"),
        pytest.param(standing(S.LEFT), 1e6, None, id="left stays left"),
        pytest.param(
            replace(standing(S.JOINING, was_lost=True), heard_at=9), 9.9, None,
            id="one that was lost waits out the window",
        ),
        pytest.param(
            replace(standing(S.JOINING, was_lost=True), heard_at=9), 10, E.SETTLED,
            id="and is ready after it",
        ),
        pytest.param(
            standing(S.JOINING, was_lost=True), 10, E.SILENT,
            id="silence comes before the window's end",
        ),
    ],
)  # fmt: skip
def test_what_time_brings(before: SiteHealth, now: float, event: SiteEvent | None) -> None:
    found = due(before, now, SETTINGS)
    assert (found[0] if found else None) is event


def test_a_flap_within_the_window_does_not_shorten_it() -> None:
    lost = told(standing(S.READY), E.TROUBLED)
    back = told(lost, E.HEARD, now=100)
    flapped = told(told(back, E.SILENT, now=106), E.HEARD, now=107)
    assert flapped.state is S.JOINING
    assert due(replace(flapped, heard_at=116), 116, SETTINGS) is None
    assert due(replace(flapped, heard_at=117), 117, SETTINGS) is not None


@given(st.lists(st.tuples(st.sampled_from(SiteEvent), st.floats(0, 30))))
def test_whatever_happens_only_a_site_in_contact_is_ready(
    history: list[tuple[SiteEvent, float]],
) -> None:
    now, site = 0.0, joined(0)
    for event, later in history:
        now += later
        while (by_itself := due(site, now, SETTINGS)) is not None:
            site = after(site, by_itself[0], now, by_itself[1])
        assert not takes_new_work(site.state) or now - site.heard_at < SETTINGS.silent_after_s
        assert works(site.state) or site.state in (S.LOST, S.LEFT)
        site = after(site, event, now, "")
