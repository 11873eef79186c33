"""SiteRound: one order of one round at this site; pieces go out, one exact Partial comes back.

A worker adds what it trains to its own sum. It hands the sum up with its only piece in a short
round, otherwise at the end, and earlier when unsaved work is worth saving. One whose place others
may claim hands it up with each piece, so that they cost at most the piece that it is at. Clients
in the sum of a worker that dies are trained again. A closed round starts no more clients and
answers with those it has; where late answers count, the next round may begin before that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import numpy as np

from fedpilot.mediator import Payload

from ...core.lifecycle import Visit
from ...core.population.sampling import Indices
from ...core.population.shares import packed
from ...core.population.vnode_classes import by_class
from ...core.rounds.chunking import pieces
from ...core.rounds.site_events import MOST_TEXTS
from ...core.sums.partial import Partial
from ...engine.journal import RoundKey
from ...errors import FederatedError, WorkersExhausted
from ..cohorts import Cohort
from ..orders import Answer, or_fail
from ..workers.attempt import Attempt, PieceResult
from ..workers.pool import SharedModel, WorkerCall
from .surroundings import ClassTimes, RoundProgress, Surroundings


class SiteRound:
    """Cuts the site's clients into pieces, merges the results, and keeps the journal."""

    def __init__(
        self,
        attempt: Attempt,
        key: RoundKey,
        cohort: Cohort,
        partial: Partial,
        site: Surroundings,
        clock: Callable[[], float] = time.perf_counter,
        *,
        tells_covered: bool = False,
        late_for: int = 0,
        least: int = 1,
    ) -> None:
        """A closed round's answer still counts `late_for` rounds later.

        A round that closes with fewer clients than `least` is answered as if there were none.
        """
        self.answer: Answer = Future()
        self.key = key
        self.cohort = cohort
        self.late_for = late_for
        self.on_lingering: Callable[[], None] = lambda: None
        """Called once other rounds may begin."""
        self._tells_covered = tells_covered
        self._attempt = attempt
        self._least = least
        self._partial = partial
        self._site = site
        everybody = len(cohort.nodes(cohort.clients))
        self._progress = RoundProgress(site.notify, key, everybody, clock)
        self._name = f"round {key.round_number}"
        self._pieces: list[WorkerCall] = []
        self._visits: list[Visit] = []
        self._covered: list[Indices] = []
        self._holding: set[int] = set()
        """Workers that have trained since they last handed up their sum."""
        self._open = 0
        self._asked = 0
        self._unsaved_s = 0.0
        self._busy_s = 0.0
        self._arithmetic_s = 0.0
        self._times = ClassTimes()
        self._digests: dict[str, Mapping[str, str]] = {}
        self._begun = False
        self._given_up = False
        self._closing = False
        self._closed = False

    def begin(self, model: SharedModel) -> None:
        """Take over a predecessor's saved work, and send out the rest."""
        self._model = model
        saved = self._site.journal.recover(self.key)
        if saved is not None:
            partial, covered = saved
            self._partial.merge(partial)
            self._covered.append(covered)
            self._progress.recovered(len(self.cohort.nodes(covered)))
        self._send_what_is_missing()
        self._begun = True

    def abandon(self) -> None:
        """Cancel the answer, since another round supersedes this one."""
        if not self.answer.done():
            self._give_up()
            self.answer.cancel()

    def close(self) -> None:
        """Start no more clients; the answer covers those already started."""
        self._closing = True
        self._site.pool.meanwhile(lambda: or_fail(self.answer, self._close))

    def hand_up(self) -> None:
        """Request every worker's sum now; called in the pool's thread."""
        or_fail(self.answer, self._collect)

    @property
    def may_be_late(self) -> bool:
        """Whether it is closed, or about to be, and still counts in a later round."""
        return self._closing and self._begun and self.late_for > 0

    @property
    def lingers(self) -> bool:
        """Whether other rounds may begin before its last pieces are done."""
        return self._closed and self.may_be_late

    def _close(self) -> None:
        if self.answer.done():
            return
        self._closed = True
        self._site.pool.withdraw(self._pieces)
        if self.lingers:  # a worker has one sum at a time: hand up this one first
            self._collect()
            self.on_lingering()

    def _give_up(self) -> None:
        """Send out no more pieces, and ignore those under way."""
        self._given_up = True
        self._site.pool.withdraw(self._pieces)
        for visit in self._visits:
            self._site.placement.leave(visit, f"{self._name} was given up")

    def _send_what_is_missing(self) -> None:
        clients, costs = self.cohort.clients, self.cohort.samples
        if self._covered:
            left = ~np.isin(clients, np.concatenate(self._covered), assume_unique=True)
            clients, costs = clients[left], costs[left]
        if self._closed or not len(clients):
            self._finish()
            return
        self._pieces = []
        for vnode_class, at in by_class(self._site.classes, clients):
            workers = self._site.pool.size_of(vnode_class)
            parts = pieces(costs[at], workers, self._site.pace.of(vnode_class))
            at_once = len(parts) <= workers
            self._pieces += [
                self._piece(clients[at[part]], vnode_class, hand_up=at_once) for part in parts
            ]
        self._open = len(self._pieces)
        self._site.pool.submit(self._pieces)

    def _piece(self, clients: Indices, vnode_class: str | None, *, hand_up: bool) -> WorkerCall:
        placement, states = self._site.placement, self._site.states
        nodes = self.cohort.nodes(clients)
        visit = placement.enter(nodes, f"in the cohort of {self._name}")
        self._visits.append(visit)
        memories = states.load(clients, self.key.round_number) if states is not None else {}
        piece = WorkerCall(
            method="train",
            args=(self._attempt, clients, memories),
            args_at=lambda worker: (self._hands_up(worker, hand_up),),
            what=f"training {len(nodes)} clients of {self._name}",
            model=self._model,
            vnode_class=vnode_class,
            on_sent=lambda worker: self._sent(visit, worker, hand_up),
        )
        piece.answer.add_done_callback(
            lambda done: or_fail(self.answer, lambda: self._piece_done(visit, vnode_class, done))
        )
        return piece

    def _hands_up(self, worker: int, at_once: bool) -> bool:
        """Whether a worker hands its sum up with the next piece."""
        return at_once or self._site.pool.may_leave(worker)

    def _sent(self, visit: Visit, worker: int, at_once: bool) -> None:
        if self._given_up:
            return
        if not self._hands_up(worker, at_once):
            self._holding.add(worker)
        self._site.placement.carry(visit, worker, f"in a chunk of {self._name}")

    def _piece_done(self, visit: Visit, vnode_class: str | None, done: Future[PieceResult]) -> None:
        if self._given_up:
            return
        if done.cancelled():
            self._site.placement.leave(visit, f"{self._name} was closed")
            self._open -= 1
            if not self._open:
                self._collect()
            return
        error = done.exception()
        if error is not None:
            self._site.placement.fail(visit, str(error))
            self._give_up()
            self.answer.set_exception(error)
            return
        result = done.result()
        self._site.placement.leave(visit, f"{self._name} is done with it")
        if result.memories and self._site.states is not None:
            self._site.states.save(self.key.round_number, result.memories)
        self._busy_s += result.seconds
        self._arithmetic_s += result.training_seconds
        self._times.add(result.samples, result.seconds, vnode_class)
        self._digests.update(result.digests)
        self._tell_printed(result.printed)
        self._unsaved_s += result.seconds
        self._open -= 1
        self._take(result)
        self._progress.trained(result.clients, more=self._open > 0)
        if self._open == 0 or self._site.journal.worth(self._unsaved_s, self._partial):
            self._collect()

    def _collect(self) -> None:
        """Request every worker's sum; go on once all have come."""
        if self._asked:
            return
        holding, self._holding = self._holding, set()
        self._unsaved_s = 0.0
        self._asked = len(holding)
        for worker in sorted(holding):
            piece = WorkerCall(
                method="hand_up",
                args=(self._attempt.number,),
                what=f"handing up the sum of {self._name}",
            )
            piece.answer.add_done_callback(
                lambda done: or_fail(self.answer, lambda: self._handed_up(done))
            )
            self._site.pool.submit([piece], worker=worker, first=True)
        if not holding:
            self._all_handed_up()

    def _handed_up(self, done: Future[PieceResult]) -> None:
        if self._given_up:
            return
        if not isinstance(done.exception(), WorkersExhausted):  # then its sum is gone for good
            self._take(done.result())
        self._asked -= 1
        if not self._asked:
            self._all_handed_up()

    def _all_handed_up(self) -> None:
        if self._open and self._covered and not self.lingers:
            self._site.journal.save(self.key, self._partial, np.concatenate(self._covered))
        elif self._holding and (self.lingers or not self._open):
            self._collect()  # a piece was sent, or ended, while the sums were on their way
        elif not self._open:
            self._send_what_is_missing()

    def _take(self, result: PieceResult) -> None:
        if result.partial is not None:
            self._partial.merge(result.partial)
            self._covered.append(result.covered)

    def _tell_printed(self, printed: Mapping[str, str]) -> None:
        """Report clients' output, in events of limited size."""
        clients = list(printed)
        for first in range(0, len(clients), MOST_TEXTS):
            some = clients[first : first + MOST_TEXTS]
            texts = [printed[client] for client in some]
            header = {"round": self.key.round_number, "clients": some, "texts": texts}
            self._site.notify(Payload(kind="clients_printed", header=header))

    def _finish(self) -> None:
        covered = np.concatenate([_NOBODY, *self._covered])
        counted, wanted = len(covered), len(self.cohort.clients)
        if counted != wanted and not self._closed:
            raise FederatedError(
                f"{self._name}: {counted} clients were counted instead of {wanted}"
            )
        self._times.tell(self._site.pace)
        if self._closed and 0 < self._partial.fewest < self._least:
            self._partial, self._digests, covered = self._partial.emptied(), {}, _NOBODY
        header, tensors = self._partial.to_wire()
        told = {
            "partial": header,
            "busy_seconds": self._busy_s,
            "training_seconds": self._arithmetic_s,
            "digests": self._digests,
        }
        if self._partial.earlier:
            told["fewest"] = self._partial.fewest
        if self._tells_covered:
            told["covered"] = packed(self.cohort.places_of(covered), self.cohort.whole)
        self.answer.set_result(Payload(kind="partial", header=told, tensors=tensors))


_NOBODY: Indices = np.empty(0, dtype=np.int64)
