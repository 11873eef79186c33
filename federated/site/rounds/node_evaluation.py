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
            found = list(self._judged(clients, header["round"], model, states, site))
            correct, samples = (
                np.concatenate([np.arange(0), *(getattr(each, name) for each in found)])
                for name in ("correct", "samples")
            )
            tensors = {"correct": correct, "samples": samples}
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
    ) -> Iterator[NodesJudged]:
        """What workers found of some clients after others, in the clients' order."""
        most = max(1, min(-(-len(clients) // site.pool.size), BYTES_AT_ONCE // self._bytes_of_one))
        under_way: deque[WorkerCall] = deque()
        for first in range(0, len(clients), most):
            some = clients[first : first + most]
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
            )
            site.pool.submit([call])
            under_way.append(call)
            if len(under_way) > site.pool.size:
                yield under_way.popleft().answer.result()
        for call in under_way:
            yield call.answer.result()
