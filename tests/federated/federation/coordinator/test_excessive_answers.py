"""A site that adds too much is left out, and the round goes on or ends."""

from __future__ import annotations

from collections import Counter

import pytest

from fedpilot.federated.core.rounds.participation import (
    Rules,
    SiteRefused,
)
from gathering import EVERYBODY, WHOLE, Stepped, World, members

# -- answers that are too much --------------------------------------------------------------------

SOME = Rules(whole=EVERYBODY, enough=EVERYBODY, least=4)


@pytest.mark.parametrize("how", ["at once", "beside the others"])
def test_a_site_that_adds_too_much_is_left_out_and_stays(how: str) -> None:
    world = World("abc")
    script = ["exceed b", *["answer"] * 4]
    if how == "beside the others":
        world.excessive = ("b",)
        script = ["answer"] * 5
    found = Stepped(world, WHOLE, script).answers(world.parts())
    assert members([each.part.share for each in found.all]) == Counter(range(EVERYBODY))
    assert {each.part.site for each in found.all} == {"a", "c"}
    assert world.mediator.membership.sites == ("a", "b", "c")
    assert [site for site, _ in world.refusals] == ["b"]
    assert not world.mediator.membership.distrusted


def test_its_clients_that_may_not_move_are_missing_at_once() -> None:
    world = World("abc", {"b": [range(5)]})
    found = Stepped(world, SOME, ["exceed b", *["answer"] * 4]).answers(world.parts())
    assert members([part.share for part in found.missing]) == Counter(range(5))
    assert found.reason == "site b: it is too much"
    assert world.now == 0.0


@pytest.mark.parametrize("word", ["exceed", "lie", "garble"])
def test_where_they_have_to_count_nobody_waits_for_them(word: str) -> None:
    world = World("abc", {"b": [range(5)]})
    with pytest.raises(SiteRefused, match="round 3: site b: "):
        Stepped(world, WHOLE, [f"{word} b"]).answers(world.parts())
    assert world.now == 0.0


def test_who_was_not_believed_before_is_not_waited_for_either() -> None:
    world = World("abc", {"b": [range(5)]})
    world.mediator.membership.distrust("b", "it lied in round 2")
    found = Stepped(world, SOME, ["answer"] * 2).answers(world.parts())
    assert found.reason == "site b: it lied in round 2"


def test_where_nobody_else_is_left_it_ends() -> None:
    world = World("a")
    with pytest.raises(SiteRefused, match="site a: it is too much"):
        Stepped(world, WHOLE, ["exceed a"]).answers(world.parts())
