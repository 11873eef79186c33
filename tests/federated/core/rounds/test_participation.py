"""Who has to take part in a round, who did, and that running it again counts the same clients."""

from __future__ import annotations

import hashlib
import json
import zlib
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from federations import COHORT, Log, in_time, one_by_one, open_gate, raising, shut_gate
from fedpilot.federated import FederatedError, RunRefused, RunResult
from fedpilot.federated.core.population.shares import held, packed, part_name, taken, told, unpacked
from fedpilot.federated.core.rounds.participation import (
    BelowQuorum,
    Close,
    Counted,
    Done,
    Fail,
    Forgo,
    GatherStatus,
    Rules,
    Step,
    Wait,
    asked,
    least,
    step,
)
from fedpilot.federated.federation.verify import Replay
from fedpilot.federated.site.rounds.star_round import SiteRound
from records import Archive

# -- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cohort", "more", "population", "expected"),
    [(10, 0.0, 99, 10), (10, 0.1, 99, 11), (10, 0.11, 99, 12), (10, 0.5, 12, 12), (3, 2.0, 99, 9)],
)
def test_clients_that_are_asked(cohort: int, more: float, population: int, expected: int) -> None:
    assert asked(cohort, more, population) == expected


@pytest.mark.parametrize(
    ("cohort", "quorum", "expected"), [(10, 1.0, 10), (10, 0.7, 7), (10, 0.71, 8), (3, 0.01, 1)]
)
def test_clients_that_have_to_count(cohort: int, quorum: float, expected: int) -> None:
    assert least(cohort, quorum) == expected


# -- what to do now ---------------------------------------------------------------------------

ALL = Rules(whole=10, enough=10, least=10, wait_s=60.0)
SOME = Rules(whole=10, enough=10, least=4, wait_s=60.0)
TIMED = Rules(whole=10, enough=10, least=4, deadline_s=30.0, wait_s=60.0, closing_s=5.0)
MORE = Rules(whole=12, enough=10, least=10)


def at(**facts: Any) -> GatherStatus:
    return GatherStatus(**{"started": 0.0, "open": 1, "covered": 0, "reported": 0, **facts})


GONE: dict[str, Any] = {"lacking": "west is gone", "lacking_since": 20.0}
LEFT_OUT: dict[str, Any] = {**GONE, "lacking": "west lies", "some_never": True, "all_never": True}


@pytest.mark.parametrize(
    ("rules", "standing", "now", "expected"),
    [
        pytest.param(ALL, at(), 1e6, Wait(None), id="whoever works is waited for"),
        pytest.param(ALL, at(open=0), 0.0, Done(), id="no order is open"),
        pytest.param(ALL, at(**GONE), 20.0, Wait(60.0), id="a site may come back"),
        pytest.param(
            ALL, at(**GONE), 80.0, Fail("west is gone", waited_s=60.0), id="it did not come back"
        ),
        pytest.param(SOME, at(**GONE), 50.0, Wait(30.0), id="a quorum is waited for"),
        pytest.param(
            SOME, at(**GONE, covered=4), 21.0, Wait(59.0), id="others work while a site is gone"
        ),
        pytest.param(
            SOME, at(**GONE, open=0, covered=4), 21.0, Forgo("west is gone"), id="it is enough"
        ),
        pytest.param(
            SOME, at(**GONE, open=0, covered=3), 21.0, Wait(59.0), id="it is not enough yet"
        ),
        pytest.param(
            SOME, at(**GONE, open=0, covered=4, vital=True), 21.0, Wait(59.0), id="not without it"
        ),
        pytest.param(SOME, at(**GONE), 80.0, Forgo("west is gone"), id="gone for too long"),
        pytest.param(
            ALL,
            at(**LEFT_OUT),
            20.0,
            Fail("west lies", never=True),
            id="who lies is not waited for",
        ),
        pytest.param(SOME, at(**LEFT_OUT), 20.0, Wait(60.0), id="others work though one lies"),
        pytest.param(
            SOME, at(**LEFT_OUT, open=0), 20.0, Forgo("west lies"), id="who lies does not count"
        ),
        pytest.param(
            SOME,
            at(**{**LEFT_OUT, "all_never": False}, open=0),
            20.0,
            Wait(60.0),
            id="one lies and another may come back",
        ),
        pytest.param(
            SOME,
            at(**LEFT_OUT, open=0, vital=True),
            20.0,
            Wait(60.0),
            id="another may come in the place of who lies",
        ),
        pytest.param(
            SOME,
            at(**GONE, vital=True),
            80.0,
            Fail("west is gone", waited_s=60.0),
            id="and required",
        ),
        pytest.param(
            SOME, at(**GONE, open=0), 80.0, Fail("west is gone", waited_s=60.0), id="nobody is left"
        ),
        pytest.param(
            SOME,
            at(**GONE, vital=True, hopeless=True),
            20.0,
            Fail("west is gone"),
            id="and nobody is left who may return",
        ),
        pytest.param(TIMED, at(), 10.0, Wait(20.0), id="until the deadline"),
        pytest.param(
            TIMED, at(), 30.0, Close("the deadline of 30 s has passed"), id="at the deadline"
        ),
        pytest.param(TIMED, at(open=0), 31.0, Done(), id="done before anybody looked"),
        pytest.param(TIMED, at(closed=30.0), 32.0, Wait(3.0), id="closing takes a moment"),
        pytest.param(TIMED, at(closed=30.0), 35.0, Done(), id="but not for ever"),
        pytest.param(TIMED, at(closed=30.0, open=0), 31.0, Done(), id="closed"),
        pytest.param(MORE, at(covered=7, reported=2), 0.0, Wait(None), id="one is missing"),
        pytest.param(
            MORE, at(covered=7, reported=3), 0.0, Close("10 clients are done"), id="enough are done"
        ),
    ],
)
def test_what_a_question_does_now(
    rules: Rules, standing: GatherStatus, now: float, expected: Step
) -> None:
    assert step(standing, now, rules) == expected


