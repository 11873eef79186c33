"""What a job does next, for every phase and every event, and what its log says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fedpilot.fabric.jobs.preemption import (
    TRANSITIONS,
    JobEvent,
    JobPhase,
    Preemption,
    after,
    event_of,
)

P, E = JobPhase, JobEvent
LAST = (P.DONE, P.PREEMPTED, P.LOST)

STEPS = [
    pytest.param(P.WAITS, E.QUEUED, P.WAITS, id="a job without places waits"),
    pytest.param(P.WAITS, E.PLACED, P.RUNS, id="with places it runs"),
    pytest.param(P.WAITS, E.NOTICED, P.WAITS, id="it does not begin in places that it must leave"),
    pytest.param(P.WAITS, E.SILENT, P.WAITS, id="it does not begin without an answer"),
    pytest.param(P.WAITS, E.GONE, P.LOST, id="it does not wait for what has ended"),
    pytest.param(P.RUNS, E.SILENT, P.RUNS, id="a manager without an answer ends nothing"),
    pytest.param(P.RUNS, E.PLACED, P.RUNS, id="it runs on"),
    pytest.param(P.RUNS, E.NOTICED, P.LEAVES, id="under notice its command is told to end"),
    pytest.param(P.RUNS, E.QUEUED, P.LEAVES, id="so is one whose places are gone without notice"),
    pytest.param(P.RUNS, E.GONE, P.ENDS, id="and one whose virtual cluster has ended"),
    pytest.param(P.RUNS, E.EXITED, P.DONE, id="what ends by itself is done"),
    pytest.param(P.LEAVES, E.PLACED, P.LEAVES, id="a notice withdrawn too late ends it anyway"),
    pytest.param(P.LEAVES, E.QUEUED, P.LEAVES, id="it has left before its command has ended"),
    pytest.param(P.LEAVES, E.EXITED, P.WAITS, id="what was told to end runs again"),
    pytest.param(P.LEAVES, E.GONE, P.ENDS, id="unless its virtual cluster ends meanwhile"),
    pytest.param(P.ENDS, E.EXITED, P.LOST, id="what lost its virtual cluster does not run again"),
]


@pytest.mark.parametrize(("phase", "event", "then"), STEPS)
def test_what_a_job_does_next(phase: JobPhase, event: JobEvent, then: JobPhase) -> None:
    assert after(phase, event) is then


@pytest.mark.parametrize("phase", sorted({*JobPhase} - {*LAST}), ids=str)
def test_every_event_is_decided(phase: JobPhase) -> None:
    waits = {E.EXITED} if phase is P.WAITS else set()  # nothing runs that could end
    assert TRANSITIONS[phase].keys() == set(JobEvent) - waits
    assert not TRANSITIONS.keys() & {*LAST}


@pytest.mark.parametrize("phase", TRANSITIONS, ids=str)
@pytest.mark.parametrize("event", JobEvent, ids=str)
def test_a_job_that_should_not_run_again_differs_in_that_alone(
    phase: JobPhase, event: JobEvent
) -> None:
    if event not in TRANSITIONS[phase]:
        return
    then = after(phase, event, requeue=False)
    preempted = (phase, event) == (P.LEAVES, E.EXITED)
    assert then is (P.PREEMPTED if preempted else after(phase, event))


NOTICE = {"at": 110.0, "claimant": "b", "rule": "reclaim-quota", "reason": "its project has less"}
STOPPED = {**NOTICE, "at": 90.0}

DOCUMENTS = [
    pytest.param(None, 5.0, E.GONE, id="none: it has ended"),
    pytest.param({"state": "waiting"}, None, E.QUEUED, id="waiting"),
    pytest.param({"state": "starting", "since": 5.0}, None, E.QUEUED, id="Ray makes its places"),
    pytest.param({"state": "active", "since": 5.0}, None, E.PLACED, id="active"),
    pytest.param({"state": "recovering", "since": 5.0}, 5.0, E.PLACED, id="it lost a machine"),
    pytest.param({"state": "active", "leaves": NOTICE}, None, E.NOTICED, id="under notice"),
    pytest.param(
        {"state": "active", "leaves": {**NOTICE, "at": None}}, None, E.PLACED, id="once it is idle"
    ),
    pytest.param({"state": "active", "leaves": None}, 0.0, E.PLACED, id="an older manager's"),
    pytest.param(
        {"state": "active", "since": 9.0}, 5.0, E.QUEUED, id="other places than it began with"
    ),
    pytest.param(
        {"state": "waiting", "leaves": NOTICE}, 5.0, E.QUEUED, id="no places, so nothing to leave"
    ),
]


@pytest.mark.parametrize(("document", "since", "event"), DOCUMENTS)
def test_what_a_document_says(
    document: Mapping[str, Any] | None, since: float | None, event: JobEvent
) -> None:
    assert event_of(document, since) is event


WORDS = [
    pytest.param(
        {"leaves": NOTICE},
        "virtual cluster a has to leave its places to b in 10 s: its project has less "
        "(reclaim-quota)",
        "preempted by b: its project has less (reclaim-quota)",
        id="a notice",
    ),
    pytest.param(
        {"leaves": None, "stopped": STOPPED},
        "virtual cluster a has lost its places to b: its project has less (reclaim-quota)",
        "preempted by b: its project has less (reclaim-quota)",
        id="a notice that was missed",
    ),
    pytest.param(
        {"leaves": {**NOTICE, "claimant": None, "rule": "stale-gang", "reason": "it lacks nodes"}},
        "virtual cluster a has to leave its places in 10 s: it lacks nodes (stale-gang)",
        "preempted: it lacks nodes (stale-gang)",
        id="no claimant",
    ),
    pytest.param(
        {"reason": "it needs 1 CPU"},
        "virtual cluster a has lost its places: it needs 1 CPU",
        "preempted: it needs 1 CPU",
        id="a manager that does not say for whom",
    ),
]


@pytest.mark.parametrize(("document", "told", "last"), WORDS)
def test_the_log_says_for_whom_and_how_long(
    document: Mapping[str, Any], told: str, last: str
) -> None:
    found = Preemption.of(document)
    assert (found.told("a", 100.0), str(found)) == (told, last)
