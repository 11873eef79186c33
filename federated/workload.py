"""FederatedWorkload: one federation's part at one site, from its gang to its last answer.

It holds the site's data, the warm workers and the ledger of VirtualNodes. A round arrives as one
order with the model; the site derives its own cohort from (seed, round), cuts it into chunks, feeds
them to whoever is free, and answers with one exact Partial. A single VirtualNode's work takes the
same path as a chunk of one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from fedpilot.fabric import Gang
from fedpilot.mediator import Notify, Payload

from .config.schema import RunConfig
from .core.chunking import deal, how_many
from .core.lifecycle import Ledger, NodeEvent, NodeState
from .core.partial import Partial, Tally, grid
from .core.sampling import Indices, cohort, evaluation_cohort, share
from .core.state import Array, State, nbytes
from .engine.journal import Journal, RoundKey
from .errors import FederatedError
from .materials import Materials, take_over
from .models import registered
from .node import ChunkResult, FederatedNode, NodeSettings
from .pool import Piece, SharedModel, WorkerPool

START_TIMEOUT_S = 300.0
"""How long the first workers may take to import PyTorch and load the model."""


class FederatedWorkload:
    """Implements the mediator's SiteWorkload for federated learning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tickets = itertools.count(1)
        self._answers: dict[str, Future[Payload]] = {}
        self._lock = threading.RLock()
        self._ledger = Ledger()
        self._homes: dict[int, tuple[int, float]] = {}
        """Hosted VirtualNode -> (worker, when it was last used)."""
        self._working: Counter[int] = Counter()
        """Single VirtualNodes that wait for an answer, and for how many."""
        self._round: _Round | None = None
        self._pool: WorkerPool | None = None
        self._seconds_per_sample: float | None = None

    # -- SiteWorkload -------------------------------------------------------------------------

    def prepare(self, spec: Payload) -> None:
        """Load what the spec's configuration names; ConfigError for what does not fit."""
        self._config = RunConfig.model_validate(spec.header["config"], strict=False)
        self._materials: Materials = take_over(spec.header["materials"], self._config)
        self._mine = range(*spec.header["mine"])
        self._paths = tuple(spec.header["paths"])
        self._site = spec.header["site"]
        self._journal = Journal(None, self._site)

    def start(self, gang: Gang, notify: Notify) -> None:
        """Start a FederatedNode on every vnode and wait until all have answered."""
        self._notify = notify
        resources = self._config.resources
        settings = NodeSettings(
            model=self._config.model,
            registered=registered(self._config.model.model_type),
            training=self._config.training,
            evaluation_batch=self._config.evaluation.batch_size,
            seed=self._config.run.random_seed,
            threads=max(1, int(resources.cpus_per_worker)),
            device="cuda" if resources.gpus_per_worker else "cpu",
            paths=self._paths,
        )
        self._pool = WorkerPool(
            gang,
            FederatedNode,
            (settings, gang.put(self._materials.data)),
            restarts=resources.worker_restarts,
            timeout_s=resources.worker_timeout,
            on_event=self._on_pool_event,
            on_idle=self._evict_idle,
        )
        self._pool.start()
        self._pool.wait_up(START_TIMEOUT_S)

    def deliver(self, order: Payload) -> str:
        """Take an order; the kinds are the keys of the table below."""
        handlers: Mapping[str, Callable[[Payload], Future[Payload]]] = {
            "round": self._train_round,
            "evaluate": self._evaluate,
            "node.materialize": self._materialize,
            "node.train": self._train_node,
            "node.evaluate": self._evaluate_node,
            "node.aggregate": self._aggregate_node,
            "node.release": self._release_node,
            "node.show": self._show_node,
        }
        ticket = str(next(self._tickets))
        self._answers[ticket] = handlers[order.kind](order)
        return ticket

    def collect(self, ticket: str) -> Future[Payload]:
        """The answer to an order, once."""
        return self._answers.pop(ticket)

    def stop(self) -> None:
        """End the workers; what is undone fails."""
        if self._pool is not None:
            self._pool.close()

    # -- a round ------------------------------------------------------------------------------

    def _train_round(self, order: Payload) -> Future[Payload]:
        header, state = order.header, order.tensors
        self._journal = self._journal.at(header["journal"])
        key = RoundKey(header["round"], header["model"], header["coarser"])
        clients = self._own(
            cohort(
                self._materials.population,
                self._materials.cohort_size,
                self._config.run.random_seed,
                key.round_number,
            )
        )
        if self._round is not None:
            self._round.abandon()
        round_ = _Round(self, key, clients, Partial(self._grid(state, key.coarser)))
        self._round = round_
        round_.resume(self._journal.recover(key))
        round_.begin(self._running.share(key.model, state, nbytes(state.values())))
        return round_.answer

    def _grid(self, state: State, coarser: int) -> dict[str, int]:
        return grid(state, self._materials.roles, coarser)

    def _own(self, indices: Indices) -> Indices:
        mine = self._mine
        inside = (indices >= mine.start) & (indices < mine.stop)
        own: Indices = indices[inside & ((indices - mine.start) % mine.step == 0)]
        return own

    # -- evaluation ---------------------------------------------------------------------------

    def _evaluate(self, order: Payload) -> Future[Payload]:
        header = order.header
        model = self._running.share(header["model"], order.tensors, nbytes(order.tensors.values()))
        what = f"evaluating the model of round {header['round']}"
        if header["on"] == "test":
            pieces = self._test_pieces(model, what)
        else:
            pieces = self._client_pieces(header["round"], model, what)
        self._running.submit(pieces)
        return _gathered(
            [piece.answer for piece in pieces],
            lambda tallies: Payload(kind="tally", header={"tally": _total(tallies).to_json()}),
        )

    def _test_pieces(self, model: SharedModel, what: str) -> list[Piece]:
        samples, batch = len(self._materials.data.test_y), self._config.evaluation.batch_size
        batches = -(-samples // batch)
        parts = min(batches, self._running.size)
        cuts = [min(samples, batches * i // parts * batch) for i in range(parts + 1)]
        return [
            Piece(method="evaluate_test", args=(start, stop), what=what, model=model)
            for start, stop in itertools.pairwise(cuts)
        ]

    def _client_pieces(self, round_number: int, model: SharedModel, what: str) -> list[Piece]:
        clients = self._own(self._judges(round_number))
        costs = self._materials.data.partition.sizes(clients)
        parts = deal(costs, how_many(len(clients), self._running.size, None))
        return [
            Piece(method="evaluate_clients", args=(clients[part],), what=what, model=model)
            for part in parts
            if len(part)
        ]

    def _judges(self, round_number: int) -> Indices:
        evaluation, seed = self._config.evaluation, self._config.run.random_seed
        population = self._materials.population
        match evaluation.clients:
            case "sampled":
                return cohort(population, self._materials.cohort_size, seed, round_number)
            case "fraction":
                size = share(population, evaluation.fraction or 1.0)
                return evaluation_cohort(population, size, seed, round_number)
            case "all":
                return np.arange(population, dtype=np.int64)

    # -- single VirtualNodes ------------------------------------------------------------------

    def _materialize(self, order: Payload) -> Future[Payload]:
        index = order.header["client"]
        worker = self._home(index)
        piece = Piece(
            method="host",
            args=(index,),
            what=f"materializing {self._client_id(index)}",
            on_sent=lambda number: self._bind(index, number),
        )
        answer = _gathered([piece.answer], lambda results: self._hosted(index, results[0]))
        self._begin(index, piece, "materialize() was called")
        self._running.submit([piece], worker=worker)
        return answer

    def _hosted(self, index: int, result: Mapping[str, int]) -> Payload:
        if (evicted := result["evicted"]) >= 0:
            self._let_go(evicted, "its worker hosts more recent nodes")
        return Payload(kind="hosted", header={"client": index, "samples": result["samples"]})

    def _home(self, index: int) -> int:
        """The worker that hosts a node, or shall from now on: the one that hosts the fewest."""
        with self._lock:
            worker, _ = self._homes.get(index, (-1, 0.0))
            usable = self._running.usable() or (0,)
            if worker not in usable:
                hosts = [number for number, _ in self._homes.values()]
                worker = min(usable, key=hosts.count)
            self._homes[index] = (worker, self._clock())
            return worker

    def _train_node(self, order: Payload) -> Future[Payload]:
        header = order.header
        piece = self._node_piece(order, "train_one", "training", header["round"])

        def trained(results: list[Any]) -> Payload:
            state, tally = results[0]
            return Payload(kind="trained", header={"tally": tally.to_json()}, tensors=state)

        return _gathered([piece.answer], trained)

    def _evaluate_node(self, order: Payload) -> Future[Payload]:
        piece = self._node_piece(order, "evaluate_one", "evaluating")
        return _gathered(
            [piece.answer],
            lambda tallies: Payload(kind="tally", header={"tally": tallies[0].to_json()}),
        )

    def _aggregate_node(self, order: Payload) -> Future[Payload]:
        index, weights = order.header["client"], order.header["weights"]
        states = [_under(f"{i}/", order.tensors) for i in range(len(weights))]
        model = _under("global/", order.tensors)
        client_id = self._client_id(index)
        piece = Piece(
            method="aggregate",
            args=(client_id, states, weights),
            what=f"aggregating at {client_id}",
            model=self._running.share(order.header["model"], model, nbytes(model.values())),
        )
        self._running.submit([piece], worker=self._home(index))
        return _gathered(
            [piece.answer], lambda results: Payload(kind="aggregated", tensors=results[0])
        )

    def _node_piece(self, order: Payload, method: str, doing: str, *args: Any) -> Piece:
        index = order.header["client"]
        state = order.tensors
        piece = Piece(
            method=method,
            args=(index, *args),
            what=f"{doing} {self._client_id(index)}",
            model=self._running.share(order.header["model"], state, nbytes(state.values())),
            on_sent=lambda number: self._bind(index, number),
        )
        self._begin(index, piece, f"{doing} was asked for")
        self._running.submit([piece], worker=self._home(index))
        return piece

    def _begin(self, index: int, piece: Piece, reason: str) -> None:
        """Note that a node is needed, and what becomes of it when the work is done."""

        def settle(done: Future[Any]) -> None:
            with self._lock:
                self._working[index] -= 1
                if index in self._homes:
                    self._homes[index] = (self._homes[index][0], self._clock())
                if (error := done.exception()) is not None:
                    self._homes.pop(index, None)
                    self._apply_where_able([index], NodeEvent.FAIL, str(error))

        with self._lock:
            self._working[index] += 1
            self._apply([index], NodeEvent.REQUEST, reason)
        piece.answer.add_done_callback(settle)

    def _bind(self, index: int, worker: int) -> None:
        """A worker hosts a node; one released while its work waited is needed after all."""
        with self._lock:
            if not self._ledger.able([index], NodeEvent.BIND):
                self._apply([index], NodeEvent.REQUEST, "its work had been asked for before")
            self._apply([index], NodeEvent.BIND, "its worker", worker)

    def _release_node(self, order: Payload) -> Future[Payload]:
        index = order.header["client"]
        home = self._homes.get(index)
        if home is None:
            return _settled(Payload(kind="released"))
        piece = Piece(method="evict", args=(index,), what=f"releasing {self._client_id(index)}")
        self._let_go(index, "release() was called")
        self._running.submit([piece], worker=home[0])
        return _gathered([piece.answer], lambda _: Payload(kind="released"))

    def _show_node(self, order: Payload) -> Future[Payload]:
        index = order.header["client"]
        with self._lock:
            record = self._ledger.record(index)
        now = self._clock()
        return _settled(
            Payload(
                kind="node",
                header={
                    "state": str(record.state),
                    "worker": record.worker,
                    "reason": record.reason,
                    "seconds": now - record.since if record.trail else None,
                    "samples": self._materials.data.partition.size(index),
                    "trail": [[now - at, str(event), why] for at, event, why in record.trail],
                },
            )
        )

    def _evict_idle(self) -> None:
        limit = self._config.resources.node_idle_timeout
        now = self._clock()
        with self._lock:
            idle = [
                (index, worker)
                for index, (worker, used) in self._homes.items()
                if now - used > limit and not self._working[index]
            ]
        for index, worker in idle:
            self._let_go(index, f"idle for more than {limit:g} s")
            piece = Piece(method="evict", args=(index,), what=f"evicting {self._client_id(index)}")
            self._running.submit([piece], worker=worker)

    def _let_go(self, index: int, reason: str) -> None:
        with self._lock:
            self._homes.pop(index, None)
            self._apply_where_able([index], NodeEvent.RELEASE, reason)

    # -- shared -------------------------------------------------------------------------------

    @property
    def _running(self) -> WorkerPool:
        if self._pool is None:
            raise FederatedError("the workload has not been started")
        return self._pool

    def _client_id(self, index: int) -> str:
        return self._materials.data.partition.client_id(index)

    def _apply(
        self, indices: Iterable[int], event: NodeEvent, reason: str, worker: int | None = None
    ) -> None:
        name = "" if worker is None else f"worker {worker}"
        with self._lock:
            self._ledger.apply(indices, event, now=self._clock(), reason=reason, worker=name)

    def _apply_where_able(self, indices: Iterable[int], event: NodeEvent, reason: str) -> None:
        with self._lock:
            self._apply(self._ledger.able(indices, event), event, reason)

    def _passing(self, indices: Iterable[int]) -> list[int]:
        """Those of a round's clients that are not hosted apart from it."""
        with self._lock:
            return [index for index in indices if index not in self._homes]

    def _on_pool_event(self, kind: str, details: dict[str, Any]) -> None:
        if kind == "worker_lost":
            name = f"worker {details['worker']}"
            with self._lock:
                hosted = self._ledger.in_state(NodeState.MATERIALIZED)
                lost = [index for index in hosted if self._ledger.record(index).worker == name]
                self._apply(lost, NodeEvent.LOSE, f"{name} was lost: {details['reason']}")
        self._notify(Payload(kind=kind, header=details))


class _Round:
    """One attempt at one round at this site: chunks out, one Partial back."""

    def __init__(
        self, workload: FederatedWorkload, key: RoundKey, clients: Indices, partial: Partial
    ) -> None:
        self.answer: Future[Payload] = Future()
        self._site = workload
        self._key = key
        self._clients = clients
        self._partial = partial
        self._done: list[Indices] = []
        self._open = 0
        self._busy_s = 0.0
        self._samples = 0
        self._resumed = 0
        self._pieces: list[Piece] = []
        self._passing: list[int] = []
        """Clients that exist for this round only."""
        self._abandoned = False

    def abandon(self) -> None:
        """Another round is asked for: whoever asked for this one waits no longer."""
        if not self.answer.done():
            self._give_up()
            self.answer.cancel()

    def _give_up(self) -> None:
        """Send out no more chunks, and take no notice of those that are."""
        self._abandoned = True
        self._site._running.withdraw(self._pieces)
        left = self._site._passing(self._passing)
        self._site._apply_where_able(left, NodeEvent.RELEASE, "its round was given up")

    def resume(self, saved: tuple[Partial, Indices] | None) -> None:
        """Take over what a predecessor had done of this round."""
        if saved is None:
            return
        partial, done = saved
        self._partial.merge(partial)
        self._done.append(done)
        self._resumed = len(done)

    def begin(self, model: SharedModel) -> None:
        """Send out what is left."""
        left = np.setdiff1d(self._clients, self._covered(), assume_unique=True)
        if not len(left):
            self._finish()
            return
        self._pieces = [self._piece(left[part], model) for part in self._parts(left)]
        self._open = len(self._pieces)
        self._site._running.submit(self._pieces)

    def _parts(self, left: Indices) -> list[Indices]:
        costs = self._site._materials.data.partition.sizes(left)
        per_sample = self._site._seconds_per_sample
        seconds = None if per_sample is None else per_sample * float(costs.sum())
        return deal(costs, how_many(len(left), self._site._running.size, seconds))

    def _piece(self, clients: Indices, model: SharedModel) -> Piece:
        site, number = self._site, self._key.round_number
        passing = site._passing(clients.tolist())
        self._passing += passing
        site._apply(passing, NodeEvent.REQUEST, f"in the cohort of round {number}")
        piece = Piece(
            method="train_chunk",
            args=(number, self._key.coarser, clients),
            what=f"training {len(clients)} clients of round {number}",
            model=model,
            on_sent=lambda worker: self._sent(passing, worker),
        )
        piece.answer.add_done_callback(
            lambda done: _or_fail(self.answer, lambda: self._chunk_done(passing, done))
        )
        return piece

    def _sent(self, passing: list[int], worker: int) -> None:
        if not self._abandoned:
            reason = f"in a chunk of round {self._key.round_number}"
            self._site._apply(passing, NodeEvent.BIND, reason, worker)

    def _chunk_done(self, passing: list[int], done: Future[ChunkResult]) -> None:
        site = self._site
        if self._abandoned:
            return
        error = done.exception()
        if error is not None:
            site._apply_where_able(passing, NodeEvent.FAIL, str(error))
            self._give_up()
            self.answer.set_exception(error)
            return
        over = site._passing(passing)  # others were materialized by themselves meanwhile
        site._apply(over, NodeEvent.RELEASE, f"round {self._key.round_number} is done with it")
        result = done.result()
        self._partial.merge(result.partial)
        self._done.append(result.clients)
        self._busy_s += result.seconds
        self._samples += result.samples
        self._open -= 1
        if self._open:
            covered = self._covered()
            site._journal.note(self._key, self._partial, covered, result.seconds)
            counts = {"round": self._key.round_number, "done": len(covered)}
            site._notify(Payload(kind="clients_done", header={**counts, "of": len(self._clients)}))
        elif not self.answer.done():
            self._finish()

    def _finish(self) -> None:
        if self._samples:
            self._site._seconds_per_sample = self._busy_s / self._samples
        self._site._journal.close_round()
        header, tensors = self._partial.to_wire()
        about = {"busy_s": self._busy_s, "resumed": self._resumed}
        self.answer.set_result(
            Payload(kind="partial", header={"partial": header, **about}, tensors=tensors)
        )

    def _covered(self) -> Indices:
        return np.concatenate(self._done) if self._done else np.empty(0, dtype=np.int64)


def _total(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total


def _settled(payload: Payload) -> Future[Payload]:
    answer: Future[Payload] = Future()
    answer.set_result(payload)
    return answer


def _gathered(parts: list[Future[Any]], finish: Callable[[list[Any]], Payload]) -> Future[Payload]:
    """The answer made of several results, or the first error among them."""
    answer: Future[Payload] = Future()
    open_ = itertools.count(len(parts) - 1, -1)

    def one_done(done: Future[Any]) -> None:
        left = next(open_)
        done.result()
        if left == 0:
            answer.set_result(finish([part.result() for part in parts]))

    if not parts:
        answer.set_result(finish([]))
    for part in parts:
        part.add_done_callback(lambda done: _or_fail(answer, lambda: one_done(done)))
    return answer


def _or_fail(answer: Future[Payload], act: Callable[[], None]) -> None:
    """Do something in a callback, where an error would be logged and forgotten."""
    try:
        act()
    except BaseException as error:
        if not answer.done():
            answer.set_exception(error)


def _under(prefix: str, tensors: State) -> dict[str, Array]:
    """The tensors whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): a for n, a in tensors.items() if n.startswith(prefix)}