@pytest.mark.parametrize(("rules", "by_clock"), [(ALL, False), (SOME, True), (MORE, True)])
def test_only_those_rules_are_journaled_that_a_clock_decides(rules: Rules, by_clock: bool) -> None:
    assert rules.by_clock is by_clock


# -- shares in orders -------------------------------------------------------------------------

ranges = st.builds(range, st.integers(0, 300), st.integers(0, 300), st.integers(1, 7))


@given(share=st.lists(ranges, max_size=5).map(tuple), size=st.integers(0, 300))
def test_whom_a_share_holds(share: tuple[range, ...], size: int) -> None:
    clients = np.arange(size, dtype=np.int64)
    inside = held(clients, taken(told(share)))
    assert inside.tolist() == [any(i in each for each in share) for i in range(size)]


@given(size=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_a_bitmap_comes_back_as_it_was(size: int, seed: int) -> None:
    flags = np.random.default_rng(seed).random(size) < 0.5
    assert (unpacked(packed(np.flatnonzero(flags), size), size) == flags).all()


def test_a_bitmap_of_a_million_clients_is_short() -> None:
    assert len(packed(np.arange(1_000_000), 1_000_000)) < 1000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("?", id="no base64"),
        pytest.param("AAAA", id="not compressed"),
        pytest.param(packed(np.arange(9), 9), id="of a larger cohort"),
        pytest.param(b64encode(zlib.compress(bytes(12_500_000))).decode(), id="a bomb"),
    ],
)
def test_a_bitmap_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(FederatedError, match="bitmap of 8"):
        unpacked(text, 8)


@pytest.mark.parametrize(
    "share",
    [
        None,
        "all",
        [[0, 1]],
        [[0, 1, 0]],
        [[0, 2**63, 1]],
        [[-1, 1, 1]],
        [[0, 1.0, 1]],
        [[0, 1, True]],
    ],
)
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(FederatedError, match="a share"):
        taken(share)


def test_parts_are_called_by_whom_they_hold() -> None:
    assert part_name((range(4),)) == part_name([range(0, 4)])
    assert len({part_name((range(4),)), part_name((range(5),)), part_name((range(4),), "x")}) == 3


# -- who counted ------------------------------------------------------------------------------

COUNTED = Counted(
    round_number=3, model="abc", whole=9, clients=2, counted="x", sites={"a": 2}, reason="late"
)


LATE = {"round": 2, "clients": 3, "samples": 40, "weight": 28, "sites": ["b"], "digest": "d"}


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param(COUNTED, id="of this round alone"),
        pytest.param(replace(COUNTED, late=(LATE,)), id="with some of an earlier round"),
    ],
)
def test_who_counted_comes_back_as_it_was(counted: Counted) -> None:
    again = json.loads(json.dumps(counted.to_json()))
    assert Counted.from_json(again, "it") == counted


def test_a_record_from_before_there_were_late_updates_is_read() -> None:
    values: dict[str, Any] = {
        **{"format": 1, "round_number": 3, "model": "abc", "whole": 9, "clients": 2},
        **{"counted": "x", "sites": {"a": 2}, "reason": "late"},
    }
    text = json.dumps(values, sort_keys=True)
    told = {**values, "digest": hashlib.sha256(text.encode()).hexdigest()}
    assert Counted.from_json(told, "it") == COUNTED


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(None, id="nothing"),
        pytest.param({}, id="empty"),
        pytest.param(COUNTED.to_json() | {"clients": 3}, id="changed"),
        pytest.param(COUNTED.to_json() | {"format": 3}, id="of another format"),
    ],
)
def test_a_spoilt_record_is_refused(values: Any) -> None:
    with pytest.raises(RunRefused, match="it says who counted"):
        Counted.from_json(values, "it")


