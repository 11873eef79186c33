"""A site is believed what only it can know, in fields of the right types, and not without end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.testing.fake_cluster import ManualClock
from fedpilot.federated.core.rounds.site_events import (
    KINDS,
    LONGEST_TEXT,
    Allowance,
    NotBelieved,
    believed,
)
from fedpilot.federated.federation.sites.event_relay import AT_ONCE, SAID_EVERY_S, EventFilter
from fedpilot.mediator import Payload

READY = {"site": "rome", "worker": 1, "pid": 7, "host": "h", "torch": "2.4", "threads": 1}
LOST = {"site": "rome", "worker": 0, "reason": "it died", "held": ["training 3 clients"]}
DONE = {"site": "rome", "round": 3, "done": 4, "of": 6, "part": "abc"}
BUSY = {"load": 16.2, "cpus": 2, "niceness": 15}
STARTING = {"site": "rome", "up": 1, "of": 2, "seconds": 10, **BUSY}
PRINTED = {"site": "rome", "round": 3, "clients": ["a", "b"], "texts": ["hello", "so\nlong"]}
HONEST = {
    "workers_starting": STARTING,
    "worker_ready": READY,
    "worker_lost": LOST,
    "worker_left": LOST,
    "worker_joined": {"site": "a", "worker": 2},
    "worker_notice": {"site": "a", "worker": 2, "seconds": 9.5, "reason": "for other"},
    "gang_notice": {"site": "a", "seconds": 9.5, "reason": "for other: reclaim-quota"},
    "gang_preempted": {"site": "a", "reason": "for other"},
    "gang_regained": {"site": "a", "workers": 2},
    "clients_done": DONE,
    "clients_printed": PRINTED,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_site_can_know_is_passed_on(kind: str) -> None:
    assert believed(kind, HONEST[kind]) == HONEST[kind]


def test_fields_that_nobody_knows_are_left_out() -> None:
    header = {**DONE, "name": "x", "event": "run_finished", "time": "now", "digest": "0"}
    assert believed("clients_done", header) == DONE


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param("run_finished", {"digest": "0" * 64}, id="the end of the run"),
        pytest.param("round_finished", {"accuracy": 1.0}, id="a round"),
        pytest.param("site_lost", {}, id="another site"),
        pytest.param("", {}, id="nothing"),
        pytest.param("worker_ready", {"worker": None}, id="no worker"),
        pytest.param("worker_ready", {"worker": []}, id="a list for a worker"),
        pytest.param("worker_ready", {"worker": 10**6}, id="a millionth worker"),
        pytest.param("worker_ready", {"pid": "7"}, id="a text for a process"),
        pytest.param("worker_lost", {"held": "all"}, id="a text for a list"),
        pytest.param("worker_lost", {"reason": {}}, id="an object for a reason"),
        pytest.param("workers_starting", {"seconds": -1}, id="less than no time"),
        pytest.param("clients_printed", {"texts": ["hello"]}, id="fewer texts than clients"),
        pytest.param("clients_printed", {"texts": "hello"}, id="one text for a list"),
        pytest.param("workers_starting", {"load": float("nan")}, id="a load that is no number"),
        pytest.param("workers_starting", {"load": "high"}, id="a word for a load"),
        pytest.param("workers_starting", {"niceness": 20}, id="nicer than can be"),
        pytest.param("workers_starting", {"niceness": 1.5}, id="half a step of niceness"),
        pytest.param("clients_done", {"done": -1}, id="less than nobody"),
        pytest.param("clients_done", {"done": True}, id="true for a number"),
        pytest.param("clients_done", {"done": 7}, id="more than there are"),
        pytest.param("clients_done", {"done": "many"}, id="a word for a number"),
        pytest.param("clients_done", {"of": 10**30}, id="a number without end"),
    ],
)
def test_what_it_cannot_know_or_say_is_not_believed(kind: str, change: dict[str, Any]) -> None:
    with pytest.raises(NotBelieved):
        believed(kind, {**HONEST.get(kind, {}), **change})


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in KINDS for n in KINDS[k].needed])
def test_what_lacks_a_field_is_not_believed(kind: str, name: str) -> None:
    header = {key: value for key, value in HONEST[kind].items() if key != name}
    with pytest.raises(NotBelieved, match=name):
        believed(kind, header)


def test_texts_are_short_and_nothing_that_a_terminal_obeys() -> None:
    told = believed("worker_lost", {**LOST, "reason": "\x1b[2J" + "a" * 10**5})
    assert told["reason"].startswith("?[2Jaaa")
    assert len(told["reason"]) == LONGEST_TEXT


@given(
    st.sampled_from(sorted(KINDS)),
    st.dictionaries(
        st.sampled_from(sorted({*READY, *LOST, *DONE, "name"})),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()),
    ),
)
def test_whatever_it_says_is_taken_or_not_believed(kind: str, header: dict[str, Any]) -> None:
    try:
        told = believed(kind, {**HONEST[kind], **header})
    except NotBelieved:
        return
    assert told.keys() <= {*KINDS[kind].needed, *KINDS[kind].more}


def test_an_allowance_fills_by_itself() -> None:
    allowance = Allowance(per_s=2.0, at_once=3.0, now=0.0)
    assert [allowance.takes(0.0) for _ in range(4)] == [True, True, True, False]
    assert [allowance.takes(1.0) for _ in range(3)] == [True, True, False]
    assert [allowance.takes(99.0) for _ in range(4)] == [True, True, True, False]


def test_a_site_that_says_too_much_is_not_heard_and_the_log_stays_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    heard = EventFilter(clock)
    lie = Payload(kind="run_finished", header={"site": "rome"})
    with caplog.at_level(logging.WARNING):
        assert heard.fields(Payload(kind="clients_done", header=DONE)) == DONE
        for _ in range(3 * int(AT_ONCE)):
            assert heard.fields(lie) is None
        assert len(caplog.records) < AT_ONCE + 2
        assert "is not believed: 'run_finished' is no event" in caplog.messages[0]
        assert "site rome says too much" in caplog.messages[-1]
        assert heard.fields(Payload(kind="clients_done", header=DONE)) is None
        other = {**DONE, "site": "paris"}
        assert heard.fields(Payload(kind="clients_done", header=other)) == other
        clock.advance(SAID_EVERY_S)
        assert heard.fields(Payload(kind="clients_done", header=DONE)) == DONE
