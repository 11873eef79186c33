"""Every client is in exactly one answer, whatever sites do while they are asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.rounds.participation import (
    BelowQuorum,
    Rules,
    SiteRefused,
    TooFewSites,
)
from fedpilot.federated.core.user_code.user_errors import failure_of
from fedpilot.federated.federation.coordinator.gather import Part
from fedpilot.mediator import (
    Promise,
    ReservationRefused,
)
from gathering import EVERYBODY, WHOLE, Stepped, Stormy, World, members


def test_a_site_that_answers_with_what_cannot_be_is_done_without_for_good() -> None:
    world = World("abc")
    asking = Stepped(world, WHOLE, ["lie b", *["answer"] * 4])
    found = asking.answers(world.parts())
    told = [i for each in found.all for part in each.part.share for i in part]
    assert sorted(told) == list(range(EVERYBODY))
    assert "b" not in {each.part.site for each in found.all}
    assert world.mediator.membership.sites == ("a", "c")
    assert "a lie" in world.mediator.membership.distrusted["b"]
    with pytest.raises(ReservationRefused, match="a lie"):
        world.mediator.readmit("b").result(1)


def test_where_every_site_has_spent_its_runners_nobody_is_waited_for() -> None:
    world = World("ab")
    asking = Stepped(world, WHOLE, ["spend a", "spend b"])
    with pytest.raises(TooFewSites, match=r"site b is gone: it was killed by SIGKILL.*resuming"):
        asking.answers(world.parts())
    assert world.now == 0.0


def test_clients_of_a_site_that_has_spent_its_runners_are_not_waited_for() -> None:
    world = World("abc", pinned={"b": [range(3)]})
    asking = Stepped(world, WHOLE, ["spend b", *["answer"] * 4])
    with pytest.raises(SiteRefused, match="site b: it was killed by SIGKILL"):
        asking.answers(world.parts())
    assert world.now == 0.0
    world = World("abc", pinned={"b": [range(3)]})
    rules = Rules(whole=EVERYBODY, enough=EVERYBODY, least=EVERYBODY // 2)
    found = Stepped(world, rules, ["spend b", *["answer"] * 4]).answers(world.parts())
    assert [part.site for part in found.missing] == ["b"]
    assert "killed by SIGKILL" in found.reason


@given(
    seed=st.integers(0, 2**32),
    pinned=st.dictionaries(st.sampled_from("abc"), st.just(None), max_size=3),
)
def test_no_client_is_counted_twice_or_missing(seed: int, pinned: dict[str, None]) -> None:
    stays = {site: [range(5 * place, 5 * place + 4)] for place, site in enumerate(pinned)}
    world = World(pinned=stays)
    answers = Stormy(world, WHOLE, seed).answers(world.parts())
    counted = members([each.part.share for each in answers.all])
    assert counted == Counter(range(EVERYBODY))
    assert not answers.missing
    for each in answers.all:
        for site, ranges in stays.items():
            if each.part.site != site:
                assert not set(ranges[0]) & set(members([each.part.share]))


def ask(world: World, rules: Rules, *script: str) -> Counter[int]:
    answers = Stepped(world, rules, script).answers(world.parts())
    return members([each.part.share for each in answers.all])


def test_a_lost_sites_clients_go_to_the_others_by_their_size() -> None:
    world = World()
    ask(world, WHOLE, "lose c", "answer", "answer", "answer", "answer")
    assert [(site, sum(map(len, share))) for site, share in world.sent] == [
        ("a", 7), ("b", 13), ("c", 20), ("a", 7), ("b", 13)
    ]  # fmt: skip
    assert world.mediator.membership.sites == ("a", "b")
    assert world.mediator.membership.assignment.explain(39).endswith(
        "was at site c until round 3, which was lost: a storm"
    )
    assert world.changes


def test_a_site_without_clients_is_not_asked() -> None:
    world = World("ab")
    world.mediator.membership.remove("b", "a storm")
    world.mediator.membership.restore("b", Promise("b", 2))
    assert ask(world, WHOLE, "answer") == Counter(range(EVERYBODY))
    assert [site for site, _ in world.sent] == ["a"]


def test_clients_wait_while_the_only_site_left_is_to_get_nothing_new() -> None:
    world = World("ab")
    world.mediator.membership.leave_alone(["b"])
    script = ["lose a", "answer", "open", "answer"]
    assert ask(world, WHOLE, *script) == Counter(range(EVERYBODY))
    assert [site for site, _ in world.sent] == ["a", "b", "b"]


def test_a_site_that_is_lost_during_the_redo_is_replaced_too() -> None:
    world = World()
    script = ["lose c", "lose b", *["answer"] * 4]
    assert ask(world, WHOLE, *script) == Counter(range(EVERYBODY))
    assert world.mediator.membership.sites == ("a",)


def test_clients_that_may_not_move_wait_for_their_site() -> None:
    world = World("ab", {"b": [range(10)]})
    script = ["lose b", "answer", "answer", "return b", "answer"]
    assert ask(world, WHOLE, *script) == Counter(range(EVERYBODY))
    assert world.sent[-1] == ("b", (range(10),))


def test_without_replacement_everybody_waits() -> None:
    world = World("ab")
    parts = [
        Part(site=s, stays=share)
        for s, share in world.mediator.membership.assignment.shares.items()
    ]
    asking = Stepped(world, WHOLE, ["lose b", "answer", "return b", "answer"])
    assert members([each.part.share for each in asking.answers(parts).all]) == Counter(
        range(EVERYBODY)
    )
    assert world.sent[-1] == ("b", parts[1].share)


@pytest.mark.parametrize(
    ("pinned", "script", "words"),
    [
        pytest.param(None, ["lose a", "lose b", "time"], "at least 1 of 2 sites", id="all are"),
        pytest.param(
            {"b": [range(3)]}, ["lose b", "answer", "answer", "time"], "site b", id="its data is"
        ),
    ],
)
def test_a_site_that_does_not_return_in_time_ends_the_round(
    pinned: dict[str, list[range]] | None, script: list[str], words: str
) -> None:
    world = World("ab", pinned)
    with pytest.raises(TooFewSites, match=rf"round 3: .*{words}.* 60 s"):
        ask(world, WHOLE, *script)


def test_a_required_site_is_waited_for_even_if_others_could_do_its_work() -> None:
    world = World("ab", required="b")
    with pytest.raises(TooFewSites, match="site b is required"):
        ask(world, WHOLE, "lose b", "answer", "time")
    world = World("ab", required="b")
    script = ["lose b", "answer", "return b", "answer", "answer"]
    assert ask(world, WHOLE, *script) == Counter(range(EVERYBODY))


HALF = Rules(whole=EVERYBODY, enough=EVERYBODY, least=20)


@pytest.mark.parametrize(
    ("stays", "script", "counted"),
    [
        pytest.param(10, ["lose b", "answer", "answer"], 30, id="with enough it goes on at once"),
        pytest.param(30, ["lose b", "answer", "answer", "time"], 0, id="with too few it waits"),
        pytest.param(
            30, ["lose b", "answer", "answer", "return b", "answer"], 40, id="and may come back"
        ),
    ],
)
def test_a_quorum_does_without_some(stays: int, script: list[str], counted: int) -> None:
    world = World("ab", {"b": [range(stays)]})
    if counted:
        assert ask(world, HALF, *script).total() == counted
    else:
        with pytest.raises(BelowQuorum, match="10 clients count and at least 20"):
            ask(world, HALF, *script)


TIMED = Rules(whole=EVERYBODY, enough=EVERYBODY, least=10, deadline_s=9.0, closing_s=2.0)


def test_a_deadline_closes_the_orders_that_are_open() -> None:
    world = World("ab")
    asking = Stepped(world, TIMED, ["answer", "time", "answer"])
    answers = asking.answers(world.parts())
    assert world.now == 9.0
    assert world.closing == [("b", (range(13, 40),))]
    assert (len(answers.all), answers.missing) == (2, [])
    assert answers.reason == "the deadline of 9 s has passed"


def test_a_site_that_does_not_close_in_time_is_missing() -> None:
    world = World("ab")
    answers = Stepped(world, TIMED, ["answer", "time", "time"]).answers(world.parts())
    assert world.now == 11.0
    assert [part.site for part in answers.missing] == ["b"]
    (late,) = answers.late
    assert late.part == answers.missing[0]
    world.answer()
    assert late.answer.result(0).kind == "answer", "it may still come"


def test_a_site_that_is_lost_while_it_closes_is_not_replaced() -> None:
    world = World("ab")
    answers = Stepped(world, TIMED, ["answer", "time", "lose b"]).answers(world.parts())
    assert [part.site for part in answers.missing] == ["b"]
    assert len(world.sent) == 2


def test_enough_clients_close_the_round() -> None:
    world = World("ab")
    rules = Rules(whole=EVERYBODY, enough=30, least=30)
    script = ["answer", "progress b 16", "progress b 17", "answer"]
    answers = Stepped(world, rules, script).answers(world.parts())
    assert world.closing == [("b", (range(13, 40),))]
    assert answers.reason == "30 clients are done"


@pytest.mark.parametrize(
    ("done", "progress"),
    [
        pytest.param(10**9, {}, id="a liar's are its share at most"),
        pytest.param(30, {"done": "all"}, id="a word"),
        pytest.param(30, {"done": None}, id="nothing"),
        pytest.param(30, {"of": 3}, id="more than there are"),
        pytest.param(30, {"part": []}, id="a list for a part"),
        pytest.param(30, {"round": 4}, id="of another round"),
    ],
)
def test_whoever_says_too_much_of_its_progress_closes_nothing(
    done: int, progress: dict[str, Any]
) -> None:
    world = World("abc")  # a has 7 clients, b 13 and c 20
    rules = Rules(whole=EVERYBODY, enough=30, least=30)
    asking = Stepped(world, rules, ["answer", f"progress b {done}", "answer", "answer"])
    asking.progress = progress
    answers = asking.answers(world.parts())
    assert (answers.reason, world.closing) == ("", [])


@pytest.mark.parametrize("word", ["lie", "garble"])
def test_what_cannot_be_read_is_as_good_as_a_lie(word: str) -> None:
    world = World("abc")
    asking = Stepped(world, WHOLE, [f"{word} b", *["answer"] * 4])
    asking.answers(world.parts())
    assert world.mediator.membership.sites == ("a", "c")
    assert list(world.mediator.membership.distrusted) == ["b"]


def test_what_the_work_raised_is_raised() -> None:
    class Failing(Stepped):
        def happen(self, seconds: float | None) -> None:
            self.world.pending.pop(0)[0].set_exception(ValueError("no good"))

    world = World()
    with pytest.raises(ValueError, match="no good") as caught:
        Failing(world, WHOLE).answers(world.parts())
    assert failure_of(caught.value) == "ValueError: no good, at site a"
