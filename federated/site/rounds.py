"""SiteRound: one attempt at one round at this site; pieces go out, one exact Partial comes back.

A worker adds what it trains to a sum of its own and hands that up when it is asked to: with its
only piece in a short round, otherwise at the end, and before that whenever what is not saved has
become worth saving. Whatever a worker takes with it when it dies is missing from the clients that
the sums cover, and is trained again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from fedpilot.mediator import Notify, Payload

from ..core.chunking import pieces
from ..core.lifecycle import Visit
from ..core.partial import Partial
from ..core.sampling import Indices
from ..engine.journal import Journal, RoundKey
from ..errors import FederatedError, WorkersExhausted
from .answers import Answer, or_fail
from .client_states import ClientStates
from .hosting import Hosting
from .node import Attempt, PieceResult
from .pool import Piece, SharedModel, WorkerPool

PROGRESS_S = 0.5
"""Rounds longer than this say how far they are, this often."""


class Pace:
    """What a sample costs, as the last round measured it."""

    def __init__(self) -> None:
        self.seconds_per_sample: float | None = None
        """Seconds of one worker's work; None before anything was measured."""

    def measured(self, samples: int, seconds: float) -> None:
        """A round took so long."""
        if samples:
            self.seconds_per_sample = seconds / samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """The clients of a round at this site, and what they cost."""

    clients: Indices
    """Sorted."""
    samples: Indices
    """How many each holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all rounds of a site share."""

    pool: WorkerPool
    hosting: Hosting
    journal: Journal
    pace: Pace
    notify: Notify
    states: ClientStates | None
    """Where clients' memories are kept, if the algorithm has any."""


class SiteRound:
    """Cuts the site's clients into pieces, merges what comes back, and keeps the journal."""

    def __init__(
        self,
        attempt: Attempt,
        key: RoundKey,
        cohort: Cohort,
        partial: Partial,
        site: Surroundings,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.answer: Answer = Future()
        self._attempt = attempt
        self._key = key
        self._cohort = cohort
        self._partial = partial
        self._site = site
        self._clock = clock
        self._name = f"round {key.round_number}"
        self._pieces: list[Piece] = []
        self._visits: list[Visit] = []
        self._covered: list[Indices] = []
        self._holding: set[int] = set()
        """Workers whose sum has not been handed up since they trained something."""
        self._open = 0
        self._asked = 0
        """Sums that have been asked for and not come yet."""
        self._trained = 0
        self._told_at = 0.0
        self._unsaved_s = 0.0
        self._busy_s = 0.0
        self._arithmetic_s = 0.0
        self._samples = 0
        self._digests: dict[str, Mapping[str, str]] = {}
        self._given_up = False

    def begin(self, model: SharedModel) -> None:
        """Take over what a predecessor had done, and send out the rest."""
        self._model = model
        self._told_at = self._clock()
        saved = self._site.journal.recover(self._key)
        if saved is not None:
            partial, covered = saved
            self._partial.merge(partial)
            self._covered.append(covered)
            self._trained = len(covered)
        self._send_what_is_missing()

    def abandon(self) -> None:
        """Another round is asked for: whoever asked for this one waits no longer."""
        if not self.answer.done():
            self._give_up()
            self.answer.cancel()

    def _give_up(self) -> None:
        """Send out no more pieces, and take no notice of those that are."""
        self._given_up = True
        self._site.pool.withdraw(self._pieces)
        for visit in self._visits:
            self._site.hosting.leave(visit, f"{self._name} was given up")

    def _send_what_is_missing(self) -> None:
        clients, costs = self._cohort.clients, self._cohort.samples
        if self._covered:
            left = ~np.isin(clients, np.concatenate(self._covered), assume_unique=True)
            clients, costs = clients[left], costs[left]
        if not len(clients):
            self._finish()
            return
        workers = self._site.pool.size
        parts = pieces(costs, workers, self._site.pace.seconds_per_sample)
        at_once = len(parts) <= workers
        self._pieces = [self._piece(clients[part], hand_up=at_once) for part in parts]
        self._open = len(self._pieces)
        self._site.pool.submit(self._pieces)

    def _piece(self, clients: Indices, *, hand_up: bool) -> Piece:
        hosting, states = self._site.hosting, self._site.states
        visit = hosting.enter(clients, f"in the cohort of {self._name}")
        self._visits.append(visit)
        memories = states.load(clients, self._key.round_number) if states is not None else {}
        piece = Piece(
            method="train",
            args=(self._attempt, clients, memories, hand_up),
            what=f"training {len(clients)} clients of {self._name}",
            model=self._model,
            on_sent=lambda worker: self._sent(visit, worker, hand_up),
        )
        piece.answer.add_done_callback(
            lambda done: or_fail(self.answer, lambda: self._piece_done(visit, done))
        )
        return piece

    def _sent(self, visit: Visit, worker: int, hand_up: bool) -> None:
        if self._given_up:
            return
        if not hand_up:
            self._holding.add(worker)
        self._site.hosting.carry(visit, worker, f"in a chunk of {self._name}")

    def _piece_done(self, visit: Visit, done: Future[PieceResult]) -> None:
        if self._given_up:
            return
        error = done.exception()
        if error is not None:
            self._site.hosting.fail(visit, str(error))
            self._give_up()
            self.answer.set_exception(error)
            return
        result = done.result()
        self._site.hosting.leave(visit, f"{self._name} is done with it")
        if result.memories and self._site.states is not None:
            self._site.states.save(self._key.round_number, result.memories)
        self._busy_s += result.seconds
        self._arithmetic_s += result.training_seconds
        self._samples += result.samples
        self._trained += result.clients
        self._digests.update(result.digests)
        self._unsaved_s += result.seconds
        self._open -= 1
        self._take(result)
        self._tell()
        if self._open == 0 or self._site.journal.worth(self._unsaved_s, self._partial):
            self._collect()

    def _collect(self) -> None:
        """Ask for every sum that is at a worker; go on when all have come."""
        if self._asked:
            return
        holding, self._holding = self._holding, set()
        self._unsaved_s = 0.0
        self._asked = len(holding)
        for worker in sorted(holding):
            piece = Piece(
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
        if self._open and self._covered:
            self._site.journal.save(self._key, self._partial, np.concatenate(self._covered))
        elif self._open:
            return
        elif self._holding:  # a piece ended while the sums were on their way
            self._collect()
        else:
            self._send_what_is_missing()

    def _take(self, result: PieceResult) -> None:
        if result.partial is not None:
            self._partial.merge(result.partial)
            self._covered.append(result.covered)

    def _tell(self) -> None:
        now = self._clock()
        if self._open and now - self._told_at >= PROGRESS_S:
            self._told_at = now
            of = len(self._cohort.clients)
            counts = {"round": self._key.round_number, "done": min(self._trained, of), "of": of}
            self._site.notify(Payload(kind="clients_done", header=counts))

    def _finish(self) -> None:
        counted, wanted = sum(map(len, self._covered)), len(self._cohort.clients)
        if counted != wanted:
            raise FederatedError(
                f"{self._name}: {counted} clients were counted instead of {wanted}"
            )
        self._site.pace.measured(self._samples, self._busy_s)
        header, tensors = self._partial.to_wire()
        told = {
            "partial": header,
            "busy_seconds": self._busy_s,
            "training_seconds": self._arithmetic_s,
            "digests": self._digests,
        }
        self.answer.set_result(Payload(kind="partial", header=told, tensors=tensors))
