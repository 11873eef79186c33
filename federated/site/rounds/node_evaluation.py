"""NodeEvaluator: evaluates the own models of a graph's clients at this site, after a round.

The models come from the clients' saved states, some at a time, so that memory does not grow with
the number of clients. The answer has counts for each client; what of them may leave the site is
for its gate to say.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from fedpilot.mediator import Payload

from ...config.schema import RunConfig
from ...core.population.sampling import Indices
from ...core.population.shares import held, taken, unpacked
from ...core.population.vnode_classes import by_class
from ...core.rounds.node_scores import NodesEvaluated, nodes_evaluated, samples_evaluated
from ...prepare.inputs.run_inputs import RunInputs
from ..object_store import INLINE_BYTES
from ..orders import Answer, or_fail
from ..states.client_states import ClientStates
from ..workers.attempt import NodesJudged
from ..workers.pool import SharedModel, WorkerCall
from .surroundings import Surroundings

EVALUATED = "nodes_evaluated"
"""The kind of an answer with counts of each client."""
BYTES_AT_ONCE = 64 << 20
"""Models of one call to a worker, if they are larger than that together."""


class NodeEvaluator:
    """Evaluates the clients of one order after another."""

    def __init__(self, config: RunConfig, inputs: RunInputs) -> None:
        which, seed = NodesEvaluated(config.evaluated_nodes), config.run.random_seed
        self._nodes = nodes_evaluated(which, inputs.population, seed)
        self._test: Indices | None = None
        """The samples of the test set; None if each client is evaluated on its own samples."""
        if config.evaluation.where == "coordinator":
            self._test = samples_evaluated(which, len(inputs.data.test_y), seed)
        self._population = inputs.population
        self._bytes_of_one = max(1, inputs.bytes_of_update)

    def evaluate(self, header: Mapping[str, Any], model: SharedModel, site: Surroundings) -> Answer:
        """Evaluate the models that the clients of an order have after its round."""
        states = site.states
        assert states is not None
        clients = self._nodes[held(self._nodes, taken(header["share"]))]
        if (counted := header.get("counted")) is not None:
            clients = clients[unpacked(counted, self._population)[clients]]
        answer: Answer = Future()

        def work() -> None:
            counts = np.zeros((2, len(clients)), dtype=np.int64)
            for some, found in self._judged(clients, header["round"], model, states, site):
                counts[:, some] = found.correct, found.samples
            tensors = {"correct": counts[0], "samples": counts[1]}
            answer.set_result(Payload(kind=EVALUATED, tensors=tensors))

        threading.Thread(target=lambda: or_fail(answer, work), name="nodes", daemon=True).start()
        return answer

    def _judged(
        self,
        clients: Indices,
        round_number: int,
        model: SharedModel,
        states: ClientStates,
        site: Surroundings,
    ) -> Iterator[tuple[Indices, NodesJudged]]:
        """The places of some clients after others, and what workers found of them."""
        under_way: deque[tuple[Indices, WorkerCall]] = deque()
        for places, vnode_class in self._parts(clients, site):
            some = clients[places]
            models = states.load_stack(some, round_number + 1)
            call = WorkerCall(
                method="evaluate_nodes",
                args=(
                    some,
                    site.put(models) if models.rows.nbytes > INLINE_BYTES else models,
                    self._test,
                ),
                what=f"evaluating {len(some)} clients' models of round {round_number}",
                model=model,
                vnode_class=vnode_class,
            )
            site.pool.submit([call])
            under_way.append((places, call))
            if len(under_way) > site.pool.size:
                first, earlier = under_way.popleft()
                yield first, earlier.answer.result()
        for places, call in under_way:
            yield places, call.answer.result()

    def _parts(self, clients: Indices, site: Surroundings) -> Iterator[tuple[Indices, str | None]]:
        """The places of the clients of one call after another, and their vnode class."""
        for vnode_class, at in by_class(site.classes, clients):
            share = -(-len(at) // site.pool.size_of(vnode_class))
            most = max(1, min(share, BYTES_AT_ONCE // self._bytes_of_one))
            for first in range(0, len(at), most):
                yield at[first : first + most], vnode_class
