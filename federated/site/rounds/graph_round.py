"""GraphRound: the training of a graph's clients at this site, each from a model of its own.

What they become waits in memory until it is mixed (`graph_mixing`). A client whose training is not
finite keeps its model, and is absent from the mixing. If this process dies, the round is trained
again from the saved states.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from fedpilot.mediator import Payload

from ...core.lifecycle import Visit
from ...core.population.sampling import Indices
from ...core.population.vnode_classes import by_class
from ...core.rounds.chunking import ranges
from ...core.rounds.exchange_costs import EXCHANGE_FORMAT
from ...core.state import State, averaged
from ...engine.journal import RoundKey
from ...errors import FederatedError
from ..cohorts import Cohort
from ..object_store import INLINE_BYTES
from ..orders import Answer, or_fail
from ..states.client_states import ClientStates
from ..states.shared_memory import Lent, SharedStack
from ..workers.attempt import Attempt, NodesTrained
from ..workers.pool import SharedModel, WorkerCall
from .client_models import largest_of
from .graph_mixing import GraphMixing, LocalTraining
from .graph_part import GraphPart
from .surroundings import ClassTimes, RoundProgress, Surroundings

TRAINED = "graph_trained"
"""The kind of an answer that says which clients are absent from the mixing."""


class GraphRound:
    """One order to train all clients of the graph at this site."""

    late_for = 0
    may_be_late = False
    lingers = False

    def __init__(
        self,
        attempt: Attempt,
        key: RoundKey,
        cohort: Cohort,
        mean: State,
        site: Surroundings,
        part: GraphPart,
        left_by: Indices,
    ) -> None:
        """`mean` is the mean over the clients' models before this round.

        `left_by` (k,) is the round that left each client's model, in the order of the part.
        """
        self.answer: Answer = Future()
        self.key = key
        self.cohort = cohort
        self.on_lingering: Callable[[], None] = lambda: None
        self.mixing: GraphMixing | None = None
        """The next step, once all are trained."""
        self._attempt = attempt
        self._progress = RoundProgress(site.notify, key, len(cohort.clients), time.perf_counter)
        self._mean = mean
        self._site = site
        self._part = part
        self._left_by = left_by
        self._name = f"round {key.round_number}"
        self._own: SharedStack | None = None
        """The models before the round; None if all are the first one."""
        self._became: SharedStack | None = None
        self._trained = LocalTraining.nothing(len(part.clients), averaged(part.roles))
        self._sent: set[int] = set()
        """Where the parts that a worker got begin."""
        self._sent_again = False
        self._calls: list[WorkerCall] = []
        self._visits: list[Visit] = []
        self._open = 0
        self._times = ClassTimes()
        self._given_up = False
        self._lock = threading.RLock()

    def hand_up(self) -> None:
        """Do nothing: what clients become comes with their pieces."""

    def begin(self, model: SharedModel) -> None:
        """Load the clients' models and send the clients out."""
        if self._site.states is None:
            raise FederatedError(f"{self._name}: this site has no place for the clients' models")
        part = self._part
        _, others = part.full_mixing(self.key.round_number)
        self._room = len(part.clients) + len(others)
        self._own = self._models_before(self._site.states)
        if self._own is not None and not part.trains(self.key.round_number):
            self._mix_only(self._own)
            return
        self._became = part.memory.room(self._room)
        parts = self._parts()
        self._open = len(parts)
        for each, vnode_class in parts:
            # A worker begins while the next one's models are on their way.
            with self._lock:
                if self._given_up:
                    return
                call = self._call(each, vnode_class, model)
                self._calls.append(call)
                self._site.pool.submit([call])

    def _parts(self) -> list[tuple[slice, str | None]]:
        """The pieces of work: clients of one vnode class, whose models lie side by side."""
        samples, found = self._part.samples, list[tuple[slice, str | None]]()
        for vnode_class, at in by_class(self._site.classes, self._part.clients):
            workers, pace = self._site.pool.size_of(vnode_class), self._site.pace.of(vnode_class)
            first = int(at[0])
            found += [
                (slice(first + cut.start, first + cut.stop), vnode_class)
                for cut in ranges(samples[at], workers, pace)
            ]
        return found

    def _models_before(self, states: ClientStates) -> SharedStack | None:
        """The models that the clients begin with; None in the first round."""
        part, before, left_by = self._part, self.key.round_number - 1, self._left_by
        here = part.memory.take(before)
        if here is not None and (left_by == before).all():
            return here
        if not before:
            return None
        del here  # its memory is used again
        own = part.memory.room(self._room)
        begun, number = np.flatnonzero(left_by), self.key.round_number
        if len(begun) == len(left_by):
            room, let_go = own.stack, own.let_go
            states.load_stack(part.clients, number, left_by, into=room, after_each=let_go)
            return own
        for some in own.blocks(np.flatnonzero(left_by == 0)):
            for name, column in own.stack.columns.items():
                column[some] = part.first[name]
        for some in own.blocks(begun) if len(begun) else ():
            own.stack.rows[some] = states.load_stack(part.clients[some], number, left_by[some]).rows
        return own

    def abandon(self) -> None:
        """Cancel the answer, since another round supersedes this one."""
        if not self.answer.done():
            self._give_up()
            self.answer.cancel()

    def close(self) -> None:
        """Do nothing: a round on a graph is whole or not at all."""

    def _call(self, part: slice, vnode_class: str | None, model: SharedModel) -> WorkerCall:
        clients = self._part.clients[part]
        visit = self._site.placement.enter(clients, f"in the cohort of {self._name}")
        self._visits.append(visit)
        call = WorkerCall(
            method="train_nodes",
            args=(self._attempt, clients),
            args_at=self._models_of(part),
            what=f"training {len(clients)} clients of {self._name}",
            model=model,
            vnode_class=vnode_class,
            on_sent=lambda worker: self._is_sent(part, visit, worker),
        )
        call.answer.add_done_callback(
            lambda done: or_fail(self.answer, lambda: self._take(part, vnode_class, visit, done))
        )
        call.answer.add_done_callback(lambda _: self._forget(call))
        return call

    def _models_of(self, part: slice) -> Callable[[int], tuple[Any, Lent | None]]:
        """For a worker: models that some clients begin with, and memory for what they become.

        Both are lent where all share this process's memory; a worker that comes from elsewhere
        gets copies.
        """
        if not self._site.pool.shares_memory:
            sent = self._copied(part)
            return lambda _: (sent, None)
        return lambda worker: self._lent(part, worker)

    def _lent(self, part: slice, worker: int) -> tuple[Any, Lent | None]:
        if self._became is None or not self._site.pool.shares_memory_with(worker):
            return self._copied(part), None
        return self._own and self._own.lend(part), self._became.lend(part)

    def _copied(self, part: slice) -> Any:
        if self._own is None:
            return None
        own = self._own.stack.part(part)
        sent = self._site.put(own) if own.rows.nbytes > INLINE_BYTES else own
        self._own.let_go()
        return sent

    def _is_sent(self, part: slice, visit: Visit, worker: int) -> None:
        self._site.placement.carry(visit, worker, f"in a chunk of {self._name}")
        self._sent_again |= part.start in self._sent
        self._sent.add(part.start)

    def _forget(self, call: WorkerCall) -> None:
        """Let go of the models in a call: with its callbacks it would live on for long."""
        call.args, call.args_at = (), lambda _: ()
        with self._lock:
            self._calls.remove(call)

    def _take(
        self, part: slice, vnode_class: str | None, visit: Visit, done: Future[NodesTrained]
    ) -> None:
        if self._given_up or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._site.placement.fail(visit, str(error))
            self._give_up()
            self.answer.set_exception(error)
            return
        result, trained = done.result(), self._trained
        self._site.placement.leave(visit, f"{self._name} is done with it")
        if result.states is not None and self._became is not None:
            self._became.stack.rows[part] = result.states.rows
            self._became.let_go()
        for name, sizes in result.sizes.items():
            trained.sizes[name][part] = sizes
        trained.losses[part] = result.losses
        self._times.add(result.samples, result.seconds, vnode_class)
        trained.busy_s += result.seconds
        trained.arithmetic_s += result.training_seconds
        self._open -= 1
        self._progress.trained(part.stop - part.start, more=self._open > 0)
        if not self._open:
            self._times.tell(self._site.pace)
            ending = threading.Thread(target=lambda: or_fail(self.answer, self._end), name="graph")
            ending.start()  # the pool's thread has other calls to look after

    def _give_up(self) -> None:
        with self._lock:
            self._given_up = True
            self._site.pool.withdraw(self._calls)
        for visit in self._visits:
            self._site.placement.leave(visit, f"{self._name} was given up")

    def _mix_only(self, models: SharedStack) -> None:
        """End at once: the models wait for the mixing as they are."""
        self._own, count = None, len(self._part.clients)
        if len(models.stack) < self._room:
            written, models = models, self._part.memory.room(self._room)
            models.copy(written, slice(0, count))
        sizes = largest_of(models, slice(0, count), self._mean, self._trained.sizes)
        self._trained.sizes |= sizes
        self._finish(models, self._part.memory.room(self._room), np.arange(0))

    # -- the end of training --------------------------------------------------------------------

    def _end(self) -> None:
        models, own = self._became, self._own
        assert models is not None
        self._became = self._own = None
        if self._sent_again:
            # A worker that is thought to be dead may still rewrite the same bytes, at any time.
            written, models = models, self._part.memory.room(self._room)
            models.copy(written, slice(0, self._room))
        absent = self._keep_what_is_finite(models, own)
        if own is None or len(own.stack) < self._room:
            own = self._part.memory.room(self._room)
        self._finish(models, own, absent)

    def _finish(self, models: SharedStack, other: SharedStack, absent: Indices) -> None:
        self.mixing = GraphMixing(
            self._attempt,
            self._mean,
            self._part,
            self._site.states,
            self._trained,
            models,
            other,
        )
        header = {
            "absent": sorted(self._part.clients[absent].tolist()),
            "exchange": EXCHANGE_FORMAT,
        }
        self.answer.set_result(Payload(kind=TRAINED, header=header))

    def _keep_what_is_finite(self, models: SharedStack, own: SharedStack | None) -> Indices:
        """Put the models of clients whose training is not finite back; returns their places."""
        sizes = self._trained.sizes
        fine = np.isfinite(self._trained.losses)
        for each in sizes.values():
            fine &= np.isfinite(each)
        absent = np.flatnonzero(~fine)
        if not len(absent):
            return absent
        before = {} if own is None else own.stack.columns
        for some in models.blocks(absent):
            for name, array in models.stack.columns.items():
                array[some] = before[name][some] if before else self._part.first[name]
            if own is not None:
                own.let_go()
        kept = largest_of(models, absent, self._mean, sizes)
        for name, each in kept.items():
            sizes[name][absent] = each
        return absent
