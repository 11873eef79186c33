"""GraphRound: a round of clients that have models of their own and mix them with their neighbors'.

The workers train each client from its own model. Here the site mixes what they became, saves it as
the clients' states, and answers with the sum of all: the mean over the clients is the run's model.
A client whose training is not finite is named; it keeps its model, and its neighbors do without it
in this round. If this process dies, the round is trained again from the saved states.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedpilot.mediator import Payload

from ...core.lifecycle import Visit
from ...core.population.sampling import Indices
from ...core.rounds.chunking import ranges
from ...core.state import Roles, State, averaged
from ...core.sums.partial import Partial, Tally
from ...core.topology.mixing import Mixing
from ...engine.journal import RoundKey
from ...engine.sums.summing import RunningSum
from ...engine.training.modules import client_digests
from ...errors import FederatedError
from ..cohorts import Cohort
from ..object_store import INLINE_BYTES
from ..orders import Answer, or_fail
from ..states.layouts import Stack
from ..states.shared_memory import Lent, SharedStack
from ..workers.attempt import Attempt, NodesTrained
from ..workers.pool import SharedModel, WorkerCall
from .client_models import THREADS, ModelsInMemory, beyond_range, largest_of, mix_models, squares_of
from .surroundings import RoundProgress, Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """What all rounds of a run on a graph share."""

    clients: Indices
    """All of the population, in the order in which their models lie: most samples first."""
    samples: Indices
    """(k,): of each, in that order."""
    mixing: Callable[[int], Mixing]
    """By round number; its nodes are the clients in that order."""
    steps: int
    """How often neighbors mix in a round."""
    initial: State
    roles: Roles
    client_id: Callable[[int], str]
    memory: ModelsInMemory


class GraphRound:
    """One order of one round at this site, for all clients of the graph."""

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
        graph: GraphSettings,
    ) -> None:
        """`mean` is the mean over the clients' models before this round."""
        self.answer: Answer = Future()
        self.key = key
        self.cohort = cohort
        self.on_lingering: Callable[[], None] = lambda: None
        self._attempt = attempt
        self._progress = RoundProgress(site.notify, key, len(cohort.clients), time.perf_counter)
        self._mean = mean
        self._site = site
        self._graph = graph
        self._name = f"round {key.round_number}"
        self._own: SharedStack | None = None
        """The models before the round; None if all are the first one."""
        self._became: SharedStack | None = None
        clients = len(graph.clients)
        self._sizes = {name: np.zeros(clients) for name in averaged(graph.roles)}
        """By name each client's largest move from the mean."""
        self._sent: set[int] = set()
        """Where the parts that a worker got begin."""
        self._sent_again = False
        self._losses = np.zeros(clients)
        self._calls: list[WorkerCall] = []
        self._visits: list[Visit] = []
        self._open = 0
        self._samples = 0
        self._busy_s = 0.0
        self._arithmetic_s = 0.0
        self._given_up = False
        self._lock = threading.RLock()

    def begin(self, model: SharedModel) -> None:
        """Load the clients' models and send the clients out."""
        if self._site.states is None or len(self.cohort.clients) != self.cohort.whole:
            raise FederatedError(f"{self._name}: this site has a part of the graph only")
        before = self.key.round_number - 1
        self._own = self._graph.memory.take(before)
        if before and self._own is None:
            self._own = self._graph.memory.room()
            saved = self._site.states.load_stack(self._graph.clients, before + 1)
            self._own.stack.rows[...] = saved.rows
        self._became = self._graph.memory.room()
        workers, pace = self._site.pool.size, self._site.pace.seconds_per_sample
        parts = ranges(self._graph.samples, workers, pace)
        self._open = len(parts)
        for part in parts:  # a worker begins while the next one's models are on their way
            with self._lock:
                if self._given_up:
                    return
                call = self._call(part, model)
                self._calls.append(call)
                self._site.pool.submit([call])

    def abandon(self) -> None:
        """Cancel the answer, since another round supersedes this one."""
        if not self.answer.done():
            self._give_up()
            self.answer.cancel()

    def close(self) -> None:
        """Do nothing: a round on a graph is whole or not at all."""

    # -- training -----------------------------------------------------------------------------

    def _call(self, part: slice, model: SharedModel) -> WorkerCall:
        clients = self._graph.clients[part]
        visit = self._site.placement.enter(clients, f"in the cohort of {self._name}")
        self._visits.append(visit)
        call = WorkerCall(
            method="train_nodes",
            args=(self._attempt, clients, *self._models_of(part)),
            what=f"training {len(clients)} clients of {self._name}",
            model=model,
            on_sent=lambda worker: self._is_sent(part, visit, worker),
        )
        call.answer.add_done_callback(
            lambda done: or_fail(self.answer, lambda: self._trained(part, visit, done))
        )
        call.answer.add_done_callback(lambda _: self._forget(call))
        return call

    def _models_of(self, part: slice) -> tuple[Any, Lent | None]:
        """The models that some clients begin with, and the memory for what they become."""
        if self._became is not None and self._site.pool.shares_memory:
            return self._own and self._own.lend(part), self._became.lend(part)
        if self._own is None:
            return None, None
        own = self._own.stack.part(part)
        return (self._site.put(own) if own.rows.nbytes > INLINE_BYTES else own), None

    def _is_sent(self, part: slice, visit: Visit, worker: int) -> None:
        self._site.placement.carry(visit, worker, f"in a chunk of {self._name}")
        self._sent_again |= part.start in self._sent
        self._sent.add(part.start)

    def _forget(self, call: WorkerCall) -> None:
        """Let go of the models in a call: with its callbacks it would live on for long."""
        call.args = ()
        with self._lock:
            self._calls.remove(call)

    def _trained(self, part: slice, visit: Visit, done: Future[NodesTrained]) -> None:
        if self._given_up or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._site.placement.fail(visit, str(error))
            self._give_up()
            self.answer.set_exception(error)
            return
        result = done.result()
        self._site.placement.leave(visit, f"{self._name} is done with it")
        if result.states is not None and self._became is not None:
            self._became.stack.rows[part] = result.states.rows
        for name, sizes in result.sizes.items():
            self._sizes[name][part] = sizes
        self._losses[part] = result.losses
        self._samples += result.samples
        self._busy_s += result.seconds
        self._arithmetic_s += result.training_seconds
        self._open -= 1
        self._progress.trained(part.stop - part.start, more=self._open > 0)
        if not self._open:
            self._site.pace.measured(self._samples, self._busy_s)
            mixing = threading.Thread(target=lambda: or_fail(self.answer, self._mix), name="mixing")
            mixing.start()  # the pool's thread has other calls to look after

    def _give_up(self) -> None:
        with self._lock:
            self._given_up = True
            self._site.pool.withdraw(self._calls)
        for visit in self._visits:
            self._site.placement.leave(visit, f"{self._name} was given up")

    # -- mixing -------------------------------------------------------------------------------

    def _mix(self) -> None:
        memory, models, own = self._graph.memory, self._became, self._own
        assert models is not None
        self._became = self._own = None
        if self._sent_again:
            # A worker that is thought to be dead may still rewrite the same bytes, at any time.
            written, models = models, memory.room()
            models.stack.rows[...] = written.stack.rows
        absent = self._keep_what_is_finite(models.stack, own)
        other = own or memory.room()
        mixing = self._graph.mixing(self.key.round_number)
        mixing = mixing.without(absent) if len(absent) else mixing
        exponents, sizes = self._attempt.exponents, self._sizes
        with ThreadPoolExecutor(THREADS) as threads:
            for step in range(self._graph.steps):
                if step:
                    sizes = largest_of(models.stack, self._mean, exponents)
                beyond = beyond_range(sizes, mixing, exponents)
                if beyond:
                    self.answer.set_result(self._answer(absent, self._beyond(absent, beyond)))
                    return
                mix_models(models.stack, other.stack, self._mean, sizes, mixing, exponents, threads)
                models, other = other, models
            saved = threads.submit(self._save, models.stack)
            total = self._summed(absent, models.stack)
            answer = self._answer(absent, total, models.stack)
            saved.result()
        memory.keep(self.key.round_number, models, other)
        self.answer.set_result(answer)

    def _save(self, models: Stack) -> None:
        if self._site.states is not None:
            self._site.states.save_stack(self.key.round_number, self._graph.clients, models)

    def _keep_what_is_finite(self, models: Stack, own: SharedStack | None) -> Indices:
        """Put the models of clients whose training is not finite back; returns their places."""
        fine = np.isfinite(self._losses)
        for sizes in self._sizes.values():
            fine &= np.isfinite(sizes)
        absent = np.flatnonzero(~fine)
        if not len(absent):
            return absent
        before = {} if own is None else own.stack.columns
        for name, array in models.columns.items():
            array[absent] = before[name][absent] if before else self._graph.initial[name]
        kept = largest_of(models.part(absent), self._mean, self._sizes)
        for name, sizes in kept.items():
            self._sizes[name][absent] = sizes
        return absent

    def _there(self, absent: Indices) -> slice | Indices:
        """The places of the other clients."""
        if not len(absent):
            return slice(None)
        return np.setdiff1d(np.arange(len(self._graph.clients)), absent)

    def _answer(self, absent: Indices, total: Partial, mixed: Stack | None = None) -> Payload:
        clients, there = self._graph.clients, self._there(absent)
        total.refused = [self._graph.client_id(index) for index in clients[absent].tolist()]
        total.tally = Tally()
        total.tally.add_clients(self._graph.samples[there], self._losses[there])
        header, tensors = total.to_wire()
        told = {
            "partial": header,
            "busy_seconds": self._busy_s,
            "training_seconds": self._arithmetic_s,
            "squares": 0.0
            if mixed is None
            else squares_of(mixed, self._mean, averaged(self._graph.roles), there),
            "digests": {} if mixed is None else self._digests(clients, mixed),
        }
        return Payload(kind="partial", header=told, tensors=tensors)

    def _digests(self, clients: Indices, mixed: Stack) -> Mapping[str, Mapping[str, str]]:
        """Digests of every client's model, if they are asked for."""
        if not self._attempt.digests:
            return {}
        names = map(self._graph.client_id, clients.tolist())
        return dict(zip(names, client_digests(mixed.tensors), strict=True))

    def _summed(self, absent: Indices, mixed: Stack) -> Partial:
        """The sum of how far each model is from the mean before the round; each weighs 1."""
        there = self._there(absent)
        clients = self._graph.clients[there]
        if not len(clients):
            return Partial(self._attempt.exponents)
        mean = {name: torch.from_numpy(np.array(array)) for name, array in self._mean.items()}
        running = RunningSum(mean, self._graph.roles, self._graph.client_id)
        running.begin(mean, self._attempt.exponents)
        rows = {name: tensor[there] for name, tensor in mixed.tensors.items()}
        running.add(clients, rows, np.ones(len(clients), np.int64), np.zeros(len(clients)))
        return running.take()

    def _beyond(self, absent: Indices, bounds: Mapping[str, int]) -> Partial:
        """A Partial that says which tensors left their range; its sums are never used."""
        exponents = self._attempt.exponents
        total = Partial(exponents, bounds={name: bounds.get(name, 0) for name in exponents})
        for name in exponents:
            total.sums[name] = np.zeros(self._mean[name].shape, np.int64)
        total.weight = total.clients = len(self._graph.clients[self._there(absent)])
        return total
