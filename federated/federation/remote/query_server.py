"""QueryServer: answers users' questions about the VirtualNodes of a run, during its rounds.

A question names a client by its id, and the client's site answers it. No thread waits for a site:
one sends the order, another answers once the site has. A question that takes too long fails, and a
later answer is dropped.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from fedpilot.mediator import Payload
from fedpilot.mediator.coordinator.connection import RunQuery
from fedpilot.mediator.federation.futures import failed, then

from ...errors import FederatedError
from ..sites.node_orders import NodeOrders

AT_ONCE = 8
"""Threads that send orders and write answers."""
LOOK_S = 0.2
WORK_S = 600.0
"""Seconds that a site may work for a question; the mediator itself waits no longer."""
TELL_S = 30.0
"""Seconds that a site may take to report a node's state."""
MOST_OPEN = 1_000
"""Questions that wait for sites."""
MOST_LISTED = 1_000
TELLS = ("node.list", "node.show")
"""Questions that need no work at a site."""
NOT_TOLD = "not told"
"""The state of a node whose site did not report in time."""

log = logging.getLogger(__name__)


class NotAnswered(FederatedError):
    """A question timed out, or too many were open."""


@dataclass(slots=True, eq=False)
class _Open:
    question: RunQuery
    ends: float
    """On the monotonic clock."""
    so_far: Callable[[], Payload] | None = None
    """A partial answer for the deadline; None if there is none."""


