"""FederatedWorkload: one federation's part at one site, from its gang to its last answer.

It holds the site's data and the warm workers. A round is one order with the model and a share of
the population. The site derives the cohort from (seed, round), cuts it into chunks for its workers,
and answers with one exact Partial. If a site is lost, the others get orders for its clients. A
single VirtualNode's work is a chunk of one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpilot.fabric import Gang
from fedpilot.mediator import Notify, Payload, SiteContext, SiteLost
from fedpilot.mediator.core.rules.disclosure import Declaration
from fedpilot.mediator.core.rules.wants import Wants
from fedpilot.mediator.federation.futures import done

from ..algorithms import algorithm_of
from ..config.telling import DISTRIBUTION, understood
from ..core.algorithm import Needs
from ..core.population.federated_data.place import Place
from ..core.population.sampling import Indices
from ..core.population.shares import taken, unpacked
from ..core.rounds.exchange_costs import EXCHANGE_FORMAT
from ..core.rounds.sitting_out import late_taken
from ..core.state import State
from ..core.sums.partial import Partial, grid
from ..engine.journal import Journal
from ..errors import FederatedError, VersionsDiffer, WorkersNotUp
from ..prepare.grouping import steps_of
from ..prepare.inputs.data_at_sites import gather_here
from ..prepare.inputs.local_data import take_over
from ..prepare.inputs.run_inputs import RunInputs
from ..prepare.topology import GRAPH, topology_at_site
from ..prepare.user_code.importing import make_importable
from ..prepare.user_code.user_code import archive_of, carried
from .cohorts import Cohorts
from .disclosure.content_pin import hold_to
from .disclosure.disclosure_gate import DisclosureGate
from .disclosure.policy_facts import covered, wants
from .evaluation import Evaluator
from .node_placement import NodePlacement
from .object_store import STORE_BYTES, GlobalObjectStore, SharedModels
from .orders import Answer, execution_of, key_of
from .published_states import PublishedStates
from .rounds.graph_mixing import Crossing, GraphMixing
from .rounds.graph_part import GraphPart, layout_of, part_of
from .rounds.graph_round import GraphRound
from .rounds.node_evaluation import NodeEvaluator
from .rounds.replicas import SiteReplicas
from .rounds.round_queue import RoundQueue
from .rounds.star_round import SiteRound
from .rounds.surroundings import Pace, Surroundings
from .single_nodes import SingleNodes
from .states.client_memory import ClientMemory
from .states.client_states import ClientStates
from .workers.attempt import Attempt
from .workers.node import FederatedNode, NodeSettings
from .workers.pool import WorkerPool
from .workers.vnode_classes import likes_of, made_of

if TYPE_CHECKING:
    from ..core.topology.graphs import Topology


class FederatedWorkload:
    """Implements the mediator's SiteWorkload for federated learning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._placement = NodePlacement(clock)
        self._pace = Pace()
        self._rounds = RoundQueue()
        self._memory = ClientMemory()
        self._attempts = itertools.count(1)
        self._handlers: Mapping[str, Callable[[Payload], Answer]] = {}
        """By kind of order; empty before the start."""
        self._started = ExitStack()
        """Ends what was started, the last first."""
        self._gate: DisclosureGate | None = None
        """The gate for the data, if it is the site's own."""
        self._graph_round: GraphRound | None = None
        """The latest one."""
        self._attempt_key = ""
        """Of that round's attempt."""
        self._held_in: str | None = None
        """The run folder that holds the digest of the data's content, once checked."""

    # -- SiteWorkload -------------------------------------------------------------------------

    def wants(self, spec: Payload, site: SiteContext) -> Wants:
        """What the spec asks of the site; loads neither its data nor the user's code."""
        return wants(spec, site)

    def covered(self, answer: Payload) -> int:
        """How many of the site's clients an answer is about."""
        return covered(answer)

    def prepare(self, spec: Payload, site: SiteContext) -> None:
        """Load the objects of the spec's config; ConfigError for a mismatch.

        Raises DataUnusable if declared data differ from the declaration or from those that the run
        began with, and PolicyRefused if an answer would reveal too much. From here on the run's
        code is imported; the policy has approved its digest.
        """
        self._code = archive_of(spec)
        if self._code:
            make_importable(self._code)
        self._config = understood(spec.header)
        self._inputs = self._gathered(spec, site)
        self._paths = tuple(spec.header["paths"])
        self._like = likes_of(spec.header)
        self._site, self._folder = site.name, site.folder
        self._needs = algorithm_of(self._config.federation).needs
        self._cohorts = Cohorts(self._config, self._inputs)
        self._journal = Journal(None, self._site)
        partition = self._inputs.data.partition
        self._graphs = topology_at_site(self._config, partition, spec.tensors)
        self._part: GraphPart | None = None
        self._part_is_of: Topology | None = None
        self._adapted: tuple[str, Topology] | None = None
        """The last graph that an order brought, by its digest."""
        if self._gate is not None:
            self._check_company(self._gate)
        if self._folder is not None:
            self._hold_to_content(str(self._folder))

    def _check_company(self, gate: DisclosureGate) -> None:
        """Raise PolicyRefused if no sum of some coming round may leave."""
        if self._needs is Needs.EVERY_UPDATE:
            gate.check_updates()
        if self._config.federation.is_graph:
            gate.check_neighbors()
        if gate.least > 1 and (alone := self._cohorts.first_alone()) is not None:
            gate.check_company(f"round {alone}", 1)

    def _hold_to_content(self, folder: str) -> None:
        """Raise DataUnusable if the site's own data has changed since the run began."""
        if self._gate is None or self._held_in == folder:
            return
        name, digest = self._gate.dataset, self._inputs.data_digest
        hold_to(Path(folder), self._site, name, digest)
        self._held_in = folder

    def _gathered(self, spec: Payload, site: SiteContext) -> RunInputs:
        self._gate = self._held_in = None
        if self._config.data.from_ is None:
            return take_over(spec.header["materials"], self._config)
        place = Place.from_json(spec.header.get("place"))
        made = gather_here(self._config, site.name, site.data, place)
        declaration = Declaration.from_json(place.dataset, site.data[place.dataset])
        self._gate = DisclosureGate(site.name, declaration)
        return made

    def start(self, gang: Gang, notify: Notify) -> None:
        """Start a FederatedNode on every vnode and wait until all have answered."""
        self._gang, gate = gang, self._gate
        self._notify = notify if gate is None else gate.told_to(notify)
        resources = self._config.resources
        settings = NodeSettings(
            model=self._config.model,
            carried=carried(self._config),
            training=self._config.training,
            evaluation_batch=self._config.evaluation.batch_size,
            seed=self._config.run.random_seed,
            threads=1,
            device="cpu",
            paths=self._paths,
            code=self._code,
            needs=self._needs,
            steps=steps_of(self._config),
            push_sum=self._config.federation.pushes,
            max_norm=self._config.robustness.max_client_norm,
        )
        self._pool = WorkerPool(
            gang,
            FederatedNode,
            made_of(resources, settings, gang.put(self._inputs.data)),
            restarts=resources.worker_restarts,
            timeout_s=resources.worker_timeout,
            alike=self._config.run.reproducible == "strict",
            like=self._like,
            compares_classes=resources.alike,
            on_event=self._on_pool_event,
            on_idle=lambda: self._nodes.evict_idle(),
            on_notice=self._rounds.hand_up,
        )
        limit = resources.store_bytes or STORE_BYTES
        store = GlobalObjectStore(gang.put, limit_bytes=limit, folder=self._folder)
        self._models = SharedModels(self._site, gang.put, store)
        published = PublishedStates(store, self._inputs.initial)
        self._nodes = nodes = SingleNodes(
            self._placement,
            self._pool,
            self._models,
            published,
            self._memory,
            self._inputs,
            resources.node_idle_timeout,
        )
        evaluator = Evaluator(
            self._config,
            self._inputs,
            self._cohorts,
            self._pool,
            self._models,
            self._check_order,
        )
        self._node_evaluator = NodeEvaluator(self._config, self._inputs)
        self._mixes = ThreadPoolExecutor(1, "mixing")
        self._handlers = {
            "round": self._train_round,
            "close_round": self._close_round,
            "give_states": self._give_states,
            "take_states": self._take_states,
            "mix": self._mix,
            "evaluate": evaluator.evaluate,
            "evaluate_nodes": self._evaluate_nodes,
            "node.materialize": nodes.materialize,
            "node.train": nodes.train,
            "node.evaluate": nodes.evaluate,
            "node.aggregate": nodes.aggregate,
            "node.keep": published.keep,
            "node.give": published.give,
            "node.release": nodes.release,
            "node.show": nodes.show,
            **self._of_replicas(),
        }
        for each in (self._memory, store, self._pool):
            self._started.callback(each.close)
        self._started.callback(self._mixes.shutdown)
        self._pool.start()
        try:
            self._pool.wait_up(resources.start_timeout)
        except TimeoutError:
            up, size, seconds = self._pool.up, self._pool.size, resources.start_timeout
            raise WorkersNotUp(up, size, seconds, str(gang.load())) from None
        except FederatedError as error:
            raise error if gate is None else gate.error(error) from None

    def deliver(self, order: Payload) -> Answer:
        """Pass an order to the handler of its kind."""
        if not self._handlers:
            raise FederatedError("the workload has not been started")
        if self._gate is None:
            return self._handlers[order.kind](order)
        self._gate.check(order)
        try:
            return self._gate.answered(self._handlers[order.kind](order))
        except Exception as error:
            raise self._gate.error(error) from None

    def stop(self) -> None:
        """End the workers; unfinished work fails."""
        self._started.close()
        self._graph_round = None

    # -- a round ------------------------------------------------------------------------------

    def _train_round(self, order: Payload) -> Answer:
        header = order.header
        tensors = {k: v for k, v in order.tensors.items() if not k.startswith(GRAPH)}
        state, model = self._models.of_round(header["model"], tensors)
        self._journal = self._journal.at(self._kept_in(header))
        self._hold_to_content(self._kept_in(header))
        key = key_of(header)
        cohort = self._cohorts.of_order(header, key)
        self._check_order(f"round {key.round_number}", len(cohort.nodes(cohort.clients)))
        nothing = self._nothing_yet(state, key.coarser)
        attempt = Attempt(
            number=next(self._attempts),
            round_number=key.round_number,
            exponents=nothing.exponents,
            execution=execution_of(header),
            digests=self._config.outputs.client_digests,
        )
        surroundings = self._surroundings(self._states_in(header, cohort.clients))
        if self._graphs is not None:
            graphs, folder = self._graphs_of(order), Path(self._kept_in(header))
            part = self._part_at_work(cohort.clients, graphs, folder)
            left_by = late_taken(header.get("late", []), part.clients, key.round_number - 1)
            self._graph_round = GraphRound(attempt, key, cohort, state, surroundings, part, left_by)
            self._attempt_key = _attempt_of(header)
            self._rounds.add(self._graph_round, model)
            return self._graph_round.answer
        begun = SiteRound(
            attempt,
            key,
            cohort,
            nothing,
            surroundings,
            tells_covered=header.get("tells_covered", False),
            late_for=header.get("late_for", 0),
            least=1 if self._gate is None else self._gate.least,
        )
        self._rounds.add(begun, model)
        if "counted" not in header:
            following, share = key.round_number + 1, header["share"]
            self._pool.meanwhile(lambda: self._cohorts.plan_ahead(following, share))
        return begun.answer

    def _surroundings(self, states: ClientStates | None) -> Surroundings:
        return Surroundings(
            pool=self._pool,
            put=self._gang.put,
            placement=self._placement,
            journal=self._journal,
            pace=self._pace,
            notify=self._notify,
            states=states,
            classes=self._inputs.classes,
        )

    def _evaluate_nodes(self, order: Payload) -> Answer:
        """Evaluate clients' own models, as the order's round has left them."""
        header = order.header
        _, model = self._models.of_round(header["model"], order.tensors)
        path = self._path_of_states(header)
        states = self._memory.of_round(path, header["round"], oldest_checkpoint=0)
        return self._node_evaluator.evaluate(header, model, self._surroundings(states))

    def _graphs_of(self, order: Payload) -> Topology:
        """The graph of an order's round; SiteLost if it came with an earlier order, and is gone."""
        digest, graphs = order.header.get("graph"), self._graphs
        assert graphs is not None
        if digest is None:
            return graphs
        brought = {k: v for k, v in order.tensors.items() if k.startswith(GRAPH)}
        if brought:
            partition = self._inputs.data.partition
            found = topology_at_site(self._config, partition, brought)
            assert found is not None
            self._adapted = digest, found
        if self._adapted is None or self._adapted[0] != digest:
            raise SiteLost(self._site, f"graph {digest[:12]} has not arrived there")
        return self._adapted[1]

    def _part_at_work(self, clients: Indices, graphs: Topology, folder: Path) -> GraphPart:
        part = self._part
        if part is None or not np.array_equal(np.sort(part.clients), clients):
            part = part_of(self._config, self._inputs, graphs, clients, folder)
        elif self._part_is_of is not graphs:  # the models stay in memory
            new = part_of(self._config, self._inputs, graphs, clients, folder)
            part = replace(new, memory=part.memory)
        self._part, self._part_is_of = part, graphs
        return part

    def _give_states(self, order: Payload) -> Answer:
        to, step = taken(order.header["to"]), order.header["step"]
        crossing = self._crossing_of(order)
        return self._mixes.submit(lambda: self._mixing_of(order).give(to, step, crossing))

    def _take_states(self, order: Payload) -> Answer:
        of, step = taken(order.header["of"]), order.header["step"]
        crossing = self._crossing_of(order)
        return self._mixes.submit(
            lambda: self._mixing_of(order).take(of, order.tensors, step, crossing)
        )

    def _crossing_of(self, order: Payload) -> Crossing:
        """What an order says about what crosses; VersionsDiffer for a format of a later version."""
        form = order.header.get("exchange", 1)
        if form == 1:  # the states of absent clients cross as well
            return Crossing(np.empty(0, dtype=np.int64), sums=False)
        if form != EXCHANGE_FORMAT:
            lacking = f"its orders exchange models in format {form}"
            raise VersionsDiffer("a later one", version(DISTRIBUTION), lacking)
        return Crossing(self._absent_in(order), sums=True)

    def _absent_in(self, order: Payload) -> Indices:
        absent = np.array(order.header["absent"], dtype=np.int64)
        if (counted := order.header.get("counted")) is None:
            return absent
        there = unpacked(counted, self._inputs.population)
        return np.union1d(absent, np.flatnonzero(~there))

    def _mix(self, order: Payload) -> Answer:
        absent, step = self._absent_in(order), order.header["step"]
        return self._mixes.submit(lambda: self._mixing_of(order).mix(absent, step))

    def _mixing_of(self, order: Payload) -> GraphMixing:
        """What the order's attempt at a round has trained; SiteLost if that is gone."""
        trained = self._graph_round
        if trained is None or self._attempt_key != order.header["attempt"] or not trained.mixing:
            raise SiteLost(self._site, f"what round {order.header['round']} trained is not there")
        return trained.mixing

    def _check_order(self, what: str, clients: int) -> None:
        """Raise PolicyRefused for an order whose answer would have too few clients to leave."""
        if self._gate is not None:
            self._gate.check_company(what, clients)

    def _close_round(self, order: Payload) -> Answer:
        begun = self._rounds.find(key_of(order.header))
        if begun is not None:
            begun.close()
        return done(Payload, kind="closing")

    def _kept_in(self, header: Mapping[str, Any]) -> str:
        """The folder of the journal: this site's own, or the run folder in an order."""
        return str(self._folder or header["journal"])

    def _nothing_yet(self, model: State, coarser: int) -> Partial:
        """An empty Partial for a round, into which others are merged."""
        if self._needs is Needs.EVERY_UPDATE:
            return Partial.keeping_updates()
        return Partial(grid(model, self._inputs.roles, coarser))

    def _states_in(self, header: Mapping[str, Any], clients: Indices) -> ClientStates | None:
        """Clients' states between rounds, where the algorithm allows any."""
        if not self._config.clients_keep_states:
            return None
        path, late = self._path_of_states(header), None
        if values := header.get("late"):
            late = clients, late_taken(values, clients, header["round"] - 1)
        states = self._memory.of_round(path, header["round"], header["oldest_checkpoint"], late)
        past, every = header["round"] - 2, self._config.outputs.checkpoint_every
        if self._graphs is not None and past % every and past not in header["checkpoints"]:
            states.forget_round(past)
        if self._config.participation.replicate_every is not None:
            states.forget_rounds_but(header["checkpoints"])  # the oldest one stays for a replica
        return states

    def _states_of_replicas(self, header: Mapping[str, Any]) -> ClientStates:
        return self._memory.of_round(self._path_of_states(header), header["round"], 0)

    def _of_replicas(self) -> Mapping[str, Callable[[Payload], Answer]]:
        """The handlers of orders about copies of clients' states, if the run makes any."""
        if not self._config.participation.copies_states:
            return {}
        layout, population = layout_of(self._config, self._inputs), self._inputs.population
        states_of, path_of = self._states_of_replicas, self._path_of_states
        return SiteReplicas(layout, population, states_of, path_of, self._mixes).handlers

    def _path_of_states(self, header: Mapping[str, Any]) -> Path:
        return Path(self._kept_in(header)) / f"{self._site}.clients.sqlite"

    # -- events -------------------------------------------------------------------------------

    def _on_pool_event(self, kind: str, details: dict[str, Any]) -> None:
        if kind in ("worker_lost", "worker_left"):
            self._placement.lose(details["worker"], details["reason"])
        if kind == "workers_starting":
            busy = self._gang.load()
            nice = {} if busy.niceness is None else {"niceness": busy.niceness}
            details |= {"within": self._config.resources.start_timeout, "cpus": busy.cpus}
            details |= {"load": busy.average, **nice}
        self._notify(Payload(kind=kind, header={"site": self._site, **details}))


def _attempt_of(header: Mapping[str, Any]) -> str:
    """The attempt at a round on a graph; VersionsDiffer for an order of a version without any."""
    if "attempt" not in header:
        lacking = "its orders do not separate the training of a graph from its mixing"
        raise VersionsDiffer("an earlier one", version(DISTRIBUTION), lacking)
    return str(header["attempt"])
