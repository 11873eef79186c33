"""Questions of users: every one is answered or fails once, whatever sites do."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedpilot.fabric.testing.fake_cluster import ManualClock
from fedpilot.federated.core.population.partitions.partition import UnknownClient
from fedpilot.federated.federation.remote.query_server import (
    NOT_TOLD,
    TELL_S,
    WORK_S,
    NotAnswered,
    QueryServer,
)
from fedpilot.mediator import Payload
from fedpilot.mediator.coordinator.connection import RunQuery

SOON_S = 60.0
SHOWN = {"state": "materialized", "worker": "", "reason": "", "samples": 3, "trail": []}


@dataclass
class Nodes:
    """Ten clients: the even ones are at site `quick`, the odd ones at `silent`."""

    round: int = 4
    orders: list[tuple[int, Payload]] = field(default_factory=list)
    open: list[Future[Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return 10

    def index_of(self, client_id: str) -> int:
        if not client_id.isdecimal():
            raise UnknownClient(client_id, "0 to 9")
        return int(client_id)

    def client_id(self, index: int) -> str:
        return str(index)

    def site_of(self, index: int) -> str:
        return "silent" if index % 2 else "quick"

    def why_there(self, index: int) -> str:
        return "so it is"

    def explain_assignment(self, index: int) -> Mapping[str, Any]:
        return {"sentences": [f"{index} may stay"]}

    def model_or(self, model: Any) -> tuple[str, dict[str, Any]]:
        return "key", {}

    def ask_node(self, index: int, order: Payload) -> Future[Payload]:
        self.orders.append((index, order))
        return self._answer(index, Payload(kind="done", header={"client": index}))

    def ask_shown(self, index: int) -> Future[Any]:
        return self._answer(index, SHOWN)

    def _answer(self, index: int, answer: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if index % 2:
            self.open.append(future)
        else:
            future.set_result(answer)
        return future


class Asker:
    """Asks, and keeps what it is told."""

    def __init__(self) -> None:
        self.nodes: Any = Nodes()
        self.clock = ManualClock()
        self.questions: queue.Queue[RunQuery] = queue.Queue()

    def ask(self, kind: str, failing: bool = False, **header: Any) -> list[Any]:
        told: list[Any] = []

        def answer(payload: Payload) -> None:
            if failing:
                raise OSError("the disk is full")
            told.append(payload)

        payload = Payload(kind=kind, header=header)
        self.questions.put(RunQuery(payload, answer, told.append))
        return told


@pytest.fixture
def asker() -> Iterator[Asker]:
    made = Asker()
    with QueryServer(made.nodes, made.questions, made.clock):
        yield made


def soon(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SOON_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def test_questions_that_a_site_does_not_answer_are_in_nobodys_way(asker: Asker) -> None:
    silent = [asker.ask("node.train", client="1") for _ in range(20)]
    told = asker.ask("node.train", client="2")
    (answer,) = soon(lambda: told)
    assert answer.header == {"client": 2}
    assert asker.nodes.orders[-1][1].header == {"client": 2, "round": 5, "model": "key"}
    assert not any(silent)


def test_a_question_that_takes_too_long_fails_once(asker: Asker) -> None:
    told = asker.ask("node.evaluate", client="1")
    soon(lambda: asker.nodes.open)
    asker.clock.advance(WORK_S + 1)
    (error,) = soon(lambda: told)
    assert isinstance(error, NotAnswered)
    assert str(error) == "the site has not answered `node.evaluate` within 600 s"
    asker.nodes.open[0].set_result(Payload(kind="done"))
    after = asker.ask("node.show", client="2")
    soon(lambda: after)
    assert told == [error]


def test_a_list_says_of_whom_a_site_tells_nothing(asker: Asker) -> None:
    told = asker.ask("node.list", first=0, count=4)
    soon(lambda: len(asker.nodes.open) == 2)
    asker.nodes.open[0].set_exception(ValueError("a storm"))
    asker.clock.advance(TELL_S + 1)
    (answer,) = soon(lambda: told)
    states = {each["id"]: each["state"] for each in answer.header["nodes"]}
    assert states == {"0": "materialized", "1": NOT_TOLD, "2": "materialized", "3": NOT_TOLD}
    assert answer.header["total"] == 10


def test_a_list_is_there_once_all_have_told(asker: Asker) -> None:
    told = asker.ask("node.list", site="silent", count=2)
    soon(lambda: len(asker.nodes.open) == 2)
    for each in asker.nodes.open:
        each.set_result(SHOWN)
    (answer,) = soon(lambda: told)
    assert [each["state"] for each in answer.header["nodes"]] == ["materialized"] * 2
    assert answer.header["total"] == 5


def test_a_client_is_explained_where_that_is_asked(asker: Asker) -> None:
    told = [asker.ask("node.show", client="2"), asker.ask("node.show", client="2", explain=True)]
    (shown,), (explained,) = (soon(lambda each=each: each) for each in told)
    assert "explained" not in shown.header
    assert shown.header["assignment"] == "so it is"
    assert explained.header["explained"] == {"sentences": ["2 may stay"]}


def test_where_an_answer_cannot_be_given_that_is_told(asker: Asker) -> None:
    told = asker.ask("node.show", failing=True, client="2")
    (error,) = soon(lambda: told)
    assert isinstance(error, OSError)


@pytest.mark.parametrize(
    ("kind", "header", "words"),
    [
        pytest.param("node.train", {"client": "x"}, "there is no client 'x'", id="of nobody"),
        pytest.param("node.dance", {}, "a run is asked for", id="that nobody understands"),
        pytest.param("node.aggregate", {"client": "2"}, "needs the weights", id="without weights"),
        pytest.param("node.list", {"first": []}, "int", id="with a list for a number"),
    ],
)
def test_a_question_fails_with_what_is_wrong_with_it(
    kind: str, header: dict[str, Any], words: str, asker: Asker
) -> None:
    told = asker.ask(kind, **header)
    (error,) = soon(lambda: told)
    assert words in str(error)
