"""VirtualNode: a client of the federation, which is only an id until it is used.

It holds no resources and no data: `materialize()` (called by `train`, `evaluate` and `aggregate`)
binds it to a warm FederatedNode at its site, until `release()`, a long idle time or displacement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedpilot.mediator import Payload

from ...core.lifecycle import NodeState
from ...core.state import Array, State
from ...core.sums.partial import Tally

if TYPE_CHECKING:
    from .topology_manager import TopologyManager


class NodeOwner(Protocol):
    """What a VirtualNode needs from its federation."""

    @property
    def round(self) -> int: ...

    @property
    def topology(self) -> TopologyManager | None:
        """Who exchanges with whom; None if it is not known, or not on a graph."""

    def client_id(self, index: int) -> str:
        """The id of a client."""

    def ask_node(self, index: int, order: Payload) -> Future[Payload]:
        """Send a client's order to its site; starts what that needs."""

    def show(self, index: int) -> Mapping[str, Any]:
        """The state of a client's node; starts nothing."""

    def model_or(self, model: State | None) -> tuple[str, State]:
        """The digest and the tensors of `model`, or of the global model."""

    def explain_assignment(self, index: int) -> Mapping[str, Any]:
        """Explain why a client belongs to its site: `sentences`, and the facts behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The result of a client's training."""

    client_id: str
    state: Mapping[str, Array]
    samples: int
    """The client's samples, its weight in an aggregation."""
    loss: float
    """Mean loss over its last epoch, measured while training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """How a model performs on a client's samples."""

    client_id: str
    samples: int
    accuracy: float
    loss: float


