"""Calls end in time; streams neither lose nor repeat, however the link is."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from fedpilot.mediator.client.client import MediatorClient
from fedpilot.mediator.client.retrying_stub import ClientTimeouts
from fedpilot.mediator.errors import (
    MediatorUnreachable,
    NoSuchRun,
    NotPermitted,
)
from fedpilot.mediator.identity import Authority, Credentials, Role
from user_service import PATIENCE, Served, a_run, a_site, asked, connected

Code = grpc.StatusCode


def test_a_mediator_that_is_not_there_is_given_up_within_the_budget(served: Served) -> None:
    credentials = Credentials.read(served.credentials)
    patience = ClientTimeouts(again_s=0.3, first_pause_s=0.01, longest_pause_s=0.05)
    begun = time.monotonic()
    with (
        MediatorClient("127.0.0.1:1", credentials, patience=patience) as client,
        pytest.raises(MediatorUnreachable, match=r"127\.0\.0\.1:1 cannot be reached.*refused"),
    ):
        client.list_runs()
    assert time.monotonic() - begun < 5


def test_credentials_of_another_authority_are_not_trusted(served: Served, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", now=time.time())
    credentials = other.issue("mallory", Role.ADMIN, now=time.time())
    with (
        MediatorClient(served.address, credentials, patience=ClientTimeouts(again_s=0)) as client,
        pytest.raises(MediatorUnreachable),
    ):
        client.list_runs()
    assert served.service.asked == []


def test_a_question_that_may_be_asked_twice_is_asked_again(
    served: Served, client: MediatorClient
) -> None:
    served.service.fails = [("list_runs", Code.UNAVAILABLE, "the link is cut")] * 3
    served.service.runs["base"] = a_run("base")
    assert [run["run_id"] for run in client.list_runs()] == ["base"]
    assert asked(served, "list_runs") == 4


def test_a_mediator_that_ends_while_it_is_asked_is_asked_again_when_it_is_back(
    served: Served, client: MediatorClient
) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.say("base", {"event": "run_finished"})
    ended = Code.CANCELLED, "CANCELLED"
    served.service.fails = [("show_run", *ended), ("follow_run", *ended)]
    assert [each.event["event"] for each in client.follow_run("base")] == ["run_finished"]
    served.service.fails = [("run_at_site", *ended)]
    with pytest.raises(MediatorUnreachable, match="it ended while it was asked"):
        client.run_at_site("paris", ["job", "stop", "a"])


def test_submitting_again_after_a_lost_answer_submits_once(
    served: Served, client: MediatorClient
) -> None:
    served.service.fails = [("submit", Code.UNAVAILABLE, "the link is cut")]
    found = client.submit("base", "a: 1", name="a")
    assert found["run_id"] == "base"
    assert [each.run for each in served.service.submissions] == ["base"]
    assert asked(served, "submit") == 2


def test_a_command_at_a_site_is_not_run_twice(served: Served, client: MediatorClient) -> None:
    served.service.sites["paris"] = a_site("paris")
    served.service.fails = [("run_at_site", Code.UNAVAILABLE, "the link is cut")]
    with pytest.raises(MediatorUnreachable):
        client.run_at_site("paris", ["job", "stop", "a"])
    assert asked(served, "run_at_site") == 1


def test_a_refusal_is_not_asked_again(served: Served, client: MediatorClient) -> None:
    served.service.fails = [("list_runs", Code.PERMISSION_DENIED, "no")]
    with pytest.raises(NotPermitted):
        client.list_runs()
    assert asked(served, "list_runs") == 1


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param([], id="in one go"),
        pytest.param([0, 0, 0], id="cut before anything comes"),
        pytest.param([1, 1, 1, 1], id="cut after every event"),
        pytest.param([3, 0, 2], id="cut here and there"),
    ],
)
def test_events_come_once_each_and_in_order_however_the_link_is(
    served: Served, client: MediatorClient, cuts: list[int]
) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.say("base", *({"event": "round_finished", "round": n} for n in range(1, 7)))
    served.service.cuts = list(cuts)
    followed = list(client.follow_run("base"))
    assert [each.number for each in followed] == [1, 2, 3, 4, 5, 6]
    assert [each.event["round"] for each in followed] == [1, 2, 3, 4, 5, 6]


def test_who_follows_is_told_once_that_the_link_is_cut(served: Served) -> None:
    told: list[str] = []
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.say("base", {"event": "run_started"})
    served.service.cuts = [0, 0, 0]
    with MediatorClient(
        served.address,
        Credentials.read(served.credentials),
        patience=PATIENCE,
        on_cut=told.append,
    ) as client:
        assert len(list(client.follow_run("base"))) == 1
    assert told == ["the link is cut"]


def test_a_stream_that_ends_while_the_run_goes_on_is_asked_for_again(
    served: Served, client: MediatorClient
) -> None:
    service = served.service
    service.runs["base"] = a_run("base")
    service.say("base", {"event": "run_started"})

    def restarted() -> None:
        service.say("base", {"event": "run_finished"})
        service.end("base", "finished")

    service.cuts, service.on_cut = [1], restarted
    followed = list(client.follow_run("base"))
    assert [each.event["event"] for each in followed] == ["run_started", "run_finished"]


def test_a_stream_without_news_is_renewed_at_its_deadline(served: Served) -> None:
    served.service.runs["base"] = a_run("base")
    with connected(served, stream_s=0.2) as client, ThreadPoolExecutor(1) as threads:
        events = client.follow_run("base")
        first = threads.submit(next, events)
        until = time.monotonic() + 5
        while asked(served, "follow_run") < 2 and time.monotonic() < until:
            time.sleep(0.01)
        served.service.say("base", {"event": "run_started"})
        assert first.result(60).number == 1
    assert asked(served, "follow_run") >= 2


def test_following_an_unknown_run_ends_at_once(client: MediatorClient) -> None:
    with pytest.raises(NoSuchRun):
        list(client.follow_run("nobody"))


def test_a_mediator_that_stays_away_ends_the_following(served: Served) -> None:
    served.service.runs["base"] = a_run("base")
    served.service.say("base", {"event": "run_started"})
    with connected(served, cut_s=0.2, again_s=0.0) as client:
        served.service.cuts = [1] + [0] * 1000
        followed = client.follow_run("base")
        assert next(followed).number == 1
        with pytest.raises(MediatorUnreachable):
            list(followed)
