"""A round that was closed may be handed up while the next one has begun, where that counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from fedpilot.federated.core.population.shares import unpacked
from fedpilot.federated.core.sums.partial import Partial
from fedpilot.federated.engine.journal import Journal, RoundKey
from fedpilot.federated.site.cohorts import Cohort
from fedpilot.federated.site.node_placement import NodePlacement
from fedpilot.federated.site.rounds.round_queue import RoundQueue
from fedpilot.federated.site.rounds.star_round import SiteRound
from fedpilot.federated.site.rounds.surroundings import Pace, Surroundings
from fedpilot.federated.site.workers.attempt import Attempt, PieceResult
from fedpilot.federated.site.workers.pool import SharedModel, WorkerCall, WorkerPool

MODEL = SharedModel("m", None)
NOBODY = np.empty(0, dtype=np.int64)
GRID = {"w": 20}


class Workers:
    """A pool of two whose work is done when the test says so."""

    size = 2

    def size_of(self, vnode_class: str | None) -> int:
        assert vnode_class is None
        return self.size

    def __init__(self) -> None:
        self.sent: list[tuple[WorkerCall, int]] = []
        """Pieces in the order of sending, and their workers."""
        self.withdrawn: list[WorkerCall] = []

    def submit(
        self, pieces: Sequence[WorkerCall], *, worker: int | None = None, first: bool = False
    ) -> None:
        assert first is (worker is not None)
        for number, piece in enumerate(pieces):
            where = number % self.size if worker is None else worker
            self.sent.append((piece, where))
            if piece.on_sent is not None:
                piece.on_sent(where)

    def may_leave(self, worker: int) -> bool:
        return False

    def withdraw(self, pieces: Sequence[WorkerCall]) -> None:
        """The last that is not done waits yet; the others are being trained."""
        waiting = [piece for piece in pieces if not piece.answer.done()][self.size :]
        self.withdrawn += waiting
        for piece in waiting:
            piece.answer.cancel()

    def meanwhile(self, act: Callable[[], None]) -> None:
        act()

    def asked(self, method: str) -> list[tuple[WorkerCall, int]]:
        return [(piece, where) for piece, where in self.sent if piece.method == method]

    def trained(self, piece: WorkerCall) -> None:
        """A piece is done; its sum stays at the worker."""
        clients = piece.args[1]
        piece.answer.set_result(
            PieceResult(partial=None, covered=NOBODY, clients=len(clients), samples=len(clients))
        )

    def hand_up(self, piece: WorkerCall, *clients: int) -> None:
        total = Partial(GRID, weight=len(clients), clients=len(clients))
        covered = np.array(clients, dtype=np.int64)
        piece.answer.set_result(PieceResult(partial=total, covered=covered))


class Site:
    """The rounds of one site, of clients 0 to 3, one client a piece."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "fedpilot.federated.site.rounds.star_round.pieces",
            lambda costs, *_: list(np.arange(len(costs))[:, np.newaxis]),
        )
        self.workers = Workers()
        self.queue = RoundQueue()
        self.surroundings = Surroundings(
            put=lambda value: value,
            pool=cast("WorkerPool", self.workers),
            placement=NodePlacement(lambda: 0.0),
            journal=Journal(None, "west"),
            pace=Pace(),
            notify=lambda _: None,
            states=None,
        )

    def order(self, number: int, *, late_for: int = 1, least: int = 1) -> SiteRound:
        clients = np.arange(4, dtype=np.int64)
        execution = Execution(ExecutionKind.SEQUENTIAL, 1)
        made = SiteRound(
            Attempt(number=number, round_number=number, exponents=GRID, execution=execution),
            RoundKey(number, f"model {number}", 0),
            Cohort(clients=clients, places=clients, whole=4, samples=clients + 1),
            Partial(GRID),
            self.surroundings,
            lambda: 0.0,
            tells_covered=True,
            late_for=late_for,
            least=least,
        )
        self.queue.add(made, MODEL)
        return made


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def clients_of(order: SiteRound) -> Any:
    return order.answer.result(0).header["partial"]["clients"]


def test_sums_are_handed_up_before_the_next_round_begins_at_their_workers(site: Site) -> None:
    first = site.order(1)
    pieces = [piece for piece, _ in site.workers.asked("train")]
    site.workers.trained(pieces[0])
    first.close()
    handing = site.workers.asked("hand_up")
    assert [where for _, where in handing] == [0, 1], "idle or not"
    second = site.order(2)
    assert len(site.workers.asked("train")) == 8, "the next round has begun"
    site.workers.hand_up(handing[0][0], 0)
    assert not first.answer.done()
    for piece in pieces[1:3]:
        site.workers.trained(piece)
    site.workers.hand_up(handing[1][0], 1, 2)
    assert clients_of(first) == 3
    assert [piece.args[1].tolist() for piece in site.workers.withdrawn] == [[3]]
    assert not second.answer.done()


@pytest.mark.parametrize(
    ("least", "told"),
    [pytest.param(1, 1, id="it may leave"), pytest.param(2, 0, id="it would tell of that one")],
)
def test_a_round_closed_with_one_client_is_answered_as_it_may(
    least: int, told: int, site: Site
) -> None:
    order = site.order(1, late_for=0, least=least)
    pieces = [piece for piece, _ in site.workers.asked("train")]
    site.workers.trained(pieces[0])
    order.close()
    for piece in pieces[1:3]:
        piece.answer.cancel()
    for handing, worker in site.workers.asked("hand_up"):
        if worker == 0:
            site.workers.hand_up(handing, 0)
        else:
            handing.answer.set_result(PieceResult(partial=None, covered=NOBODY))
    header = order.answer.result(0).header
    assert (header["partial"]["clients"], header["partial"]["weight"]) == (told, told)
    assert unpacked(header["covered"], 4).sum() == told


def test_a_round_that_lingers_is_found_and_dropped_once_it_is_too_late(site: Site) -> None:
    first = site.order(1)
    first.close()
    site.order(2).close()
    assert site.queue.find(first.key) is first
    third = site.order(3)
    assert first.answer.cancelled()
    assert not third.answer.done()


@pytest.mark.parametrize(
    ("late_for", "closed"),
    [pytest.param(0, True, id="late ones do not count"), pytest.param(1, False, id="it is open")],
)
def test_any_other_round_is_dropped_by_the_next(site: Site, late_for: int, closed: bool) -> None:
    first = site.order(1, late_for=late_for)
    if closed:
        first.close()
    site.order(2, late_for=late_for)
    assert first.answer.cancelled()
