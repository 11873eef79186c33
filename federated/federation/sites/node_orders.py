"""NodeOrders: orders to single clients, and the state of their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpilot.mediator import Payload
from fedpilot.mediator.federation.futures import then

from ...core.lifecycle import NodeState
from ...core.proof.node_check import check_node
from ...core.state import State, digest
from ...core.sums.amounts import AnswerRefused
from ...errors import FederatedError
from ..setup.global_model import CurrentModel
from ..setup.loaded_config import LoadedConfig, execution_of
from .gang_session import GangSession

if TYPE_CHECKING:
    from ..clients.topology_manager import TopologyManager


NOT_ASSIGNED = "not assigned until the gang is reserved"


class NodeOrders:
    """Orders to the VirtualNodes of one federation, by their places in the population."""

    def __init__(self, gang: GangSession, loaded: LoadedConfig, model: CurrentModel) -> None:
        self._gang = gang
        self._loaded = loaded
        self._model = model

    def __len__(self) -> int:
        return self._loaded.inputs.population

    def client_id(self, index: int) -> str:
        """The id of the client at a place in the population."""
        return self._loaded.inputs.data.partition.client_id(index)

    def index_of(self, client_id: str) -> int:
        """A client's place in the population; UnknownClient (a KeyError) if there is none."""
        return self._loaded.inputs.data.partition.index_of(client_id)

    @property
    def run(self) -> str:
        """With what the ids of the federation's runs begin."""
        return self._loaded.config.run.name or self._gang.name

    @property
    def round(self) -> int:
        """Rounds that the global model has seen."""
        return self._model.now.round_number

    def model_or(self, model: State | None) -> tuple[str, State]:
        """The digest and the tensors of `model`, or of the global model.

        Raises FederatedError for a state whose tensors are not those of the federation's model.
        """
        if model is None:
            return self._model.now.digest, self._model.now.state
        initial = self._loaded.inputs.initial
        for name in sorted(initial.keys() | model.keys()):
            wanted, found = _kind(initial.get(name)), _kind(model.get(name))
            if wanted != found:
                raise FederatedError(
                    f"this is not the state of the federation's model: {name!r} is {found}, "
                    f"wanted {wanted}"
                )
        return digest(model), model

    def ask_node(self, index: int, order: Payload) -> Future[Payload]:
        """Send a client's order to its site; starts the gang if needed."""
        self._gang.start()
        mediator = self._gang.running("the federation is closed")
        header = {**order.header, "execution": execution_of(self._loaded.config)}
        return mediator.orders.deliver_to_client(
            index,
            replace(order, header=header),
            round_number=self.round,
            purpose="node",
            problem_of=partial(self._problem_of, order),
        )

    def _problem_of(self, order: Payload, answer: Payload) -> str:
        """What is wrong with an answer, in words; empty if nothing is."""
        try:
            model = self._loaded.inputs.initial
            check_node(order.kind, order.header, answer.header, answer.tensors, model)
        except AnswerRefused as error:
            return str(error)
        return ""

    def show(self, index: int) -> Mapping[str, Any]:
        """The state of a client's node; starts nothing."""
        return self.ask_shown(index).result()

    def ask_shown(self, index: int) -> Future[Mapping[str, Any]]:
        """The state of a client's node, once its site has answered; starts nothing."""
        if self._gang.mediator is None:
            nothing: Future[Mapping[str, Any]] = Future()
            nothing.set_result(
                {
                    "state": str(NodeState.VIRTUAL),
                    "worker": "",
                    "reason": "the federation is not running",
                    "samples": self._loaded.samples_of(index),
                    "trail": [],
                }
            )
            return nothing
        order = Payload(kind="node.show", header={"client": index})
        return then(self.ask_node(index, order), lambda node: node.header)

    def site_of(self, index: int) -> str:
        """A client's site; empty before the gang is reserved."""
        mediator = self._gang.mediator
        return "" if mediator is None else mediator.membership.assignment.site_of(index)

    @cached_property
    def topology(self) -> TopologyManager | None:
        """Who exchanges with whom; None if all clients exchange with the coordinator."""
        from ...prepare.topology import mixing_of
        from ..clients.topology_manager import HybridTopologyManager, TopologyManager

        config, graphs = self._loaded.config, self._loaded.inputs.graphs
        if graphs is None:
            return None
        kind = HybridTopologyManager if len(self._gang.sites) > 1 else TopologyManager
        return kind(graphs, self, partial(mixing_of, config, graphs))

    def why_there(self, index: int) -> str:
        """A client's site, and why it is there; costs little."""
        if (mediator := self._gang.mediator) is None:
            return NOT_ASSIGNED
        assignment = mediator.membership.assignment
        return f"{assignment.site_of(index)}, since {assignment.explain(index)}"

    def explain_assignment(self, index: int) -> Mapping[str, Any]:
        """Explain why a client belongs to its site, and what would move it."""
        if (mediator := self._gang.mediator) is None:
            return {"sentences": [f"site: {NOT_ASSIGNED}"]}
        return mediator.membership.explain(index).to_json()


def _kind(array: object) -> str:
    if array is None:
        return "nothing"
    if not isinstance(array, np.ndarray):
        return f"no NumPy array but {type(array).__name__}"
    return f"{array.dtype} of shape {array.shape}"
