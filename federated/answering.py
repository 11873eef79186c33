"""Answering: what users ask about the VirtualNodes of a run, answered beside its rounds.

Questions name clients by their ids; each is answered by the site that the client belongs to.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from fedpilot.mediator import Payload
from fedpilot.mediator.coordinator_link import Question

from .errors import FederatedError
from .federation import Federation

AT_ONCE = 8
LOOK_S = 0.2
MOST_LISTED = 1_000
"""Nodes that one answer lists."""


class Answering:
    """Threads that answer questions while this is open."""

    def __init__(self, federation: Federation, questions: queue.Queue[Question]) -> None:
        self._federation = federation
        self._questions = questions
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._reader.join()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                question = self._questions.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            self._threads.submit(self._answer, question)

    def _answer(self, question: Question) -> None:
        try:
            answer = self._answer_to(question.payload)
        except BaseException as error:
            question.fail(error)
        else:
            question.answer(answer)

    def _answer_to(self, asked: Payload) -> Payload:
        kinds: Mapping[str, Callable[[Payload], Payload]] = {
            "node.list": self._list,
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

    def _list(self, asked: Payload) -> Payload:
        federation, header = self._federation, asked.header
        first = max(0, int(header.get("first", 0)))
        count = max(0, min(MOST_LISTED, int(header.get("count", 100))))
        wanted = str(header.get("site", ""))
        population = range(len(federation))
        there = population if not wanted else [i for i in population if self._site(i) == wanted]
        nodes = [
            {
                "id": federation.client_id(index),
                "index": index,
                "site": self._site(index),
                "state": federation.show(index)["state"],
            }
            for index in there[first : first + count]
        ]
        return Payload(kind="nodes", header={"total": len(there), "nodes": nodes})

    def _show(self, asked: Payload) -> Payload:
        index = self._index(asked)
        return Payload(
            kind="node",
            header={
                **self._federation.show(index),
                "id": self._federation.client_id(index),
                "index": index,
                "site": self._site(index),
                "assignment": self._federation.explain_assignment(index),
            },
        )

    def _train(self, asked: Payload) -> Payload:
        return self._with_model(asked, round=self._federation.round + 1)

    def _with_model(self, asked: Payload, **more: Any) -> Payload:
        """The asker's model, or the run's own where none came along."""
        key, state = self._federation.model_or(asked.tensors or None)
        more = {"model": key, **more}
        return self._pass_on(Payload(kind=asked.kind, header=asked.header, tensors=state), **more)

    def _aggregate(self, asked: Payload) -> Payload:
        key, state = self._federation.model_or(None)
        weights = asked.header.get("weights")
        if not isinstance(weights, list) or not weights:
            raise FederatedError("an aggregation needs the weights of the models that came along")
        tensors = {n: t for n, t in asked.tensors.items() if not n.startswith("global/")}
        tensors |= {f"global/{name}": array for name, array in state.items()}
        passed = Payload(kind=asked.kind, header=asked.header, tensors=tensors)
        return self._pass_on(passed, model=key, weights=weights)

    def _pass_on(self, asked: Payload, **header: Any) -> Payload:
        index = self._index(asked)
        order = Payload(kind=asked.kind, header={"client": index, **header}, tensors=asked.tensors)
        return self._federation.ask_node(index, order).result()

    def _index(self, asked: Payload) -> int:
        return self._federation[str(asked.header.get("client", ""))].index

    def _site(self, index: int) -> str:
        return self._federation.site_of(index)
