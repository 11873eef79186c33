"""FederatedWorkload: one federation's part at one site, from its gang to its last answer.

It holds the site's data and the warm workers. A round arrives as one order with the model and the
clients it is about, a share of the population; the site derives their cohort from (seed, round),
cuts it into chunks, feeds them to whoever is free, and answers with one exact Partial. A site that
is lost leaves another order to the others. The work of a single VirtualNode takes the same path as
a chunk of one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedpilot.fabric import Gang
from fedpilot.mediator import Notify, Payload, SiteContext, SiteLost
from fedpilot.mediator.core.rules.disclosure import Declaration
from fedpilot.mediator.core.rules.wants import Wants

from ..algorithms import algorithm_of
from ..config.telling import understood
from ..core.algorithm import Needs
from ..core.execution.facts import Execution, Kind
from ..core.population.federated_data import Place
from ..core.population.shares import held, part_name, taken
from ..core.rounds.chunking import pieces
from ..core.state import Array, State, nbytes
from ..core.sums.partial import Partial, Tally, grid
from ..engine.journal import Journal, RoundKey
from ..errors import FederatedError, WorkersNotUp
from ..prepare.grouping import steps_of
from ..prepare.importing import make_importable
from ..prepare.inputs import Materials, gather_here, take_over
from ..prepare.user_code import archive_of, carried
from .client_states import ClientStates
from .cohorts import Cohorts
from .disclosure.content_pin import hold_to
from .disclosure.disclosure_gate import Leaving
from .disclosure.policy_facts import covered, wants
from .futures import Answer, gathered, settled
from .node_placement import Hosting
from .object_store import GlobalObjectStore
from .rounds import Pace, RoundQueue, SiteRound, Surroundings
from .workers.attempt import Attempt
from .workers.lru import KEEP
from .workers.node import FederatedNode, NodeSettings
from .workers.pool import Piece, SharedModel, WorkerPool

STORE_BYTES = 1 << 30
"""Model states that a site keeps in memory; more go to disk."""


class FederatedWorkload:
    """Implements the mediator's SiteWorkload for federated learning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._hosting = Hosting(clock)
        self._pace = Pace()
        self._rounds = RoundQueue()
        self._slots = itertools.cycle(f"model/{slot}" for slot in range(KEEP))
        self._store: GlobalObjectStore | None = None
        self._memories: tuple[str, ClientStates] | None = None
        """What clients keep between rounds, and the folder that it is in."""
        self._attempts = itertools.count(1)
        self._pool: WorkerPool | None = None
        self._leaving: Leaving | None = None
        """What may be said of the data, if it is the site's own."""
        self._held_in: str | None = None
        """The folder of the run that says what content its data has, once that was seen to."""

    # -- SiteWorkload -------------------------------------------------------------------------

    def wants(self, spec: Payload, site: SiteContext) -> Wants:
        """What the spec asks of the site; neither its data nor the user's code is loaded."""
        return wants(spec, site)

    def covered(self, answer: Payload) -> int:
        """How many of the site's clients an answer is about."""
        return covered(answer)

    def prepare(self, spec: Payload, site: SiteContext) -> None:
        """Load what the spec's configuration names; ConfigError for what does not fit.

        Of data that lies at sites it is what this site has declared, and DataUnusable says that it
        is not so, or not what the run began with. Code that came along is imported from here on:
        its digest was judged before. PolicyRefused where an answer would tell too much.
        """
        self._code = archive_of(spec)
        if self._code:
            make_importable(self._code)
        self._config = understood(spec.header)
        self._materials = self._gathered(spec, site)
        self._paths = tuple(spec.header["paths"])
        self._like = spec.header.get("like")
        self._site, self._folder = site.name, site.folder
        self._needs = algorithm_of(self._config.federation).needs
        self._cohorts = Cohorts(self._config, self._materials)
        self._journal = Journal(None, self._site)
        if self._leaving is not None:
            self._check_company(self._leaving)
        if self._folder is not None:
            self._hold_to_content(str(self._folder))

    def _check_company(self, leaving: Leaving) -> None:
        """PolicyRefused if rounds are known to come of which no sum may leave."""
        if self._needs is Needs.EVERY_UPDATE:
            leaving.check_updates()
        if leaving.least > 1 and (alone := self._cohorts.first_alone()) is not None:
            leaving.check_company(f"round {alone}", 1)

    def _hold_to_content(self, folder: str) -> None:
        """See to it that the site's own data is what it was when the run began."""
        if self._leaving is None or self._held_in == folder:
            return
        name, digest = self._leaving.dataset, self._materials.data_digest
        hold_to(Path(folder), self._site, name, digest)
        self._held_in = folder

    def _gathered(self, spec: Payload, site: SiteContext) -> Materials:
        self._leaving = self._held_in = None
        if self._config.data.from_ is None:
            return take_over(spec.header["materials"], self._config)
        place = Place.from_json(spec.header.get("place"))
        made = gather_here(self._config, site.name, site.data, place)
        declaration = Declaration.from_json(place.dataset, site.data[place.dataset])
        self._leaving = Leaving(site.name, declaration)
        return made

    def start(self, gang: Gang, notify: Notify) -> None:
        """Start a FederatedNode on every vnode and wait until all have answered."""
        self._gang, leaving = gang, self._leaving
        self._notify = notify if leaving is None else leaving.told_to(notify)
        self._store = GlobalObjectStore(gang.put, limit_bytes=STORE_BYTES)
        resources = self._config.resources
        settings = NodeSettings(
            model=self._config.model,
            carried=carried(self._config),
            training=self._config.training,
            evaluation_batch=self._config.evaluation.batch_size,
            seed=self._config.run.random_seed,
            threads=resources.threads_per_worker,
            device="cuda" if resources.gpus_per_worker else "cpu",
            paths=self._paths,
            code=self._code,
            needs=self._needs,
            steps=steps_of(self._config),
        )
        self._pool = WorkerPool(
            gang,
            FederatedNode,
            (settings, gang.put(self._materials.data)),
            restarts=resources.worker_restarts,
            timeout_s=resources.worker_timeout,
            alike=self._config.run.reproducible == "strict",
            like=self._like,
            on_event=self._on_pool_event,
            on_idle=self._evict_idle,
        )
        self._pool.start()
        try:
            self._pool.wait_up(resources.start_timeout)
        except TimeoutError:
            up, size, seconds = self._pool.up, self._pool.size, resources.start_timeout
            raise WorkersNotUp(up, size, seconds, str(gang.load())) from None
        except FederatedError as error:
            raise error if leaving is None else leaving.error(error) from None

    def deliver(self, order: Payload) -> Answer:
        """Take an order; the kinds are the keys of the table below."""
        handlers: Mapping[str, Callable[[Payload], Answer]] = {
            "round": self._train_round,
            "close_round": self._close_round,
            "evaluate": self._evaluate,
            "node.materialize": self._materialize,
            "node.train": self._train_node,
            "node.evaluate": self._evaluate_node,
            "node.aggregate": self._aggregate_at_node,
            "node.release": self._release_node,
            "node.show": self._show_node,
        }
        if self._leaving is None:
            return handlers[order.kind](order)
        self._leaving.check(order)
        try:
            return self._leaving.answered(handlers[order.kind](order))
        except Exception as error:
            raise self._leaving.error(error) from None

    def stop(self) -> None:
        """End the workers; what is undone fails."""
        if self._pool is not None:
            self._pool.close()
        if self._store is not None:
            self._store.close()
        if self._memories is not None:
            self._memories[1].close()

    # -- a round ------------------------------------------------------------------------------

    def _train_round(self, order: Payload) -> Answer:
        header = order.header
        state, model = self._model(header["model"], order.tensors)
        self._journal = self._journal.at(self._kept_in(header))
        self._hold_to_content(self._kept_in(header))
        key = _key(header)
        cohort = self._cohorts.of_order(header, key)
        self._check_order(f"round {key.round_number}", len(cohort.nodes(cohort.clients)))
        nothing = self._nothing_yet(state, key.coarser)
        begun = SiteRound(
            Attempt(
                number=next(self._attempts),
                round_number=key.round_number,
                exponents=nothing.exponents,
                execution=_execution(header),
                digests=self._config.outputs.client_digests,
            ),
            key,
            cohort,
            nothing,
            Surroundings(
                pool=self._running,
                hosting=self._hosting,
                journal=self._journal,
                pace=self._pace,
                notify=self._notify,
                states=self._states_in(header),
            ),
            tells_covered=header.get("tells_covered", False),
            late_for=header.get("late_for", 0),
            least=1 if self._leaving is None else self._leaving.least,
        )
        self._rounds.add(begun, model)
        if "counted" not in header:
            following, share = key.round_number + 1, header["share"]
            self._running.meanwhile(lambda: self._cohorts.plan_ahead(following, share))
        return begun.answer

    def _check_order(self, what: str, clients: int) -> None:
        """PolicyRefused for an order whose answer would be about too few clients to leave."""
        if self._leaving is not None:
            self._leaving.check_company(what, clients)

    def _close_round(self, order: Payload) -> Answer:
        """Have an order of a round answered with what is done of it."""
        begun = self._rounds.find(_key(order.header))
        if begun is not None:
            begun.close()
        return settled(Payload(kind="closing"))

    def _kept_in(self, header: Mapping[str, Any]) -> str:
        """The folder of the journal: this site's own, or the run folder that an order names."""
        return str(self._folder or header["journal"])

    def _nothing_yet(self, model: State, coarser: int) -> Partial:
        """What a round's Partials are merged into."""
        if self._needs is Needs.EVERY_UPDATE:
            return Partial.keeping_updates()
        return Partial(grid(model, self._materials.roles, coarser))

    def _states_in(self, header: Mapping[str, Any]) -> ClientStates | None:
        """What clients keep between rounds, where the algorithm lets them keep anything."""
        if self._config.training.client_update is None:
            return None
        folder = self._kept_in(header)
        if self._memories is None or self._memories[0] != folder:
            if self._memories is not None:
                self._memories[1].close()
            states = ClientStates(Path(folder) / f"{self._site}.clients.sqlite")
            # Rows of this very round may belong to clients that the journal counts as done.
            states.forget_after(header["round"])
            self._memories = folder, states
        states = self._memories[1]
        if header["oldest_checkpoint"] > 0:
            states.commit(header["oldest_checkpoint"])
        return states

    # -- evaluation ---------------------------------------------------------------------------

    def _evaluate(self, order: Payload) -> Answer:
        header = order.header
        _, model = self._model(header["model"], order.tensors)
        what = f"evaluating the model of round {header['round']}"
        if header["on"] == "test":
            clients, pieces = 1, self._test_pieces(model, what)
        else:
            clients, pieces = self._client_pieces(header, model, what)
        self._running.submit(pieces)
        return gathered(
            [piece.answer for piece in pieces],
            lambda parts: _told(_total(parts), clients=clients, on=header["on"]),
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

    def _client_pieces(
        self, header: Mapping[str, Any], model: SharedModel, what: str
    ) -> tuple[int, list[Piece]]:
        judges = self._cohorts.judges(header["round"])
        inside = held(judges, taken(header["share"]))
        if "counted" in header:
            inside &= held(judges, taken(header["counted"]))
        clients = judges[inside]
        self._check_order(what, len(clients))
        costs = self._materials.data.partition.sizes(clients)
        return len(clients), [
            Piece(method="evaluate_clients", args=(clients[part],), what=what, model=model)
            for part in pieces(costs, self._running.size, None)
        ]

    # -- single VirtualNodes ------------------------------------------------------------------

    def _materialize(self, order: Payload) -> Answer:
        index = order.header["client"]
        piece = Piece(method="host", args=(index,), what=f"materializing {self._client_id(index)}")
        self._submit_for(index, piece, "materialize() was called")
        return gathered([piece.answer], lambda results: self._hosted(index, results[0]))

    def _hosted(self, index: int, result: Mapping[str, int]) -> Payload:
        if (evicted := result["evicted"]) >= 0:
            self._hosting.let_go(evicted, "its worker hosts more recent nodes")
        return Payload(kind="hosted", header={"client": index, "samples": result["samples"]})

    def _train_node(self, order: Payload) -> Answer:
        """Train one client, who remembers what rounds left it with, and is not changed by this."""
        index, memories = order.header["client"], self._memories
        kept = memories[1].load([index], order.header["round"]) if memories is not None else {}
        piece = Piece(
            method="train_one",
            args=(index, order.header["round"], _execution(order.header), kept),
            what=f"training {self._client_id(index)}",
            model=self._shared(order.header["model"], order.tensors),
        )
        self._submit_for(index, piece, "train() was called")

        def trained(results: list[Any]) -> Payload:
            state, tally = results[0]
            return Payload(kind="trained", header={"tally": tally.to_json()}, tensors=state)

        return gathered([piece.answer], trained)

    def _evaluate_node(self, order: Payload) -> Answer:
        index = order.header["client"]
        piece = Piece(
            method="evaluate_one",
            args=(index,),
            what=f"evaluating at {self._client_id(index)}",
            model=self._shared(order.header["model"], order.tensors),
        )
        self._submit_for(index, piece, "evaluate() was called")
        return gathered([piece.answer], lambda tallies: _told(tallies[0]))

    def _aggregate_at_node(self, order: Payload) -> Answer:
        index, weights = order.header["client"], order.header["weights"]
        client_id = self._client_id(index)
        states = [_under(f"{i}/", order.tensors) for i in range(len(weights))]
        piece = Piece(
            method="aggregate",
            args=(client_id, states, weights),
            what=f"aggregating at {client_id}",
            model=self._shared(order.header["model"], _under("global/", order.tensors)),
        )
        self._submit_for(index, piece, "aggregate() was called")
        return gathered([piece.answer], lambda made: Payload(kind="aggregated", tensors=made[0]))

    def _submit_for(self, index: int, piece: Piece, reason: str) -> None:
        """Send a VirtualNode's work to the worker that is its home."""
        piece.on_sent = lambda worker: self._hosting.bind(index, worker)
        self._hosting.begin(index, reason)
        piece.answer.add_done_callback(lambda done: self._hosting.end(index, done.exception()))
        home = self._hosting.home(index, self._running.usable() or (0,))
        self._running.submit([piece], worker=home)

    def _release_node(self, order: Payload) -> Answer:
        index = order.header["client"]
        worker = self._hosting.where(index)
        if worker is None:
            return settled(Payload(kind="released"))
        evicting = self._evict(index, worker, "release() was called")
        return gathered([evicting.answer], lambda _: Payload(kind="released"))

    def _show_node(self, order: Payload) -> Answer:
        index = order.header["client"]
        held = {"samples": self._materials.data.partition.size(index)}
        return settled(Payload(kind="node", header=self._hosting.show(index) | held))

    def _evict_idle(self) -> None:
        limit = self._config.resources.node_idle_timeout
        for index, worker in self._hosting.idle(limit):
            self._evict(index, worker, f"idle for more than {limit:g} s")

    def _evict(self, index: int, worker: int, reason: str) -> Piece:
        self._hosting.let_go(index, reason)
        piece = Piece(method="evict", args=(index,), what=f"releasing {self._client_id(index)}")
        self._running.submit([piece], worker=worker)
        return piece

    # -- shared -------------------------------------------------------------------------------

    @property
    def _running(self) -> WorkerPool:
        if self._pool is None:
            raise FederatedError("the workload has not been started")
        return self._pool

    @property
    def _states(self) -> GlobalObjectStore:
        if self._store is None:
            raise FederatedError("the workload has not been started")
        return self._store

    def _model(self, key: str, state: State) -> tuple[State, SharedModel]:
        """A global model: the one that came along, or one that came before.

        SiteLost where neither is so: whoever sent it is to send it again, or have others do it.
        """
        if not state and key not in self._states:
            raise SiteLost(self._site, f"model {key[:12]} has not arrived there")
        if state and key not in self._states:
            self._states.put(next(self._slots), state, known=key)
        return self._states.get(key), SharedModel(key, self._states.shared(key))

    def _shared(self, key: str, state: State) -> SharedModel:
        """A model that came along with a single VirtualNode's work, and goes with its answer."""
        if key in self._states:
            return SharedModel(key, self._states.shared(key))
        return self._running.share(key, state, nbytes(state.values()))

    def _client_id(self, index: int) -> str:
        return self._materials.data.partition.client_id(index)

    def _on_pool_event(self, kind: str, details: dict[str, Any]) -> None:
        if kind == "worker_lost":
            self._hosting.lose(details["worker"], details["reason"])
        if kind == "workers_starting":
            busy = self._gang.load()
            nice = {} if busy.niceness is None else {"niceness": busy.niceness}
            details |= {"within": self._config.resources.start_timeout, "cpus": busy.cpus}
            details |= {"load": busy.average, **nice}
        self._notify(Payload(kind=kind, header={"site": self._site, **details}))


def _key(header: Mapping[str, Any]) -> RoundKey:
    part = part_name(taken(header["share"]), header.get("counted") or "")
    return RoundKey(header["round"], header["model"], header["coarser"], part)


def _execution(header: Mapping[str, Any]) -> Execution:
    kind, chunk_size = header["execution"]
    return Execution(Kind(kind), chunk_size)


def _total(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total


def _told(tally: Tally, **facts: int | str) -> Payload:
    return Payload(kind="tally", header={"tally": tally.to_json(), **facts})


def _under(prefix: str, tensors: State) -> dict[str, Array]:
    """The tensors whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): a for n, a in tensors.items() if n.startswith(prefix)}
