"""`fedpilot queue explain`: why a workload waits or must leave, and what would help."""

from __future__ import annotations

from typing import Any

import pytest

from cluster_documents import NOW, Document, event
from fedpilot.fabric.cli.terminal.queue_reasons import queue_sentences
from fedpilot.fabric.errors import NoSuchCluster
from queue_documents import pending, queue, two_teams, workload


def explained(name: str, *events: Document, document: Document | None = None) -> str:
    return " ".join(queue_sentences(document or two_teams(), name, events, NOW))


def waits(rule: str, *, quota: float = 4, share: float = 4, **changes: Any) -> Document:
    """A waiting workload of 2 GPUs in a project that holds 3."""
    document = two_teams()
    document["queues"] = [
        queue("vision", quota={"GPU": quota}, fairshare={"GPU": share}, allocated={"GPU": 3})
    ]
    document["workloads"] = [
        workload("a", "vision", 1, preemptible=False),
        workload("b", "vision", 2),
        workload("c", "speech", 4),
        pending("w", "vision", rule, "because of it", **changes),
    ]
    return document


@pytest.mark.parametrize(
    ("document", "told"),
    [
        pytest.param(
            waits("limit"),
            [
                "1st in line, for 1 min 30 s now: because of it.",
                "the end of b (4 CPU, 2 GPU) or a (4 CPU, 1 GPU); or a higher limit of vision",
                "`fedpilot queue apply FILE`",
            ],
            id="a limit",
        ),
        pytest.param(
            waits("nonpreemptible-quota"),
            ["the end of a (4 CPU, 1 GPU); a higher quota of vision", "--preemptible"],
            id="non-preemptible work above quota",
        ),
        pytest.param(
            waits("no-room"),
            [
                "Project vision holds 3 GPU, of a quota of 4 GPU and a fair share of 4 GPU now; "
                "with the 2 GPU of w it would be above its fair share.",
                "the end of c (4 CPU, 4 GPU), b (4 CPU, 2 GPU) or a (4 CPU, 1 GPU)",
                "a higher quota of vision, which would let it claim",
            ],
            id="no room, above the share",
        ),
        pytest.param(
            waits("no-room", share=6),
            ["it would be above its quota, within its fair share."],
            id="no room, within the share",
        ),
        pytest.param(waits("kept-free"), ["waited longer"], id="machines are kept free"),
        pytest.param(waits("may-come"), ["which may come"], id="machines may come"),
        pytest.param(waits("never"), ["smaller nodes, another --pool"], id="it fits nowhere"),
    ],
)
def test_a_waiting_workload_has_its_rule_and_what_would_help(
    document: Document, told: list[str]
) -> None:
    said = explained("w", document=document)
    for each in told:
        assert each in said


def test_within_quota_no_higher_quota_would_help() -> None:
    said = explained("w", document=waits("no-room", quota=8))
    assert "it would stay within its quota" in said
    assert "higher quota" not in said


def test_an_unlimited_quota_is_not_compared() -> None:
    document = waits("no-room")
    document["queues"][0]["quota"]["GPU"] = None
    assert "quota" not in explained("w", document=document)


def test_a_claimant_says_whose_places_it_gets_and_when() -> None:
    said = explained("asr")
    assert "it gets the places of train-3 as soon as they have left" in said
    assert "train-3 must leave by" in said
    assert "in 8 s at the latest" in said
    assert "No other workload gets these places" in said
    assert "What would help" not in said


def test_a_workload_under_notice_says_for_whom_and_when() -> None:
    said = explained("train-3", event("train-3", "active"))
    assert "train-3 holds 4 CPU, 2 GPU in project vision" in said
    assert "in 8 s, for asr. reclaim-quota: speech stays within its quota." in said
    assert "old place in line" in said


def test_a_workload_that_moves_says_that_it_goes_on_at_once() -> None:
    document = two_teams()
    (found,) = (each for each in document["workloads"] if each["id"] == "train-3")
    found["relocates"] = True
    said = explained("train-3", document=document)
    assert "it goes on at once at other places" in said
    assert "old place in line" not in said


def test_a_stopped_workload_says_that_it_ran() -> None:
    stopped = {**event("train-4", "stopped"), "reason": "it left for asr; reclaim-quota: above"}
    said = explained("train-4", stopped)
    assert "It ran before, and kept its place in line" in said
    assert "it left for asr; reclaim-quota: above" in said


@pytest.mark.parametrize(
    ("preemptible", "told"),
    [(True, "preemptible: it may be stopped"), (False, "it is stopped for no other work")],
)
def test_a_running_workload_says_whether_it_may_be_stopped(preemptible: bool, told: str) -> None:
    document = two_teams()
    document["workloads"] = [workload("w", "vision", preemptible=preemptible)]
    assert told in explained("w", document=document)


def test_those_that_left_for_it_are_named() -> None:
    left = [
        {**event("a", "stopped"), "reason": "it left for tts; reclaim-quota: above"},
        {**event("b", "stopped"), "reason": "it left for tts-2; reclaim-quota: above"},
        {**event("a", "stopped"), "reason": "it left for tts; preempt-priority: lower"},
    ]
    assert "1 workload left for it: a." in explained("tts", *left)
    assert "left for it" not in explained("tt", *left, event("tt", "ended"))


def test_one_that_has_ended_says_how() -> None:
    assert explained("old", event("old", "ended")).startswith("old ended")


def test_one_that_never_was_is_refused_with_those_that_are() -> None:
    with pytest.raises(NoSuchCluster, match="train-1"):
        explained("nope")
