"""An agent's link to a runner: tensors cross as blobs, errors arrive as themselves."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from fedpilot.fabric import GangTimeout
from fedpilot.mediator import LinkedSite, Payload, Refusal, SiteLost, WorkFailed
from fedpilot.mediator.agent.runner.link import OrderTensors, RunnerLink
from fedpilot.mediator.agent.runner.process import (
    RunnerProcess,
)
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.references import Keeping
from real_ray import eventually
from served_runners import SOON_S, FakeRunner


class Linked:
    """A link to a fake runner, and the blobs that the two share."""

    def __init__(self, runner: FakeRunner) -> None:
        self.runner = runner
        store = BlobStore(runner.folder / "blobs", 1 << 30)
        self.link = RunnerLink(
            RunnerProcess(runner.folder), OrderTensors(Keeping(store, discard=True))
        )

    def ask(self, payload: Payload, key: str = "k") -> Future[Payload]:
        return self.link.ask("work", payload, key=key, round_number=3, purpose="training")

    @property
    def blobs(self) -> list[str]:
        found = (path.name for path in (self.runner.folder / "blobs").iterdir())
        return sorted(name for name in found if not name.startswith("."))


@pytest.fixture
def linked(runner: FakeRunner) -> Iterator[Linked]:
    made = Linked(runner)
    yield made
    made.link.close()


WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}


def test_tensors_go_there_and_back_and_leave_nothing(linked: Linked) -> None:
    runner = linked.runner
    runner.make = lambda payload: Payload(
        kind="doubled", header=payload.header, tensors={"w": payload.tensors["w"] * 2}
    )
    payload = Payload(kind="round", header={"round": 3, "ü": [1.5, None]}, tensors=WEIGHTS)
    answer = linked.ask(payload).result(SOON_S)
    assert (answer.kind, answer.header) == ("doubled", payload.header)
    np.testing.assert_array_equal(answer.tensors["w"], WEIGHTS["w"] * 2)
    (asked,) = runner.orders
    assert (asked.round, asked.purpose, asked.verb) == (3, "training", "work")
    del answer  # whose blob stays as long as its tensors are used
    eventually(lambda: linked.blobs == [], SOON_S, "no blob is left")


def test_an_answer_may_be_what_was_asked(linked: Linked) -> None:
    payload = Payload(kind="echo", tensors=WEIGHTS)
    answers = [linked.ask(payload, str(number)) for number in range(20)]
    for answer in answers:
        np.testing.assert_array_equal(answer.result(SOON_S).tensors["w"], WEIGHTS["w"])
    del answer, answers
    gc.collect()  # futures and their callbacks are cycles
    eventually(lambda: linked.blobs == [], SOON_S, "no blob is left")


def test_errors_come_back_as_themselves(linked: Linked) -> None:
    def refuse(payload: Payload) -> Payload:
        raise GangTimeout("g", 2.0, "others hold it")

    linked.runner.make = refuse
    with pytest.raises(GangTimeout, match="others hold it"):
        linked.ask(Payload(kind="x")).result(SOON_S)

    def break_down(payload: Payload) -> Payload:
        raise ZeroDivisionError("by zero")

    linked.runner.make = break_down
    with pytest.raises(WorkFailed, match="site paris: ZeroDivisionError: by zero"):
        linked.ask(Payload(kind="x")).result(SOON_S)


def test_what_cannot_be_sent_fails_alone(linked: Linked) -> None:
    with pytest.raises(Exception, match="JSON"):
        linked.ask(Payload(kind="x", header={"x": object()})).result(SOON_S)
    assert linked.ask(Payload(kind="x")).result(SOON_S).kind == "x"


def test_a_refusal_is_no_failure(linked: Linked) -> None:
    from fedpilot.mediator import GangRequest

    linked.runner.make = lambda payload: Payload(kind="refused", header={"reason": "full"})
    site = LinkedSite("paris", linked.link)
    asked = site.prepare(GangRequest(name="g", resources={"CPU": 1.0})).result(SOON_S)
    assert asked == Refusal("paris", "full")


def test_a_runner_that_dies_fails_what_is_open(linked: Linked) -> None:
    linked.runner.make = None
    answers = [linked.ask(Payload(kind="x", tensors=WEIGHTS), str(n)) for n in range(3)]
    eventually(lambda: len(linked.runner.orders) == 3, SOON_S, "they are at work")
    linked.runner.die()
    for answer in answers:
        assert isinstance(answer.exception(SOON_S), SiteLost)
    assert isinstance(linked.ask(Payload(kind="x"), "new").exception(SOON_S), SiteLost)
    assert linked.blobs == []


def test_closing_fails_what_is_open_and_ends_the_runner(linked: Linked) -> None:
    linked.runner.make = None
    answer = linked.ask(Payload(kind="x"))
    eventually(lambda: len(linked.runner.orders) == 1, SOON_S, "it is at work")
    linked.link.close("enough")
    linked.link.close()
    assert isinstance(answer.exception(SOON_S), SiteLost)
    assert isinstance(linked.ask(Payload(kind="x")).exception(SOON_S), SiteLost)
    eventually(lambda: linked.runner.ended == ["enough"], SOON_S, "the runner is told")


def test_events_are_told(linked: Linked) -> None:
    told: list[Payload] = []
    heard = threading.Event()

    def listen(payload: Payload) -> None:
        told.append(payload)
        heard.set()

    linked.link.listen(listen)
    linked.ask(Payload(kind="x")).result(SOON_S)
    event = pb.Happened(run="r", kind="worker_ready", header_json='{"worker": 1}')
    linked.runner.server.happened(event)
    assert heard.wait(SOON_S)
    assert told == [Payload(kind="worker_ready", header={"worker": 1})]
