"""MediatorClient: answers or errors of ours, in time; streams that neither lose nor repeat."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from fedpilot.mediator import Payload
from fedpilot.mediator.client.client import MediatorClient, Patience, RunFile
from fedpilot.mediator.errors import (
    BadRequest,
    MediatorError,
    MediatorFailed,
    MediatorUnreachable,
    NoSuchRun,
    NoSuchSite,
    NotPermitted,
    QuestionFailed,
    RequestRefused,
    RunExists,
    SiteUnreachable,
)
from fedpilot.mediator.identity import Authority, CertificateExpired, Credentials, Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.questions import whole_answer
from fedpilot.mediator.wire.rpc import LARGEST_MESSAGE
from user_service import Served, a_run, a_site, serving

PATIENCE = Patience(
    call_s=5, work_s=5, again_s=2, cut_s=5, stream_s=5, first_pause_s=0.01, longest_pause_s=0.02
)
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mediator")) as served:
        yield served


@pytest.fixture
def served(server: Served) -> Served:
    server.service.__init__()  # type: ignore[misc]
    return server


@pytest.fixture
def client(served: Served) -> Iterator[MediatorClient]:
    with connected(served) as made:
        yield made


def connected(served: Served, **changes: float) -> MediatorClient:
    patience = Patience(**{**{n: getattr(PATIENCE, n) for n in Patience.__slots__}, **changes})
    return MediatorClient(served.address, Credentials.read(served.credentials), patience=patience)


def asked(served: Served, method: str) -> int:
    return sum(each == method for each, _ in served.service.asked)


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        pytest.param(Code.PERMISSION_DENIED, NotPermitted, 3, id="a role that may not"),
        pytest.param(Code.UNAUTHENTICATED, NotPermitted, 3, id="a revoked certificate"),
        pytest.param(Code.NOT_FOUND, NoSuchRun, 2, id="an unknown run"),
        pytest.param(Code.ALREADY_EXISTS, RunExists, 2, id="an id that is taken"),
        pytest.param(Code.INVALID_ARGUMENT, BadRequest, 2, id="nonsense"),
        pytest.param(Code.FAILED_PRECONDITION, RequestRefused, 3, id="not in this state"),
        pytest.param(Code.RESOURCE_EXHAUSTED, RequestRefused, 3, id="no room"),
        pytest.param(Code.UNIMPLEMENTED, RequestRefused, 3, id="an older mediator"),
        pytest.param(Code.INTERNAL, MediatorFailed, 1, id="a bug in the mediator"),
        pytest.param(Code.DEADLINE_EXCEEDED, MediatorUnreachable, 4, id="no answer in time"),
    ],
)
def test_a_status_becomes_an_error_with_its_reason_and_exit_code(
    served: Served,
    client: MediatorClient,
    code: grpc.StatusCode,
    kind: type[MediatorError],
    exit_code: int,
) -> None:
    served.service.fails = [("show_run", code, "because \x1b[31mof that")]
    with pytest.raises(kind) as caught:
        client.show_run("base")
    assert type(caught.value) is kind
    assert kind.exits_with == exit_code
    assert "\x1b" not in str(caught.value)
    if code is not Code.DEADLINE_EXCEEDED:
        assert "of that" in str(caught.value)


def test_an_unknown_site_is_told_apart_from_an_unknown_run(client: MediatorClient) -> None:
    with pytest.raises(NoSuchSite, match="paris"):
        client.change_site("paris", "cordon")


def test_a_site_that_cannot_be_reached_is_not_the_mediator(
    served: Served, client: MediatorClient
) -> None:
    served.service.sites["paris"] = a_site("paris", state="lost")
    with pytest.raises(SiteUnreachable, match="paris cannot be reached: nothing was heard"):
        client.run_at_site("paris", ["cluster", "list"])


def test_an_answer_that_is_no_json_object_is_the_mediators_failure(
    served: Served, client: MediatorClient
) -> None:
    served.service.runs["base"] = [1, 2]  # type: ignore[assignment]
    with pytest.raises(MediatorFailed, match="no JSON object"):
        client.show_run("base")


# -- reaching it ----------------------------------------------------------------------------------


def test_the_mediator_sees_who_asks(served: Served, client: MediatorClient) -> None:
    client.list_runs()
    assert served.service.peers == ["alice"]


def test_a_mediator_that_is_not_there_is_given_up_within_the_budget(served: Served) -> None:
    credentials = Credentials.read(served.credentials)
    patience = Patience(again_s=0.3, first_pause_s=0.01, longest_pause_s=0.05)
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
        MediatorClient(served.address, credentials, patience=Patience(again_s=0)) as client,
        pytest.raises(MediatorUnreachable),
    ):
        client.list_runs()
    assert served.service.asked == []


def test_an_expired_certificate_is_told_before_anything_is_sent(
    served: Served, tmp_path: Path
) -> None:
    then = time.time() - 1000
    old = Authority.create(tmp_path, now=then).issue("bob", Role.VIEWER, now=then, valid_s=500)
    with pytest.raises(CertificateExpired, match="bob"):
        MediatorClient(served.address, old)


# -- asking again ---------------------------------------------------------------------------------


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


# -- following ------------------------------------------------------------------------------------


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


def test_a_log_goes_on_where_it_was_cut(served: Served, client: MediatorClient) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.logs["base"] = "warning: slow\n"
    served.service.cuts = [4, 9]
    assert "".join(client.run_log("base", follow=True)) == "warning: slow\n"


# -- files and questions --------------------------------------------------------------------------


def test_a_file_comes_whole(served: Served, client: MediatorClient) -> None:
    data = bytes(range(256)) * 20
    served.service.files["base"] = {"model.safetensors": data}
    (file,) = client.list_files("base")
    out = io.BytesIO()
    client.read_file("base", file, out)
    assert out.getvalue() == data


@pytest.mark.parametrize("said", [10, 4000, 6000])
def test_a_file_of_another_size_than_was_said_is_refused(
    served: Served, client: MediatorClient, said: int
) -> None:
    served.service.files["base"] = {"a": bytes(5000)}
    with pytest.raises(MediatorFailed, match=f"should have {said} bytes"):
        client.read_file("base", RunFile(path="a", size=said), io.BytesIO())


def test_a_question_takes_tensors_there_and_back(served: Served, client: MediatorClient) -> None:
    def echo(header: dict[str, object], tensors: bytes) -> pb.AskRunReply:
        done = pb.Done(kind="node", header_json=json.dumps({"got": header}))
        return pb.AskRunReply(done=done, tensors=tensors)

    served.service.answers["node.train"] = echo
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    question = Payload(kind="node.train", header={"client": "c"}, tensors={"w": weights})
    answer = client.ask_run("base", question)
    assert answer.header == {"got": {"client": "c"}}
    np.testing.assert_array_equal(answer.tensors["w"], weights)


def test_what_fails_in_the_run_says_so(served: Served, client: MediatorClient) -> None:
    failure = pb.Failure(kind="fedpilot.federated.errors:ClientFailed", message="c failed")
    served.service.answers["node.train"] = lambda header, tensors: pb.AskRunReply(failure=failure)
    with pytest.raises(QuestionFailed, match="run base: ClientFailed: c failed"):
        client.ask_run("base", Payload(kind="node.train", header={}))


def test_tensors_may_be_larger_than_any_message(served: Served, client: MediatorClient) -> None:
    def echo(header: dict[str, object], tensors: bytes) -> pb.AskRunReply:
        return pb.AskRunReply(done=pb.Done(kind="node", header_json="{}"), tensors=tensors)

    served.service.answers["node.train"] = echo
    served.service.piece_bytes = 1 << 20
    weights = np.arange(LARGEST_MESSAGE // 4, dtype=np.float64)
    answer = client.ask_run("base", Payload(kind="node.train", tensors={"w": weights}))
    np.testing.assert_array_equal(answer.tensors["w"], weights)


@pytest.mark.parametrize(
    ("came", "said"),
    [
        pytest.param(b"abc", "3 came", id="too few bytes"),
        pytest.param(b"abcdefgh", "8 came", id="too many"),
        pytest.param(b"abcdeg", "those that came are", id="others"),
    ],
)
def test_an_answer_with_other_tensors_than_it_says_is_refused(
    tmp_path: Path, came: bytes, said: str
) -> None:
    blob = pb.Blob(digest=hashlib.sha256(b"abcdef").hexdigest(), size=6)
    first = pb.AskRunReply(done=pb.Done(kind="node", header_json="{}", blob=blob))
    with pytest.raises(MediatorFailed, match=said):
        whole_answer([first, pb.AskRunReply(tensors=came)], tmp_path / "answer")


def test_an_answer_that_never_begins_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(MediatorFailed, match="before it had begun"):
        whole_answer([], tmp_path / "answer")


def test_sites_come_in_the_order_of_their_names(served: Served, client: MediatorClient) -> None:
    served.service.sites = {name: a_site(name) for name in ("rome", "oslo", "paris")}
    assert [site["name"] for site in client.list_sites()] == ["oslo", "paris", "rome"]
    with pytest.raises(NoSuchSite, match="there are: oslo, paris, rome"):
        client.show_site("berlin")


def test_runs_are_fetched_in_pages_the_first_submitted_first(
    served: Served, client: MediatorClient
) -> None:
    served.service.runs = {name: a_run(name) for name in "abcde"}
    served.service.page = 2
    assert [run["run_id"] for run in client.list_runs()] == list("abcde")
    assert asked(served, "list_runs") == 3
    found, more = client.newest_runs(3)
    assert ([run["run_id"] for run in found], more) == (["c", "d", "e"], 2)
    assert client.newest_runs(5)[1] == 0


def test_only_one_site_that_is_shown_comes_with_its_data(
    served: Served, client: MediatorClient
) -> None:
    served.service.sites = {name: a_site(name, data={"scans": {}}) for name in ("rome", "oslo")}
    assert all("data" not in site for site in client.list_sites())
    assert client.show_site("rome")["data"] == {"scans": {}}
