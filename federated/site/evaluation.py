"""Evaluates a round's model at a site: on the test set, or on the samples of its clients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from fedpilot.mediator import Payload

from ..config.schema import RunConfig
from ..core.population.shares import held, taken
from ..core.population.vnode_classes import by_class
from ..core.rounds.chunking import pieces
from ..core.sums.partial import Tally
from ..prepare.inputs.run_inputs import RunInputs
from .cohorts import Cohorts
from .object_store import SharedModels
from .orders import Answer, or_fail, tallied
from .workers.pool import SharedModel, WorkerCall, WorkerPool


class Evaluator:
    """Cuts the evaluation of a model into pieces, and adds up their tallies."""

    def __init__(
        self,
        config: RunConfig,
        inputs: RunInputs,
        cohorts: Cohorts,
        pool: WorkerPool,
        models: SharedModels,
        check_company: Callable[[str, int], None],
    ) -> None:
        """`check_company(what, clients)` refuses results over too few clients to leave."""
        self._batch = config.evaluation.batch_size
        self._data, self._classes = inputs.data, inputs.classes
        resources = config.resources
        self._tests_on: str | None = None
        """The vnode class that evaluates the test set, if it matters to the bits."""
        if resources.groups is not None and not resources.alike:
            self._tests_on = resources.groups[0].name
        self._cohorts, self._pool, self._models = cohorts, pool, models
        self._check_company = check_company

    def evaluate(self, order: Payload) -> Answer:
        """Evaluate the model of an order."""
        header = order.header
        _, model = self._models.of_round(header["model"], order.tensors)
        what = f"evaluating the model of round {header['round']}"
        if header["on"] == "test":
            clients, pieces = 1, self._test_pieces(model, what)
        else:
            clients, pieces = self._client_pieces(header, model, what)
        self._pool.submit(pieces)
        return _totalled(
            [piece.answer for piece in pieces],
            lambda total: tallied(total, clients=clients, on=header["on"]),
        )

    def _test_pieces(self, model: SharedModel, what: str) -> list[WorkerCall]:
        samples, batch = len(self._data.test_y), self._batch
        batches = -(-samples // batch)
        parts = min(batches, self._pool.size_of(self._tests_on))
        cuts = [min(samples, batches * i // parts * batch) for i in range(parts + 1)]
        return [
            WorkerCall(
                method="evaluate_test",
                args=(start, stop),
                what=what,
                model=model,
                vnode_class=self._tests_on,
            )
            for start, stop in itertools.pairwise(cuts)
        ]

    def _client_pieces(
        self, header: Mapping[str, Any], model: SharedModel, what: str
    ) -> tuple[int, list[WorkerCall]]:
        judges = self._cohorts.judges(header["round"])
        inside = held(judges, taken(header["share"]))
        if "counted" in header:
            inside &= held(judges, taken(header["counted"]))
        clients = judges[inside]
        self._check_company(what, len(clients))
        costs = self._data.partition.sizes(clients)
        return len(clients), [
            WorkerCall(
                method="evaluate_clients",
                args=(clients[at[part]],),
                what=what,
                model=model,
                vnode_class=vnode_class,
            )
            for vnode_class, at in by_class(self._classes, clients)
            for part in pieces(costs[at], self._pool.size_of(vnode_class), None)
        ]


def _totalled(parts: Sequence[Future[Tally]], finish: Callable[[Tally], Payload]) -> Answer:
    """Answer with the sum of several tallies, or with the first error among them."""
    answer: Answer = Future()
    open_ = itertools.count(len(parts) - 1, -1)

    def end() -> None:
        total = Tally()
        for part in parts:
            total.merge(part.result())
        answer.set_result(finish(total))

    def one_done(done: Future[Tally]) -> None:
        left = next(open_)
        done.result()
        if left == 0:
            end()

    if not parts:
        end()
    for part in parts:
        part.add_done_callback(lambda done: or_fail(answer, lambda: one_done(done)))
    return answer