class VirtualNode:
    """One client; two of the same id in one federation are equal."""

    __slots__ = ("_federation", "_index")

    def __init__(self, federation: NodeOwner, index: int) -> None:
        self._federation = federation
        self._index = index

    @property
    def id(self) -> str:
        """The client's id."""
        return self._federation.client_id(self._index)

    @property
    def index(self) -> int:
        """Its place in the population, from 0."""
        return self._index

    @property
    def state(self) -> NodeState:
        """`virtual`, `pending`, `materialized`, `released` or `failed`."""
        return NodeState(self._show()["state"])

    def materialize(self) -> VirtualNode:
        """Bind this node to a worker and load its samples there; starts what is needed."""
        self._ask("node.materialize").result()
        return self

    def train(self, model: State | None = None) -> TrainResult:
        """Train the global model, or `model`, on this client's samples, as in a round."""
        self.materialize()
        return self._trained(self._train(model).result())

    async def train_async(self, model: State | None = None) -> TrainResult:
        """`train`, awaitable; several can run at a time. The first call blocks for the start."""
        await asyncio.wrap_future(self._ask("node.materialize"))
        return self._trained(await asyncio.wrap_future(self._train(model)))

    def evaluate(self, model: State | None = None) -> EvaluationResult:
        """Evaluate the global model, or `model`, on this client's samples."""
        self.materialize()
        return self._evaluated(self._evaluate(model).result())

    async def evaluate_async(self, model: State | None = None) -> EvaluationResult:
        """`evaluate`, awaitable."""
        await asyncio.wrap_future(self._ask("node.materialize"))
        return self._evaluated(await asyncio.wrap_future(self._evaluate(model)))

    @property
    def neighbors(self) -> tuple[str, ...]:
        """On a graph, the clients whose models this one mixes into its own in the next round."""
        return self._topology.neighbors(self.id, self._federation.round + 1)

    def publish(self, state: State) -> str:
        """On a graph, let those that take of this client in the next round have a state.

        Returns its key in the GlobalObjectStore of the client's site, `<run>/<client>/round_<n>`.
        """
        return self._topology.publish(self.id, state)

    def aggregate(self, results: Sequence[TrainResult] | None = None) -> dict[str, Array]:
        """The mean of other clients' models, weighted by samples, computed at this client.

        On a graph and without `results`: what this client and its neighbors have published for the
        next round, mixed by the graph's weights. Raises StateGone for what was read before by all
        that take of it.
        """
        if results is None:
            return self._mixed(self._topology)
        if not results:
            raise ValueError("nothing to aggregate: at least one TrainResult is needed")
        self.materialize()
        tensors = {f"{i}/{n}": a for i, r in enumerate(results) for n, a in r.state.items()}
        weights = [result.samples for result in results]
        answer = self._federation.ask_node(self._index, self._aggregation(weights, tensors))
        return dict(answer.result().tensors)

    def _mixed(self, topology: TopologyManager) -> dict[str, Array]:
        around = topology.around(self.id)
        read = [publication for publication, _ in around]
        self.materialize()
        states = [(each.key, each.digest) for each in read]
        order = self._aggregation([weight for _, weight in around], {}, states=states)
        return dict(topology.ask_with(self.id, order, read).tensors)

    def _aggregation(self, weights: Sequence[int], tensors: State, **header: Any) -> Payload:
        key, state = self._federation.model_or(None)
        header |= {"client": self._index, "weights": weights, "model": key}
        whole = {f"global/{name}": array for name, array in state.items()}
        return Payload(kind="node.aggregate", header=header, tensors={**tensors, **whole})

    def release(self) -> None:
        """Release the node's place at the worker."""
        if self.state in (NodeState.PENDING, NodeState.MATERIALIZED):
            self._ask("node.release").result()

    def explain(self) -> str:
        """Explain where this node is, why, what would move it, and its history."""
        first, *others = self._lines(self._show(), self._explained())
        return "\n".join([first, *(f"  {line}" for line in others)])

    def explanation(self) -> dict[str, Any]:
        """The facts that `explain` tells, and its lines as `sentences`."""
        shown, found = self._show(), self._explained()
        facts = {name: shown[name] for name in ("state", "worker", "samples", "trail")}
        lines = [line.strip() for line in self._lines(shown, found)]
        return {"id": self.id, **facts, **found, "sentences": lines}

    def _explained(self) -> Mapping[str, Any]:
        return self._federation.explain_assignment(self._index)

    def _lines(self, shown: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
        where = f" at {shown['worker']}" if shown["worker"] else ""
        held = "" if shown["samples"] is None else f", holds {shown['samples']} samples"
        return [
            f"{self.id}: {shown['state']}{where} ({shown['reason']}){held}",
            *map(str, found["sentences"]),
            *(f"{ago:8.1f} s ago  {what:<9} {why}" for ago, what, why in shown["trail"]),
        ]

    @property
    def _topology(self) -> TopologyManager:
        topology = self._federation.topology
        if topology is None:
            raise ValueError(f"{self.id} is on no graph: it has no neighbors here")
        return topology

    def _train(self, model: State | None) -> Future[Payload]:
        return self._ask_with("node.train", model, round=self._federation.round + 1)

    def _evaluate(self, model: State | None) -> Future[Payload]:
        return self._ask_with("node.evaluate", model)

    def _trained(self, answer: Payload) -> TrainResult:
        tally = Tally.from_json(answer.header["tally"])
        return TrainResult(
            client_id=self.id, state=answer.tensors, samples=tally.samples, loss=tally.mean_loss
        )

    def _evaluated(self, answer: Payload) -> EvaluationResult:
        tally = Tally.from_json(answer.header["tally"])
        return EvaluationResult(
            client_id=self.id, samples=tally.samples, accuracy=tally.accuracy, loss=tally.mean_loss
        )

    def _show(self) -> Mapping[str, Any]:
        return self._federation.show(self._index)

    def _ask_with(self, kind: str, model: State | None, **header: Any) -> Future[Payload]:
        key, state = self._federation.model_or(model)
        return self._ask(kind, tensors=state, model=key, **header)

    def _ask(self, kind: str, tensors: State | None = None, **header: Any) -> Future[Payload]:
        header["client"] = self._index
        return self._federation.ask_node(
            self._index, Payload(kind=kind, header=header, tensors=tensors or {})
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VirtualNode):
            return NotImplemented
        return self._federation is other._federation and self._index == other._index

    def __hash__(self) -> int:
        return hash((id(self._federation), self._index))

    def __repr__(self) -> str:
        return f"<VirtualNode {self.id} {self.state}>"
