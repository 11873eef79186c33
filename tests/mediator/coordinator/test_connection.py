"""A coordinator's end of its conversation: one question once, and an end that nobody misses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import numpy as np
import pytest

from fedpilot.mediator import (
    GangRequest,
    LinkedSite,
    Payload,
    Promise,
    ReservationRefused,
    SiteLost,
)
from fedpilot.mediator.coordinator import connection as coordinator_link, reply_blobs
from fedpilot.mediator.coordinator.connection import LONGEST_HAPPENED, MediatorConnection
from fedpilot.mediator.core.health import SiteState
from fedpilot.mediator.core.links import LinkUse
from fedpilot.mediator.core.traffic import Direction, Flow
from fedpilot.mediator.errors import AnswerUnreadable, MediatorUnreachable, WorkFailed
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.blob import LARGEST_BLOB
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.failures import told
from fedpilot.mediator.wire.local_socket import COORDINATORS_SOCKET, local_address
from fedpilot.mediator.wire.messages import (
    PROTOCOL,
    SiteName,
    SiteStanding,
    done_message,
    standing_message,
)
from fedpilot.mediator.wire.rpc import COORDINATOR, LARGEST_MESSAGE, handler

SOON_S = 60.0


class Mediator:
    """The other end: what came, and a queue of what to say."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[pb.FromCoordinator] = []
        self.say: Queue[pb.ToCoordinator | None] = Queue()
        self.blobs = BlobStore(folder / "blobs", LARGEST_BLOB)

    def session(self, messages: Iterator[pb.FromCoordinator], context: Any) -> Any:
        def hear() -> None:
            with suppress(grpc.RpcError):
                for message in messages:
                    self.heard.append(message)
            self.say.put(None)

        futures.ThreadPoolExecutor(1).submit(hear)
        while (message := self.say.get()) is not None:
            yield message

    def of(self, kind: str) -> list[Any]:
        return [getattr(m, kind) for m in self.heard if m.WhichOneof("content") == kind]

    def stands(self, **states: SiteState) -> None:
        sites = [
            standing_message(SiteStanding(name=SiteName(name), state=state, reason="so it is"))
            for name, state in states.items()
        ]
        self.say.put(pb.ToCoordinator(sites=pb.Sites(sites=sites)))

    def answer(self, site: str, order: pb.Order, **result: Any) -> None:
        answer = pb.SiteAnswer(site=site, answer=pb.Answer(id=order.id, **result))
        self.say.put(pb.ToCoordinator(answer=answer))


def soon(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SOON_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


@pytest.fixture
def mediator(tmp_path: Path) -> Iterator[Mediator]:
    there = Mediator(tmp_path)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler(COORDINATOR, there),))
    with local_address(tmp_path, COORDINATORS_SOCKET) as local:
        server.add_insecure_port(local)
        server.start()
        yield there
        there.say.put(None)
        server.stop(0).wait()


@pytest.fixture
def broken() -> list[str]:
    return []


@pytest.fixture
def connection(
    mediator: Mediator, tmp_path: Path, broken: list[str]
) -> Iterator[MediatorConnection]:
    mediator.stands(paris=SiteState.READY, rome=SiteState.JOINING)
    with MediatorConnection(tmp_path, "run", on_broken=broken.append) as made:
        yield made


def test_it_attaches_first_and_knows_the_sites(
    mediator: Mediator, connection: MediatorConnection
) -> None:
    (attach,) = soon(lambda: mediator.of("attach"))
    assert (attach.run, attach.protocol) == ("run", PROTOCOL)
    states = {name: each.state for name, each in connection.sites.items()}
    assert states == {"paris": SiteState.READY, "rome": SiteState.JOINING}


