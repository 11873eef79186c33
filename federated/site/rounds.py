"""SiteRound: one attempt at one round at this site; chunks go out, one exact Partial comes back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from fedpilot.mediator import Notify, Payload

from ..core.chunking import deal, how_many
from ..core.partial import Partial
from ..core.sampling import Indices
from ..engine.journal import Journal, RoundKey
from .answers import Answer, or_fail
from .hosting import Hosting
from .node import ChunkResult
from .pool import Piece, SharedModel, WorkerPool

Sizes = Callable[[Indices], Indices]
"""Clients -> their samples."""


class Pace:
    """What a sample costs, as the last round measured it."""

    def __init__(self) -> None:
        self._seconds_per_sample: float | None = None

    def expected_s(self, samples: int) -> float | None:
        """Seconds of work that so many samples will take; None before anything was measured."""
        return None if self._seconds_per_sample is None else self._seconds_per_sample * samples

    def measured(self, samples: int, seconds: float) -> None:
        """A round took so long."""
        if samples:
            self._seconds_per_sample = seconds / samples


class SiteRound:
    """Cuts the site's clients into chunks, merges what comes back, and keeps the journal."""

    def __init__(
        self,
        key: RoundKey,
        clients: Indices,
        partial: Partial,
        *,
        sizes: Sizes,
        pool: WorkerPool,
        hosting: Hosting,
        journal: Journal,
        pace: Pace,
        notify: Notify,
    ) -> None:
        self.answer: Answer = Future()
        self._key = key
        self._clients = clients
        self._partial = partial
        self._sizes = sizes
        self._pool = pool
        self._hosting = hosting
        self._journal = journal
        self._pace = pace
        self._notify = notify
        self._name = f"round {key.round_number}"
        self._pieces: list[Piece] = []
        self._passing: list[int] = []
        self._done: list[Indices] = []
        self._open = 0
        self._busy_s = 0.0
        self._samples = 0
        self._given_up = False

    def begin(self, model: SharedModel) -> None:
        """Take over what a predecessor had done, and send out the rest."""
        saved = self._journal.recover(self._key)
        if saved is not None:
            partial, done = saved
            self._partial.merge(partial)
            self._done.append(done)
        left = np.setdiff1d(self._clients, self._covered(), assume_unique=True)
        if not len(left):
            self._finish()
            return
        self._pieces = [self._piece(left[part], model) for part in self._parts(left)]
        self._open = len(self._pieces)
        self._pool.submit(self._pieces)

    def abandon(self) -> None:
        """Another round is asked for: whoever asked for this one waits no longer."""
        if not self.answer.done():
            self._give_up()
            self.answer.cancel()

    def _give_up(self) -> None:
        """Send out no more chunks, and take no notice of those that are."""
        self._given_up = True
        self._pool.withdraw(self._pieces)
        self._hosting.leave(self._passing, f"{self._name} was given up")

    def _parts(self, left: Indices) -> list[Indices]:
        costs = self._sizes(left)
        seconds = self._pace.expected_s(int(costs.sum()))
        return deal(costs, how_many(len(left), self._pool.size, seconds))

    def _piece(self, clients: Indices, model: SharedModel) -> Piece:
        passing = self._hosting.enter(clients.tolist(), f"in the cohort of {self._name}")
        self._passing += passing
        piece = Piece(
            method="train_chunk",
            args=(self._key.round_number, self._key.coarser, clients),
            what=f"training {len(clients)} clients of {self._name}",
            model=model,
            on_sent=lambda worker: self._sent(passing, worker),
        )
        piece.answer.add_done_callback(
            lambda done: or_fail(self.answer, lambda: self._chunk_done(passing, done))
        )
        return piece

    def _sent(self, passing: list[int], worker: int) -> None:
        if not self._given_up:
            here = self._hosting.passing(passing)
            self._hosting.carry(here, worker, f"in a chunk of {self._name}")

    def _chunk_done(self, passing: list[int], done: Future[ChunkResult]) -> None:
        if self._given_up:
            return
        error = done.exception()
        if error is not None:
            self._hosting.fail(passing, str(error))
            self._give_up()
            self.answer.set_exception(error)
            return
        result = done.result()
        self._hosting.leave(passing, f"{self._name} is done with it")
        self._partial.merge(result.partial)
        self._done.append(result.clients)
        self._busy_s += result.seconds
        self._samples += result.samples
        self._open -= 1
        if self._open:
            self._save(result.seconds)
        else:
            self._finish()

    def _save(self, worked_s: float) -> None:
        covered = self._covered()
        self._journal.note(self._key, self._partial, covered, worked_s)
        counts = {"round": self._key.round_number, "done": len(covered), "of": len(self._clients)}
        self._notify(Payload(kind="clients_done", header=counts))

    def _finish(self) -> None:
        self._pace.measured(self._samples, self._busy_s)
        self._journal.close_round()
        header, tensors = self._partial.to_wire()
        self.answer.set_result(Payload(kind="partial", header={"partial": header}, tensors=tensors))

    def _covered(self) -> Indices:
        return np.concatenate(self._done) if self._done else np.empty(0, dtype=np.int64)
