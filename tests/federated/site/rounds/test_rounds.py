"""A site works on the orders of a round one after another, and drops those nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
import pytest

from federations import Lab
from fedpilot.federated.engine.journal import RoundKey
from fedpilot.federated.site.cohorts import Cohort
from fedpilot.federated.site.rounds.round_queue import RoundQueue
from fedpilot.federated.site.rounds.star_round import SiteRound
from fedpilot.federated.site.rounds.surroundings import Pace
from fedpilot.federated.site.workers.pool import SharedModel, WorkerCall, WorkerPool
from fedpilot.mediator import Payload

MODEL = SharedModel("m", None)


class Order:
    """A round that is done when the test says so."""

    def __init__(self, part: str, *clients: int, round_number: int = 3, coarser: int = 0) -> None:
        self.key = RoundKey(round_number, "m", coarser, part)
        indices = np.array(clients, dtype=np.int64)
        self.cohort = Cohort(clients=indices, places=indices, whole=99, samples=indices)
        self.answer: Future[Payload] = Future()
        self.begun = False
        self.late_for = 1
        self.lingers = self.may_be_late = False

    def begin(self, model: SharedModel) -> None:
        assert model is MODEL
        self.begun = True
        if not len(self.cohort.clients):
            self.finish()

    def finish(self) -> None:
        self.answer.set_result(Payload(kind="partial"))

    def abandon(self) -> None:
        self.answer.cancel()


def queued(*orders: Any) -> RoundQueue:
    queue = RoundQueue()
    for order in orders:
        queue.add(cast("SiteRound", order), MODEL)
    return queue


def test_orders_of_one_round_wait_for_each_other() -> None:
    a, b, c = Order("a", 1, 2), Order("b", 3), Order("c", 4)
    queue = queued(a, b, c)
    assert [a.begun, b.begun, c.begun] == [True, False, False]
    assert queue.find(b.key) is cast("SiteRound", b)
    a.finish()
    assert [b.begun, c.begun] == [True, False]
    b.finish()
    assert c.begun
    assert queue.find(a.key) is None


def test_an_order_about_nobody_is_done_at_once() -> None:
    empty, after = Order("a"), Order("b", 1)
    queued(empty, after)
    assert empty.answer.done()
    assert after.begun


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(Order("a", 1, round_number=4), id="of another round"),
        pytest.param(Order("a", 1, coarser=8), id="of a coarser attempt"),
        pytest.param(Order("c", 1, 2, 3), id="about the same clients"),
    ],
)
def test_an_order_drops_those_before_it(later: Order) -> None:
    a, b = Order("a", 1), Order("b", 2)
    queued(a, b, later)
    assert a.answer.cancelled()
    assert b.answer.cancelled()
    assert not b.begun
    assert later.begun


def test_an_order_about_other_clients_drops_nobody() -> None:
    a, b, later = Order("a", 1), Order("b", 2), Order("c", 2, 3)
    queued(a, b, later)
    assert not a.answer.done()
    assert b.answer.cancelled()
    a.finish()
    assert later.begun


def test_an_order_that_cannot_begin_fails_and_the_next_begins() -> None:
    class Broken(Order):
        def begin(self, model: SharedModel) -> None:
            raise OSError("no room")

    broken, after = Broken("a", 1), Order("b", 2)
    queued(broken, after)
    with pytest.raises(OSError, match="no room"):
        broken.answer.result(0)
    assert after.begun


@pytest.mark.parametrize(
    ("parts", "at_once"),
    [
        pytest.param(1, True, id="fewer pieces than workers"),
        pytest.param(2, True, id="a piece for each worker"),
        pytest.param(3, False, id="a worker gets another one"),
    ],
)
def test_a_worker_hands_its_sum_up_with_its_only_piece(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, parts: int, at_once: bool
) -> None:
    monkeypatch.setattr(
        "fedpilot.federated.site.rounds.star_round.pieces",
        lambda costs, workers, pace: np.array_split(np.arange(len(costs)), parts),
    )
    sent: list[WorkerCall] = []
    submit = WorkerPool.submit

    def submitting(pool: WorkerPool, pieces: Sequence[WorkerCall], **how: Any) -> None:
        sent.extend(piece for piece in pieces if piece.method == "train")
        submit(pool, pieces, **how)

    monkeypatch.setattr(WorkerPool, "submit", submitting)
    lab.run(resources__workers=2, federation__rounds=1)
    assert [piece.args_at(0) for piece in sent] == [(at_once,)] * parts


def test_the_pace_is_what_workers_needed_for_the_samples_of_the_round(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[int, float, str | None]] = []
    busy: list[float] = []
    monkeypatch.setattr(Pace, "measured", lambda _, *told: measured.append(told))
    finish = SiteRound._finish

    def finishing(self: SiteRound) -> None:
        finish(self)
        busy.append(self.answer.result(0).header["busy_seconds"])

    monkeypatch.setattr(SiteRound, "_finish", finishing)
    result = lab.run(federation__rounds=2)
    samples = [row["samples"] for row in result.rows]
    assert measured == [(n, seconds, None) for n, seconds in zip(samples, busy, strict=True)]


def test_a_round_without_samples_says_nothing_of_the_pace() -> None:
    pace = Pace()
    pace.measured(10, 2.0)
    pace.measured(0, 1.0)
    assert pace.of(None) == 0.2