def test_an_order_and_its_answer_travel_with_their_tensors(
    mediator: Mediator, connection: MediatorConnection
) -> None:
    tensors = {"w": np.arange(5.0)}
    asked = connection.link("paris").ask(
        "work", Payload(kind="round", tensors=tensors), key="k", round_number=3, purpose="training"
    )
    (sent,) = soon(lambda: mediator.of("order"))
    assert (sent.site, sent.order.round, sent.order.purpose) == ("paris", 3, "training")
    assert mediator.blobs.size(sent.order.blob.digest) == sent.order.blob.size
    answer = Payload(kind="done", header={"n": 1}, tensors={"w": tensors["w"] * 2})
    mediator.answer("paris", sent.order, done=done_message(answer, mediator.blobs))
    found = asked.result(SOON_S)
    np.testing.assert_array_equal(found.tensors["w"], 2 * tensors["w"])
    (confirmed,) = soon(lambda: mediator.of("withdraw"))
    assert (confirmed.site, confirmed.id.key) == ("paris", "k")
    soon(lambda: mediator.blobs.size(sent.order.blob.digest) is None)


def test_one_key_is_asked_once_while_it_is_open(
    mediator: Mediator, connection: MediatorConnection
) -> None:
    link = connection.link("paris")
    first, second = (link.ask("work", Payload(kind="round"), key="k") for _ in range(2))
    other = connection.link("rome").ask("work", Payload(kind="round"), key="k")
    orders = soon(lambda: len(mediator.of("order")) == 2 and mediator.of("order"))
    assert {each.site for each in orders} == {"paris", "rome"}
    done = pb.Done(kind="done", header_json="{}")
    mediator.answer("paris", orders[0].order, done=done)
    assert first.result(SOON_S) == second.result(SOON_S)
    assert not other.done()
    again = link.ask("work", Payload(kind="round"), key="k")
    soon(lambda: len(mediator.of("order")) == 3)
    assert not again.done()


def test_failures_come_as_what_they_were(
    mediator: Mediator, connection: MediatorConnection
) -> None:
    link = connection.link("paris")
    lost, strange, bad = (link.ask("work", Payload(kind="x"), key=key) for key in "abc")
    orders = soon(lambda: len(mediator.of("order")) == 3 and mediator.of("order"))
    mediator.answer("paris", orders[0].order, failure=told(SiteLost("paris", "silence")))
    mediator.answer("paris", orders[1].order, failure=pb.Failure(kind="os:error", message="m"))
    mediator.answer("paris", orders[2].order, done=pb.Done(kind="done", header_json="{"))
    assert isinstance(lost.exception(SOON_S), SiteLost)
    assert isinstance(strange.exception(SOON_S), WorkFailed)
    found = bad.exception(SOON_S)
    assert isinstance(found, AnswerUnreadable)
    assert found.kind == "BadPayload"


def test_a_linked_site_speaks_through_it(
    mediator: Mediator, connection: MediatorConnection
) -> None:
    site = LinkedSite("paris", connection.link("paris"))
    promised = site.prepare(GangRequest(name="gang", resources={"CPU": 1.0}))
    (sent,) = soon(lambda: mediator.of("order"))
    assert (sent.order.verb, sent.order.id.key) == ("prepare", "prepare")
    done = pb.Done(kind="promised", header_json='{"vnodes":3}')
    mediator.answer("paris", sent.order, done=done)
    assert promised.result(SOON_S) == Promise("paris", 3)


@pytest.mark.parametrize("state", [SiteState.SUSPECT, SiteState.JOINING])
def test_sites_that_may_be_ready_in_a_moment_are_waited_for_where_that_is_wanted(
    mediator: Mediator, connection: MediatorConnection, state: SiteState
) -> None:
    mediator.stands(rome=state)
    soon(lambda: connection.sites.get(SiteName("rome")))
    assert [e.name for e in connection.wait_for_sites(1, timeout_s=SOON_S)] == ["paris"]
    late = connection.wait_for_sites(1, timeout_s=0.05, settled=True)
    assert [each.name for each in late] == ["paris"]
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(connection.wait_for_sites, 1, timeout_s=SOON_S, settled=True)
        mediator.stands(rome=SiteState.READY)
        assert [each.name for each in waiting.result(SOON_S)] == ["paris", "rome"]
    mediator.stands(rome=SiteState.LOST)
    soon(lambda: connection.sites[SiteName("rome")].state is SiteState.LOST)
    found = connection.wait_for_sites(1, timeout_s=SOON_S, settled=True)
    assert [each.name for each in found] == ["paris"]