class QueryServer:
    """Threads that answer questions while this is open."""

    def __init__(
        self,
        nodes: NodeOrders,
        questions: queue.Queue[RunQuery],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._questions = questions
        self._clock = clock
        self._lock = threading.Lock()
        self._open: set[_Open] = set()
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="answering")
        self._reader = threading.Thread(target=self._read, name="questions", daemon=True)

    def wait(self) -> None:
        """Serve until the process is interrupted."""
        while not self._closed.wait(1.0):
            pass

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._reader.join()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> None:
        while not self._closed.is_set():
            self._end_overdue()
            try:
                question = self._questions.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            self._threads.submit(self._begin, question)

    # -- one question -----------------------------------------------------------------------------

    def _begin(self, question: RunQuery) -> None:
        """Send a question's orders to sites; their answers complete it later."""
        kind = question.payload.kind
        open_ = _Open(question, self._clock() + (TELL_S if kind in TELLS else WORK_S))
        with self._lock:
            full = len(self._open) >= MOST_OPEN
            if not full:
                self._open.add(open_)
        if full:
            self._fail(question, NotAnswered(f"{MOST_OPEN} questions wait already; ask again"))
            return
        try:
            answer = self._answer_to(question.payload, open_)
        except BaseException as error:
            self._end(open_, failed(error).result)
            return
        answer.add_done_callback(lambda done: self._later(open_, done.result))

    def _later(self, open_: _Open, answer: Callable[[], Payload]) -> None:
        """Answer in another thread, since the calling one must not wait."""
        with suppress(RuntimeError):  # the threads have ended
            self._threads.submit(self._end, open_, answer)

    def _end_overdue(self) -> None:
        now = self._clock()
        with self._lock:
            overdue = [each for each in self._open if each.ends <= now]
        for each in overdue:
            self._later(each, each.so_far or partial(_not_answered, each.question.payload.kind))

    def _end(self, open_: _Open, answer: Callable[[], Payload]) -> None:
        """Send an answer or the reason for its failure, unless one was sent."""
        with self._lock:
            if open_ not in self._open:
                return
            self._open.discard(open_)
        question = open_.question
        try:
            found = answer()
        except BaseException as error:
            self._fail(question, error)
            return
        try:
            question.answer(found)
        except Exception as error:
            log.exception("an answer to %s cannot be given", question.payload.kind)
            self._fail(question, error)

    def _fail(self, question: RunQuery, error: BaseException) -> None:
        try:
            question.fail(error)
        except Exception:
            log.exception("the failure of %s cannot be told", question.payload.kind)

    def _answer_to(self, asked: Payload, open_: _Open) -> Future[Payload]:
        kinds: Mapping[str, Callable[[Payload], Future[Payload]]] = {
            "node.list": partial(self._list, open_),
            "node.show": self._show,
            "node.materialize": self._pass_on,
            "node.release": self._pass_on,
            "node.train": self._train,
            "node.evaluate": self._with_model,
            "node.aggregate": self._aggregate,
        }
        if asked.kind not in kinds:
            raise FederatedError(
                f"a run is asked for {', '.join(sorted(kinds))}; found {asked.kind[:80]!r}"
            )
        return kinds[asked.kind](asked)

    # -- kinds ------------------------------------------------------------------------------------

    def _list(self, open_: _Open, asked: Payload) -> Future[Payload]:
        nodes, header = self._nodes, asked.header
        first = max(0, int(header.get("first", 0)))
        count = max(0, min(MOST_LISTED, int(header.get("count", 100))))
        wanted = str(header.get("site", ""))
        population = range(len(nodes))
        there = population if not wanted else [i for i in population if nodes.site_of(i) == wanted]
        listed = there[first : first + count]
        answer: Future[Payload] = Future()
        shown = {index: nodes.ask_shown(index) for index in listed}

        def made() -> Payload:
            found = [self._list_entry(index, each) for index, each in shown.items()]
            return Payload(kind="nodes", header={"total": len(there), "nodes": found})

        left = iter(range(len(shown) - 1, -1, -1))

        def one_told(done: Future[Any]) -> None:
            if next(left) == 0:
                answer.set_result(made())

        open_.so_far = made
        if not shown:
            answer.set_result(made())
        for each in shown.values():
            each.add_done_callback(one_told)
        return answer

    def _list_entry(self, index: int, shown: Future[Mapping[str, Any]]) -> dict[str, Any]:
        """A node's entry in a list: its place, and its state or NOT_TOLD."""
        told = shown.done() and not shown.cancelled() and shown.exception() is None
        return {**self._place_of(index), "state": shown.result()["state"] if told else NOT_TOLD}

    def _show(self, asked: Payload) -> Future[Payload]:
        index = self._index(asked)

        def node(shown: Mapping[str, Any]) -> Payload:
            why: dict[str, Any] = {"assignment": self._nodes.why_there(index)}
            if asked.header.get("explain") is True:
                why["explained"] = dict(self._nodes.explain_assignment(index))
            return Payload(kind="node", header={**shown, **self._place_of(index), **why})

        return then(self._nodes.ask_shown(index), node)

    def _place_of(self, index: int) -> dict[str, Any]:
        nodes = self._nodes
        return {"id": nodes.client_id(index), "index": index, "site": nodes.site_of(index)}

    def _train(self, asked: Payload) -> Future[Payload]:
        return self._with_model(asked, round=self._nodes.round + 1)

    def _with_model(self, asked: Payload, **more: Any) -> Future[Payload]:
        """The sender's model, or the run's own if none came along."""
        key, state = self._nodes.model_or(asked.tensors or None)
        more = {"model": key, **more}
        return self._pass_on(Payload(kind=asked.kind, header=asked.header, tensors=state), **more)

    def _aggregate(self, asked: Payload) -> Future[Payload]:
        key, state = self._nodes.model_or(None)
        weights = asked.header.get("weights")
        if not isinstance(weights, list) or not weights:
            raise FederatedError("an aggregation needs the weights of the models that came along")
        tensors = {n: t for n, t in asked.tensors.items() if not n.startswith("global/")}
        tensors |= {f"global/{name}": array for name, array in state.items()}
        passed = Payload(kind=asked.kind, header=asked.header, tensors=tensors)
        return self._pass_on(passed, model=key, weights=weights)

    def _pass_on(self, asked: Payload, **header: Any) -> Future[Payload]:
        index = self._index(asked)
        order = Payload(kind=asked.kind, header={"client": index, **header}, tensors=asked.tensors)
        return self._nodes.ask_node(index, order)

    def _index(self, asked: Payload) -> int:
        return self._nodes.index_of(str(asked.header.get("client", "")))


def _not_answered(kind: str) -> Payload:
    waited = TELL_S if kind in TELLS else WORK_S
    raise NotAnswered(f"the site has not answered `{kind}` within {waited:g} s")
