"""Runs the work of single VirtualNodes at a site, each on its home worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedpilot.mediator import Payload
from fedpilot.mediator.federation.futures import done, then

from ..core.state import State, under
from ..core.sums.partial import Tally
from ..prepare.inputs.run_inputs import RunInputs
from .node_placement import NodePlacement
from .object_store import SharedModels
from .orders import Answer, execution_of, tallied
from .published_states import LACKING, PublishedStates
from .states.client_memory import ClientMemory
from .workers.pool import WorkerCall, WorkerPool


class SingleNodes:
    """Handles orders about single VirtualNodes, and releases idle ones."""

    def __init__(
        self,
        placement: NodePlacement,
        pool: WorkerPool,
        models: SharedModels,
        published: PublishedStates,
        memory: ClientMemory,
        inputs: RunInputs,
        idle_timeout_s: float,
    ) -> None:
        self._placement, self._pool, self._models, self._memory = placement, pool, models, memory
        self._published = published
        self._partition, self._classes = inputs.data.partition, inputs.classes
        self._idle_timeout_s = idle_timeout_s

    def materialize(self, order: Payload) -> Answer:
        """Have a worker load and keep a client's samples."""
        index = order.header["client"]
        call = self._call("host", "materializing", index, index)
        return self._ask_home(index, call, "materialize", lambda made: self._hosted(index, made))

    def _hosted(self, index: int, result: Mapping[str, int]) -> Payload:
        if (evicted := result["evicted"]) >= 0:
            self._placement.let_go(evicted, "its worker hosts more recent nodes")
        return Payload(kind="hosted", header={"client": index, "samples": result["samples"]})

    def train(self, order: Payload) -> Answer:
        """Train one client with its memory from rounds; keep nothing of this training."""
        index, round_number = order.header["client"], order.header["round"]
        kept = self._memory.load(index, round_number)
        execution = execution_of(order.header)
        call = self._call("train_one", "training", index, index, round_number, execution, kept)
        call.model = self._models.of_one(order.header["model"], order.tensors)

        def trained(made: tuple[State, Tally]) -> Payload:
            state, tally = made
            return Payload(kind="trained", header={"tally": tally.to_json()}, tensors=state)

        return self._ask_home(index, call, "train", trained)

    def evaluate(self, order: Payload) -> Answer:
        """Evaluate a model on one client's samples."""
        index = order.header["client"]
        call = self._call("evaluate_one", "evaluating at", index, index)
        call.model = self._models.of_one(order.header["model"], order.tensors)
        return self._ask_home(index, call, "evaluate", tallied)

    def aggregate(self, order: Payload) -> Answer:
        """Combine several models into one, at a client's worker.

        They come with the order, or they are published states that it names; the answer says which
        of these are not here.
        """
        index, weights = order.header["client"], order.header["weights"]
        wanted = order.header.get("states", ())
        if lacking := self._published.lacking(wanted):
            return done(Payload, kind=LACKING, header={"keys": lacking})
        states = self._published.read(wanted)
        states += [under(f"{i}/", order.tensors) for i in range(len(weights) - len(states))]
        name = self._partition.client_id(index)
        call = self._call("aggregate", "aggregating at", index, name, states, weights)
        whole = under("global/", order.tensors)
        call.model = self._models.of_one(order.header["model"], whole)

        def aggregated(made: State) -> Payload:
            self._published.finish(wanted, index)
            return Payload(kind="aggregated", tensors=made)

        return self._ask_home(index, call, "aggregate", aggregated)

    def release(self, order: Payload) -> Answer:
        """Have a client's worker drop its samples."""
        index = order.header["client"]
        worker = self._placement.where(index)
        if worker is None:
            return done(Payload, kind="released")
        evicting = self._evict(index, worker, "release() was called")
        return then(evicting.answer, lambda _: Payload(kind="released"))

    def show(self, order: Payload) -> Answer:
        """Answer with a node's state."""
        index = order.header["client"]
        held = {"samples": self._partition.size(index)}
        return done(Payload, kind="node", header=self._placement.show(index) | held)

    def evict_idle(self) -> None:
        """Release nodes that were idle for long."""
        limit = self._idle_timeout_s
        for index, worker in self._placement.idle(limit):
            self._evict(index, worker, f"idle for more than {limit:g} s")

    def _call(self, method: str, doing: str, index: int, *args: Any) -> WorkerCall:
        what = f"{doing} {self._partition.client_id(index)}"
        return WorkerCall(method=method, args=args, what=what)

    def _ask_home(
        self, index: int, call: WorkerCall, asked: str, finish: Callable[[Any], Payload]
    ) -> Answer:
        """Send a VirtualNode's work to its home worker, and answer with the result."""
        call.on_sent = lambda worker: self._placement.bind(index, worker)
        self._placement.begin(index, f"{asked}() was called")
        call.answer.add_done_callback(lambda done: self._placement.end(index, done.exception()))
        if self._classes is not None:
            call.vnode_class = self._classes.name_of(index)
        home = self._placement.home(index, self._pool.usable(call.vnode_class))
        self._pool.submit([call], worker=home, moves=True)
        return then(call.answer, finish)

    def _evict(self, index: int, worker: int, reason: str) -> WorkerCall:
        self._placement.let_go(index, reason)
        call = self._call("evict", "releasing", index, index)
        self._pool.submit([call], worker=worker, moves=True)
        return call