def test_enough_sites_are_waited_for(mediator: Mediator, connection: MediatorConnection) -> None:
    assert [each.name for each in connection.wait_for_sites(1, ["paris"], SOON_S)] == ["paris"]
    mediator.stands(rome=SiteState.READY)
    found = connection.wait_for_sites(2, timeout_s=SOON_S)
    assert [each.name for each in found] == ["paris", "rome"]
    assert [e.name for e in connection.wait_for_sites(1, among=["rome"])] == ["rome"]
    with pytest.raises(ReservationRefused) as caught:
        connection.wait_for_sites(3, ["oslo"], 0.05)
    assert caught.value.refusals == {
        "-": "3 sites are needed, 2 are ready",
        "oslo": "it has not joined",
    }


def test_changes_events_bytes_and_a_stop_are_passed_on(
    mediator: Mediator, connection: MediatorConnection
) -> None:
    changes: list[tuple[str, str]] = []
    heard: list[Payload] = []
    stops: list[str] = []
    connection.on_site_change(lambda each: changes.append((each.name, each.state)))
    connection.link("paris").listen(heard.append)
    connection.emit({"event": "run_started"})
    mediator.stands(rome=SiteState.LOST)
    happened = pb.Happened(run="run", kind="worker_ready", header_json='{"worker":1}')
    mediator.say.put(pb.ToCoordinator(happened=pb.SiteHappened(site="paris", happened=happened)))
    flow = pb.FlowBytes(round=1, site="paris", direction="to_site", purpose="training", bytes=9)
    used: list[LinkUse] = []
    connection.on_link_use = used.append
    took = pb.LinkSeconds(round=1, site="paris", bytes=9, seconds=2.5)
    mediator.say.put(pb.ToCoordinator(bytes=pb.Bytes(flows=[flow], links=[took])))
    mediator.say.put(pb.ToCoordinator(stop=pb.Stop(reason="by otto")))
    soon(lambda: connection._stop_reason)
    connection.on_stop(stops.append)  # said before anybody listened
    assert stops == ["by otto"]
    assert changes == [("rome", "lost")]
    assert [dict(each.header) for each in heard] == [{"worker": 1}]
    assert connection.drain_flows() == [(Flow(1, "paris", Direction.TO_SITE, "training"), 9)]
    assert connection.drain_flows() == []
    assert used == [LinkUse(1, "paris", 9, 2.5)]
    assert soon(lambda: mediator.of("event_json")) == ['{"event": "run_started"}']


def test_what_came_in_the_largest_message_from_outside_comes_through(
    mediator: Mediator, connection: MediatorConnection, broken: list[str]
) -> None:
    """Whatever is put round it on its way; otherwise one site would end every coordinator."""
    done = pb.Done(kind="done", header_json="x" * LARGEST_MESSAGE)
    answer = pb.Answer(id=pb.OrderId(run="run", key="nobody/asked"), done=done)
    said = pb.ToCoordinator(answer=pb.SiteAnswer(site="p" * 63, answer=answer))
    assert said.ByteSize() > LARGEST_MESSAGE
    mediator.say.put(said)
    mediator.stands(rome=SiteState.LOST)
    soon(lambda: connection.sites[SiteName("rome")].state is SiteState.LOST)
    assert broken == []


def test_whatever_a_site_says_the_conversation_goes_on(
    mediator: Mediator,
    connection: MediatorConnection,
    broken: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Payload] = []

    def listen(said: Payload) -> None:
        heard.append(said)
        raise TypeError("an unexpected keyword")

    connection.link("paris").listen(listen)
    for header in ('{"name":1}', "[", "{" + " " * LONGEST_HAPPENED + "}", '{"worker":2}'):
        happened = pb.Happened(run="run", kind="worker_ready", header_json=header)
        told = pb.SiteHappened(site="paris", happened=happened)
        mediator.say.put(pb.ToCoordinator(happened=told))
    mediator.stands(rome=SiteState.LOST)
    soon(lambda: connection.sites[SiteName("rome")].state is SiteState.LOST)
    assert [dict(each.header) for each in heard] == [{"name": 1}, {"worker": 2}]
    assert not broken
    said = " ".join(caplog.messages)
    assert "an event of site paris could not be handled" in said
    assert "cannot be read" in said
    assert "an event of site paris is too long" in said


