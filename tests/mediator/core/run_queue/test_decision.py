"""Which of the waiting runs begin, in which order, and what the others are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpilot.fabric.core.resources import Resources
from fedpilot.mediator.core.run_queue import (
    Begin,
    QueueDecision,
    RunAsk,
    RunAtWork,
    RunHolder,
    RunQueueSettings,
    SiteRoom,
    WaitingRun,
    decide,
)

TRAIN, BUILD = 50, 100
TWO = Resources.of({"CPU": 2})
ASK = RunAsk(vnode={"CPU": 1.0}, workers=2)


def site(name: str, total: Resources = TWO, **facts: Any) -> SiteRoom:
    return SiteRoom(name=name, total=total, **facts)


ABC = (site("a"), site("b"), site("c"))


def waits(run: str, user: str = "ann", at: float = 0.0, **facts: Any) -> WaitingRun:
    given: dict[str, Any] = {"priority": TRAIN, "ask": ASK, **facts}
    return WaitingRun(run=run, user=user, submitted_at=at, **given)


def works(run: str, user: str = "ann", sites: str = "abc", **facts: Any) -> RunAtWork:
    given: dict[str, Any] = {"ask": ASK, **facts}
    return RunAtWork(run=run, user=user, sites=frozenset(sites), **given)


def decided(
    waiting: list[WaitingRun],
    at_work: tuple[RunAtWork, ...] = (),
    sites: tuple[SiteRoom, ...] = ABC,
    now: float = 100.0,
    **settings: Any,
) -> QueueDecision:
    return decide(waiting, at_work, sites, RunQueueSettings(**settings), now)


def line(found: QueueDecision) -> list[str]:
    assert [each.place for each in found.waits] == list(range(1, len(found.waits) + 1))
    return [each.run for each in found.waits]


@pytest.mark.parametrize(
    ("waiting", "at_work", "expected"),
    [
        pytest.param(
            [waits("young", at=2.0), waits("old", at=1.0)], (), ["old", "young"],
            id="of one user, the older run first",
        ),
        pytest.param(
            [waits("old", at=1.0), waits("urgent", at=2.0, priority=BUILD)], (), ["urgent", "old"],
            id="a higher class comes before age",
        ),
        pytest.param(
            [waits("a1", at=1), waits("a2", at=2), waits("b1", "bob", 3), waits("b2", "bob", 4)],
            (), ["a1", "b1", "a2", "b2"],
            id="users take turns",
        ),
        pytest.param(
            [waits("a1", at=1.0), waits("b1", "bob", 2.0)], (works("a0", sites=""),), ["b1", "a1"],
            id="a run at work is a turn taken",
        ),
        pytest.param(
            [waits("b", at=1.0), waits("a", at=1.0)], (), ["a", "b"],
            id="equal runs go by their ids",
        ),
        pytest.param(
            [waits("a1", at=-600.0), waits("b1", "bob", 2.0)],
            (works("a0", sites=""), works("a00", sites="")), ["a1", "b1"],
            id="in a class, who has waited too long comes before those whose turn it is",
        ),
        pytest.param(
            [waits("old", at=-9999.0), waits("urgent", at=2.0, priority=BUILD)], (),
            ["urgent", "old"],
            id="however long a run has waited, a higher class comes first",
        ),
    ],
)  # fmt: skip
def test_the_line_is_ordered(
    waiting: list[WaitingRun], at_work: tuple[RunAtWork, ...], expected: list[str]
) -> None:
    holder = works("holder", "zoe")
    for listed in (waiting, waiting[::-1]):
        assert line(decided(listed, (*at_work, holder))) == expected
        free = decided(listed, at_work)
        assert [each.run for each in free.begins] == expected[:1]
        assert line(free) == expected[1:]


def test_of_two_users_first_the_one_whose_last_run_began_earlier() -> None:
    waiting = [waits("a2", at=1.0), waits("a3", at=2.0), waits("b1", "bob", 3.0)]
    sites = (site("a"),)
    for began, expected in (({"ann": 50.0}, "b1"), ({"ann": 50.0, "bob": 60.0}, "a2")):
        found = decide(waiting, (), sites, RunQueueSettings(), 100.0, began)
        assert [each.run for each in found.begins] == [expected]


def test_a_run_that_waits_is_told_what_it_needs_and_who_has_it() -> None:
    found = decided([waits("r", ask=replace(ASK, count=2))], (works("x", "bob", "ab"),))
    (wait,) = found.waits
    assert wait.reason == (
        "2 sites with room for 2 vnodes of 1 CPU are needed, 1 have it; "
        "a has x of bob; b has x of bob"
    )
    assert wait.holders == (RunHolder("a", "x", "bob"), RunHolder("b", "x", "bob"))


def test_a_run_that_does_not_fit_holds_up_no_other() -> None:
    small = replace(ASK, count=1)
    found = decided([waits("large"), waits("small", at=1.0, ask=small)], (works("x", sites="ab"),))
    assert found.begins == (Begin("small", ("c",), "its sites have room"),)
    assert line(found) == ["large"]


def test_once_a_run_has_waited_too_long_its_sites_are_kept_for_it() -> None:
    small = replace(ASK, count=1)
    waiting = [waits("large", at=-600.0), waits("small", at=1.0, ask=small)]
    found = decided(waiting, (works("x", "bob", sites="ab"),))
    assert line(found) == ["large", "small"]
    assert RunHolder("c", "large", "ann") in found.waits[1].holders


def test_while_sites_release_one_after_the_other_the_first_in_line_keeps_its_turn() -> None:
    small = replace(ASK, count=1)
    waiting = [waits("large", "bob"), waits("small", "bob", 1.0, ask=small)]
    ended = works("ended", sites="c", leaving=True)
    found = decided(waiting, (ended,))
    assert line(found) == ["large", "small"]
    still = works("ended", sites="c")
    assert [each.run for each in decided(waiting, (still,)).begins] == ["small"]
    assert [each.run for each in decided(waiting).begins] == ["large"]


def test_a_run_that_waits_for_its_own_limit_keeps_no_site_from_others() -> None:
    waiting = [waits("a1", at=-900.0), waits("b1", "bob", 1.0, ask=replace(ASK, count=1))]
    found = decided(waiting, (works("a0", sites="ab"),), runs_per_user=1)
    assert [each.run for each in found.begins] == ["b1"]
    (wait,) = found.waits
    assert wait.reason == "ann has 1 run at work, of at most 1"
    assert wait.holders == (RunHolder("", "a0", "ann"),)


def test_runs_that_begin_now_count_for_the_limit_and_for_room() -> None:
    one = replace(ASK, count=1)
    waiting = [waits(f"a{i}", at=float(i), ask=one) for i in range(4)]
    found = decided(waiting, runs_per_user=2)
    assert [(each.run, each.sites) for each in found.begins] == [("a0", ("a",)), ("a1", ("b",))]
    assert line(found) == ["a2", "a3"]


@pytest.mark.parametrize(
    ("ask", "sites", "begins"),
    [
        pytest.param(replace(ASK, count=2), "bc", ("b", "c"), id="as many as it takes, by name"),
        pytest.param(
            replace(ASK, count=2, required=("c",)), "abc", ("a", "c"), id="a required one is in"
        ),
        pytest.param(replace(ASK, min_sites=2), "bc", ("b", "c"), id="at least so many of all"),
        pytest.param(ASK, "abc", ("a", "b", "c"), id="all that there are"),
        pytest.param(ASK, "bc", None, id="all that there are, and one is full"),
        pytest.param(
            replace(ASK, count=2, required=("a",)), "bc", None, id="the required one is full"
        ),
        pytest.param(
            replace(ASK, count=2, min_sites=1), "b", ("b",), id="fewer than it would take"
        ),
        pytest.param(replace(ASK, workers=None, count=1), "c", ("c",), id="as many as fit"),
    ],
)
def test_a_run_begins_at_sites_with_room(
    ask: RunAsk, sites: str, begins: tuple[str, ...] | None
) -> None:
    full = frozenset("abc") - set(sites)
    found = decided([waits("r", ask=ask)], (works("x", sites="".join(full)),))
    assert [each.sites for each in found.begins] == ([] if begins is None else [begins])


def test_vnodes_of_several_runs_share_a_site() -> None:
    one = RunAsk(vnode={"CPU": 1.0}, workers=1, count=1)
    waiting = [waits(f"r{i}", f"u{i}", float(i), ask=one) for i in range(3)]
    found = decided(waiting, sites=(site("a"),))
    assert [each.run for each in found.begins] == ["r0", "r1"]


@pytest.mark.parametrize(
    ("ask", "sites", "reason"),
    [
        pytest.param(None, ABC, "not known", id="it did not say what it asks for"),
        pytest.param(replace(ASK, count=4), ABC, "too few sites", id="too few sites are there"),
        pytest.param(replace(ASK, required=("d",)), ABC, "too few", id="a required one is not"),
        pytest.param(replace(ASK, data="x-rays"), ABC, "too few", id="none has its data"),
        pytest.param(replace(ASK, workers=3), ABC, "never", id="no idle site holds its part"),
        pytest.param(ASK, (site("a", Resources()),), "room", id="the size of its site is unknown"),
    ],
)
def test_what_only_sites_can_say_is_left_to_them(
    ask: RunAsk | None, sites: tuple[SiteRoom, ...], reason: str
) -> None:
    found = decided([waits("r", ask=ask)], (works("x", sites="abc"),), sites)
    assert [each.run for each in found.begins] == ["r"]
    assert reason in found.begins[0].reason


def test_a_site_that_may_soon_be_back_is_waited_for() -> None:
    found = decided([waits("r")], sites=(site("a"), site("b", ready=False)))
    assert found.waits[0].reason.endswith("1 have it; b may soon be back")


def test_only_sites_that_declare_its_data_count() -> None:
    ask = replace(ASK, data="x-rays")
    sites = (site("a"), site("b", data=frozenset({"x-rays"})))
    (begin,) = decided([waits("r", ask=ask)], (works("x", sites="a"),), sites).begins
    assert begin.sites == ("b",)


def test_a_run_that_was_refused_pauses_and_then_reserves_alone() -> None:
    one = RunAsk(vnode={"CPU": 1.0}, workers=1, count=1, required=("a",))
    again = waits("again", ask=one, refused=True, not_before=130.0)
    assert "asks again in 30 s" in decided([again]).waits[0].reason
    others = works("other", "bob", "a", ask=one, reserving=True)
    assert line(decided([again], (others,), now=130.0)) == ["again"]
    complete = replace(others, reserving=False)
    assert [each.run for each in decided([again], (complete,), now=130.0).begins] == ["again"]
    behind = waits("behind", "bob", 5.0, ask=one)
    both = decided([again, behind], now=130.0)
    assert [each.run for each in both.begins] == ["again"]
    assert both.waits[0].holders == (RunHolder("a", "again", "ann"),)