# -- runs -------------------------------------------------------------------------------------

IN_FLIGHT = 2
"""Clients that are with the one worker when it stands still: one it trains, and the next."""


@pytest.fixture
def hurried(archive: Archive, user_code: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One worker that trains client by client and stands still until its round is closed."""
    one_by_one(monkeypatch)
    code = shut_gate(user_code)
    close = SiteRound.close

    def closing(self: SiteRound) -> None:
        close(self)
        self._site.pool.meanwhile(code.GATE.set)

    monkeypatch.setattr(SiteRound, "close", closing)
    return {
        "model__model_type": f"{user_code}:Slow",
        "resources__workers": 1,
        "federation__rounds": 2,
        "participation__deadline_s": 0.2,
        "participation__quorum": 0.1,
    }


def interrupted(archive: Archive, keys: dict[str, Any]) -> str:
    """Run until round 1 has been recorded, and nothing of it kept; the model that it came to."""
    log = Log()
    with archive.make(archive.config(**keys)) as federation:
        federation._events.observers += [
            log,
            raising(KeyboardInterrupt(), "round_finished", round=1),
        ]
        with pytest.raises(KeyboardInterrupt):
            in_time(lambda: federation.run(run_id="r"))
    (first,) = log.of("round_finished")
    (closed,) = log.of("round_quorum")
    assert closed == {
        "round": 1, "clients": IN_FLIGHT, "of": COHORT, "reason": "the deadline of 0.2 s has passed"
    }  # fmt: skip
    assert first["clients"] == IN_FLIGHT
    return str(first["model"])


def test_a_round_that_was_closed_counts_the_same_clients_when_it_is_run_again(
    archive: Archive, hurried: dict[str, Any], user_code: str
) -> None:
    model = interrupted(archive, hurried)
    (record,) = (archive.runs / "r" / "journal").glob("*.counted.json")
    assert json.loads(record.read_text())["sites"] == {"local": IN_FLIGHT}
    with archive.make(
        archive.config(**hurried | {"participation__deadline_s": 600.0})
    ) as federation:
        result = in_time(lambda: federation.resume("r"))
    assert result.rows[0]["model"] == model
    assert [row["clients"] for row in result.rows] == [IN_FLIGHT, COHORT]
    whole = archive.record("whole", **hurried | {"participation__deadline_s": 600.0})
    assert rows_of(whole)[0]["model"] != model
    found = archive.verify("r", how=Replay.ALL)
    assert found.failure is None
    assert not found.differs


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_round_below_its_quorum_ends_the_run(
    archive: Archive, hurried: dict[str, Any], user_code: str
) -> None:
    keys = hurried | {"participation__quorum": 0.5}
    with (
        archive.make(archive.config(**keys)) as federation,
        pytest.raises(BelowQuorum, match="round 1: 2 clients count and at least 3 are needed"),
    ):
        in_time(lambda: federation.run(run_id="r"))
    assert not list((archive.runs / "r" / "journal").glob("*.json"))


def test_more_are_asked_than_are_needed_and_enough_end_the_round(
    archive: Archive, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(monkeypatch)
    monkeypatch.setattr("fedpilot.federated.site.rounds.surroundings.PROGRESS_S", 0.0)
    code = open_gate(user_code)
    log = Log()
    trained = 0

    def until_enough(event: Any) -> None:
        """The client after the last one that is needed stands still until the round is closed."""
        nonlocal trained
        if event.name == "clients_done":
            trained = event.fields["done"]
            if trained == 4:
                code.GATE.clear()

    close = SiteRound.close

    def closing(self: SiteRound) -> None:
        close(self)
        self._site.pool.meanwhile(code.GATE.set)

    monkeypatch.setattr(SiteRound, "close", closing)
    keys = {
        "model__model_type": f"{user_code}:Slow",
        "resources__workers": 1,
        "federation__rounds": 1,
        "federation__clients_per_round": 4,
        "participation__over_sampling": 1.0,
    }
    with archive.make(archive.config(**keys)) as federation:
        federation._events.observers += [log, until_enough]
        result = in_time(lambda: federation.run(run_id="r"))
    assert federation.cohort_size == 8
    assert 4 <= result.rows[0]["clients"] < 8
    assert log.of("round_quorum")[0]["reason"] == "4 clients are done"


def test_the_default_journals_nothing(lab: Any) -> None:
    result: RunResult = lab.run()
    assert not list((result.folder / "journal").glob("*.json"))
