"""Which sites a run takes in when it lacks one, and which it begins with after an interruption."""

from __future__ import annotations

import pytest

from fedpilot.federated.core.rounds.site_changes import SiteChange, chosen, moves, passed_over
from fedpilot.mediator.core.health import SiteState

READY, LOST, CORDONED = SiteState.READY, SiteState.LOST, SiteState.CORDONED
FOUR = {"bergen": READY, "oslo": READY, "paris": LOST, "tokyo": READY}
BEGAN = ("oslo", "paris", "tokyo")


def test_a_run_that_lacks_a_site_takes_another_that_is_ready() -> None:
    found = moves(FOUR, ["oslo", "tokyo"], first=BEGAN, room=1)
    assert found == {"bergen": SiteChange.BRING_IN}


def test_the_one_that_it_began_with_is_preferred() -> None:
    states = {**FOUR, "paris": READY}
    assert moves(states, ["oslo", "tokyo"], first=BEGAN, room=1) == {"paris": SiteChange.BRING_IN}
    assert moves(states, ["oslo", "tokyo"], first=BEGAN, room=2) == {
        "paris": SiteChange.BRING_IN,
        "bergen": SiteChange.BRING_IN,
    }


@pytest.mark.parametrize("room", [0, -1])
def test_a_run_that_lacks_none_takes_none(room: int) -> None:
    states = {**FOUR, "paris": READY}
    assert moves(states, ["bergen", "oslo", "tokyo"], first=BEGAN, room=room) == {}


def test_a_lost_site_is_given_up_whether_there_is_room_or_not() -> None:
    assert moves(FOUR, BEGAN, first=BEGAN, room=0) == {"paris": SiteChange.GIVE_UP}


def test_sites_that_may_not_take_part_are_named_where_some_are_lacking() -> None:
    assert passed_over(FOUR, ["oslo", "tokyo"], BEGAN) == ["bergen"]
    assert passed_over(FOUR, BEGAN, BEGAN) == []
    assert passed_over(FOUR, ["oslo"], ()) == [], "all may take part"
    assert passed_over({**FOUR, "bergen": CORDONED}, ["oslo"], BEGAN) == []


def test_a_run_begins_with_those_that_it_had_before() -> None:
    ready = ["bergen", "oslo", "paris", "tokyo"]
    assert chosen(ready, 3, []) == ("bergen", "oslo", "paris")
    assert chosen(ready, 3, [], BEGAN) == BEGAN
    assert chosen(ready, 3, ["bergen"], BEGAN) == ("bergen", "oslo", "paris")
    assert chosen(["bergen", "oslo", "tokyo"], 3, [], BEGAN) == ("bergen", "oslo", "tokyo")
    assert chosen(ready, None, [], BEGAN) == tuple(ready)