def test_the_mediator_hears_that_it_lives_whatever_else_it_does(
    mediator: Mediator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_link, "ALIVE_S", 0.01)
    mediator.stands(paris=SiteState.READY)
    with MediatorConnection(tmp_path, "run"):
        soon(lambda: len(mediator.of("alive")) > 2)
        mediator.say.put(None)


def test_users_questions_are_answered_once(
    mediator: Mediator, connection: MediatorConnection
) -> None:
    request = pb.Request(id="7", kind="node.show", header_json='{"client":"c"}')
    mediator.say.put(pb.ToCoordinator(request=request))
    question = connection.questions.get(timeout=SOON_S)
    assert question.payload.header == {"client": "c"}
    question.answer(Payload(kind="node", header={"state": "virtual"}))
    (reply,) = soon(lambda: mediator.of("reply"))
    assert (reply.id, reply.done.header_json) == ("7", '{"state":"virtual"}')
    mediator.say.put(pb.ToCoordinator(request=pb.Request(id="8", kind="x", header_json="[")))
    soon(lambda: len(mediator.of("reply")) == 2)
    assert mediator.of("reply")[1].failure.kind.endswith(":BadPayload")


@pytest.mark.parametrize(
    ("room_bytes", "kept"),
    [
        pytest.param(1 << 30, 6, id="as many as there were, where there is room"),
        pytest.param(1_000, 2, id="the last ones, where there is not"),
    ],
)
def test_the_tensors_of_replies_stay_for_a_while(
    mediator: Mediator,
    connection: MediatorConnection,
    monkeypatch: pytest.MonkeyPatch,
    room_bytes: int,
    kept: int,
) -> None:
    monkeypatch.setattr(reply_blobs, "MOST_BYTES", room_bytes)
    monkeypatch.setattr(reply_blobs, "FEWEST", 2)
    for number in range(6):
        request = pb.Request(id=str(number), kind="node.train", header_json="{}")
        mediator.say.put(pb.ToCoordinator(request=request))
        model = {"w": np.full(1_000, number, np.float32)}
        connection.questions.get(timeout=SOON_S).answer(Payload(kind="done", tensors=model))
    replies = soon(lambda: len(found := mediator.of("reply")) == 6 and found)
    there = [connection.blobs.size(each.done.blob.digest) is not None for each in replies]
    assert there == [number >= 6 - kept for number in range(6)]


def test_when_the_conversation_breaks_whoever_waits_is_told(
    mediator: Mediator, connection: MediatorConnection, broken: list[str]
) -> None:
    asked = connection.link("paris").ask("work", Payload(kind="x"), key="k")
    mediator.say.put(None)
    assert isinstance(asked.exception(SOON_S), MediatorUnreachable)
    soon(lambda: broken)
    assert len(broken) == 1
    late = connection.link("paris").ask("work", Payload(kind="x"), key="l")
    assert isinstance(late.exception(SOON_S), MediatorUnreachable)
    with pytest.raises(ReservationRefused):
        connection.wait_for_sites(5)


def test_closing_it_is_no_breaking(
    mediator: Mediator, connection: MediatorConnection, broken: list[str]
) -> None:
    asked = connection.link("paris").ask("work", Payload(kind="x"), key="k")
    connection.close()
    connection.close()
    assert isinstance(asked.exception(SOON_S), MediatorUnreachable)
    assert broken == []


def test_a_mediator_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.mediator.coordinator.connection.CONNECT_S", 0.2)
    with pytest.raises(MediatorUnreachable, match=r"no word within 0\.2 s"):
        MediatorConnection(tmp_path, "run")


def test_a_folder_of_any_length_has_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    folder.mkdir(parents=True)
    with local_address(folder, COORDINATORS_SOCKET) as local:
        assert len(local) < 100
        path = Path(local.removeprefix("unix:"))
        path.touch()
        assert (folder / path.name).exists()
