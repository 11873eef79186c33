"""A gang stands on enough sites or on none, whatever the sites answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator import Promise, Refusal
from fedpilot.mediator.core.reservation import Answer, ReservationOutcome, Verb, reserve

SITES = ("a", "b", "c")
P, C, R = Verb.PREPARE, Verb.COMMIT, Verb.RELEASE


def talk(
    answers: Mapping[str, Answer],
    *,
    sites: tuple[str, ...] = SITES,
    min_sites: int = 3,
    required: Collection[str] = (),
    commits: Mapping[str, Answer] | None = None,
) -> tuple[list[tuple[Verb, str]], ReservationOutcome]:
    """Answer every question; what was asked, and how it ended."""
    asked: list[tuple[Verb, str]] = []
    conversation = reserve(sites, min_sites=min_sites, required=required)
    try:
        batch = next(conversation)
        while True:
            asked += [(ask.verb, ask.site) for ask in batch]
            told = answers if batch[0].verb is P else commits or {}
            batch = conversation.send({ask.site: told.get(ask.site) for ask in batch})
    except StopIteration as end:
        return asked, end.value


def promising(*sites: str) -> dict[str, Answer]:
    return {
        site: Promise(site, 2) if site in sites else Refusal(site, f"{site} is full")
        for site in SITES
    }


@pytest.mark.parametrize(
    ("answers", "min_sites", "required", "asked", "granted"),
    [
        pytest.param(
            promising("a", "b", "c"), 3, (),
            [(P, "a"), (P, "b"), (P, "c"), (C, "a"), (C, "b"), (C, "c")], "abc",
            id="all promise, all commit",
        ),
        pytest.param(
            promising("b", "c"), 3, (), [(P, "a"), (P, "b"), (P, "c"), (R, "b"), (R, "c")], "",
            id="the first refuses and all are needed: the others are released",
        ),
        pytest.param(
            promising("a", "b"), 3, (), [(P, "a"), (P, "b"), (P, "c"), (R, "a"), (R, "b")], "",
            id="the last refuses and all are needed: the others are released",
        ),
        pytest.param(
            promising("a", "c"), 2, (), [(P, "a"), (P, "b"), (P, "c"), (C, "a"), (C, "c")], "ac",
            id="one refuses and two are enough",
        ),
        pytest.param(
            promising(), 2, (), [(P, "a"), (P, "b"), (P, "c")], "",
            id="nobody promises: there is nothing to release",
        ),
        pytest.param(
            promising("a", "b"), 2, ("c",), [(P, "a"), (P, "b"), (P, "c"), (R, "a"), (R, "b")], "",
            id="a required site refuses: all are released though enough promised",
        ),
        pytest.param(
            promising("b", "c"), 1, ("a",), [(P, "a"), (P, "b"), (P, "c"), (R, "b"), (R, "c")], "",
            id="a required site refuses first: the others are released",
        ),
        pytest.param(
            promising("a", "c"), 1, ("a",), [(P, "a"), (P, "b"), (P, "c"), (C, "a"), (C, "c")],
            "ac", id="a required site promises and one of the others does not",
        ),
        pytest.param(
            {"a": Promise("a", 1), "b": None, "c": Promise("c", 1)}, 2, (),
            [(P, "a"), (P, "b"), (P, "c"), (C, "a"), (C, "c")], "ac",
            id="no answer is a refusal",
        ),
    ],
)  # fmt: skip
def test_who_is_asked_what(
    answers: dict[str, Answer],
    min_sites: int,
    required: tuple[str, ...],
    asked: list[tuple[Verb, str]],
    granted: str,
) -> None:
    found, outcome = talk(answers, min_sites=min_sites, required=required)
    assert found == asked
    assert outcome.granted == bool(granted)
    assert "".join(outcome.promises) == granted


LAPSED = Refusal("b", "its promise has lapsed")


@pytest.mark.parametrize(
    ("min_sites", "required", "ends", "granted"),
    [
        pytest.param(2, (), [(R, "b")], "ac", id="enough are left: they go on without it"),
        pytest.param(3, (), [(R, "a"), (R, "b"), (R, "c")], "", id="too few: all are released"),
        pytest.param(1, ("b",), [(R, "a"), (R, "b"), (R, "c")], "", id="it is required"),
    ],
)
def test_a_commit_can_fail(
    min_sites: int, required: tuple[str, ...], ends: list[tuple[Verb, str]], granted: str
) -> None:
    asked, outcome = talk(
        promising("a", "b", "c"), min_sites=min_sites, required=required, commits={"b": LAPSED}
    )
    assert asked == [(P, "a"), (P, "b"), (P, "c"), (C, "a"), (C, "b"), (C, "c"), *ends]
    assert "".join(outcome.promises) == granted
    assert outcome.refusals == {"b": LAPSED.reason}


FULL, NO = Refusal("s", "busy", full=True), Refusal("s", "never")


@pytest.mark.parametrize(
    ("answers", "min_sites", "required", "full"),
    [
        pytest.param("PFP", 3, "", True, id="one is full, and all are needed"),
        pytest.param("FFF", 2, "", True, id="all are full"),
        pytest.param("PFN", 2, "", True, id="with the full one, there would be enough"),
        pytest.param("PFN", 3, "", False, id="there would still be too few"),
        pytest.param("PFN", 1, "c", False, id="a required site will never promise"),
        pytest.param("PNF", 1, "c", True, id="a required site is full"),
        pytest.param("PNN", 3, "", False, id="none is full"),
        pytest.param("PFP", 2, "", False, id="there are enough without the full one"),
    ],
)
def test_a_later_attempt_may_succeed_if_sites_are_only_full(
    answers: str, min_sites: int, required: str, full: bool
) -> None:
    kinds = {"P": Promise("s", 1), "F": FULL, "N": NO}
    told = {site: kinds[kind] for site, kind in zip(SITES, answers, strict=True)}
    _, outcome = talk(told, min_sites=min_sites, required=tuple(required))
    assert outcome.full == full


def test_refusals_say_why() -> None:
    _, outcome = talk({"a": Promise("a", 1), "b": None, "c": Refusal("c", "busy")}, min_sites=1)
    assert outcome.refusals == {"b": "no answer", "c": "busy"}


def test_a_required_site_that_nobody_knows_cannot_be_had() -> None:
    asked, outcome = talk(promising("a", "b", "c"), min_sites=1, required=("z",))
    assert not outcome.granted
    assert "z" in outcome.refusals
    assert C not in {verb for verb, _ in asked}


def test_more_sites_than_there_are_cannot_be_had_and_it_says_so() -> None:
    asked, outcome = talk(promising("a", "b", "c"), min_sites=4)
    assert not outcome.granted
    assert C not in {verb for verb, _ in asked}
    assert outcome.refusals, "a refusal has a reason"


answer_to: Callable[[str], st.SearchStrategy[Answer]] = lambda site: st.sampled_from(  # noqa: E731
    [Promise(site, 1), Refusal(site, "no"), None]
)


@given(
    st.fixed_dictionaries({site: answer_to(site) for site in SITES}),
    st.integers(1, 3),
    st.sets(st.sampled_from(SITES)),
    st.sets(st.sampled_from(SITES)),
)
def test_whatever_sites_answer_what_is_promised_is_kept_or_released(
    answers: dict[str, Answer], min_sites: int, required: set[str], lapsing: set[str]
) -> None:
    commits = {site: Refusal(site, "lapsed") for site in lapsing}
    asked, outcome = talk(answers, min_sites=min_sites, required=required, commits=commits)
    promised = [site for site, answer in answers.items() if isinstance(answer, Promise)]
    released = [site for verb, site in asked if verb is R]
    committed = [site for verb, site in asked if verb is C]
    assert [site for verb, site in asked if verb is P] == list(SITES)
    standing = set(promised) - lapsing
    assert outcome.granted == (len(standing) >= min_sites and required <= standing)
    assert set(outcome.promises) == (standing if outcome.granted else set())
    assert sorted([*outcome.promises, *released]) == sorted(promised), "each ends one way, once"
    assert set(outcome.promises) <= set(committed)


CUT_OFF = Refusal("b", "no Ray there", unreachable=True)


@pytest.mark.parametrize(
    ("answers", "unreachable"),
    [
        pytest.param({"a": CUT_OFF, "b": CUT_OFF}, True, id="no Ray can be used"),
        pytest.param({"a": Promise("a", 1), "b": CUT_OFF}, True, id="the missing one cannot"),
        pytest.param({"a": Refusal("a", "full"), "b": CUT_OFF}, False, id="another is full"),
        pytest.param({"a": None, "b": CUT_OFF}, False, id="another says nothing"),
    ],
)
def test_what_cannot_be_used_at_all_is_told_from_what_is_full(
    answers: dict[str, Answer], unreachable: bool
) -> None:
    _, outcome = talk(answers, sites=("a", "b"), min_sites=2)
    assert not outcome.granted
    assert outcome.unreachable is unreachable
