"""MediatorClient: runs, files, questions and sites, as the mediator tells of them."""

from __future__ import annotations

import hashlib
import io
import json
import time
from pathlib import Path

import numpy as np
import pytest

from fedpilot.mediator import Payload
from fedpilot.mediator.client.client import MediatorClient, RunFile
from fedpilot.mediator.errors import (
    MediatorFailed,
    NoSuchSite,
    QuestionFailed,
)
from fedpilot.mediator.identity import Authority, CertificateExpired, Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.questions import whole_answer
from fedpilot.mediator.wire.rpc import LARGEST_MESSAGE
from user_service import Served, a_run, a_site, asked


def test_an_answer_that_is_no_json_object_is_the_mediators_failure(
    served: Served, client: MediatorClient
) -> None:
    served.service.runs["base"] = [1, 2]  # type: ignore[assignment]
    with pytest.raises(MediatorFailed, match="no JSON object"):
        client.show_run("base")


def test_the_mediator_sees_who_asks(served: Served, client: MediatorClient) -> None:
    client.list_runs()
    assert served.service.peers == ["alice"]


def test_an_expired_certificate_is_told_before_anything_is_sent(
    served: Served, tmp_path: Path
) -> None:
    then = time.time() - 1000
    old = Authority.create(tmp_path, now=then).issue("bob", Role.VIEWER, now=then, valid_s=500)
    with pytest.raises(CertificateExpired, match="bob"):
        MediatorClient(served.address, old)


def test_a_log_goes_on_where_it_was_cut(served: Served, client: MediatorClient) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.logs["base"] = "warning: slow\n"
    served.service.cuts = [4, 9]
    assert "".join(client.run_log("base", follow=True)) == "warning: slow\n"


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
