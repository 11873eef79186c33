"""GroupRounds: the steps of a round that a group takes by itself, before its clients join the rest.

In all but the last step of a round a group is a federation of its own, by FedAvg with a server
learning rate of 1. In the last step its clients start from the group's model and are added to the
sum of all groups, measured from the round's model: a mean of means by their weights is the mean. So
nothing is rounded twice, and a group with one step to a round is summed as in a star.

* A group's model depends on the round's model and its own clients alone.
* A client whose update is not finite is named once, and left out of the round's later steps.
* A sum that leaves its range is computed again on a coarser grid, for this group only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...algorithms import fedavg
from ...core.population.groups import ClientGroups, Steps
from ...core.population.sampling import Indices
from ...core.state import Roles, State
from ...core.sums.partial import COARSER_STEP, COARSEST, Partial, grid
from ...errors import FederatedError
from ..sums.summing import RunningSum
from ..training.modules import to_tensors
from ..training.samples import Chunk
from ..training.training import Trained
from .resident import ResidentModule

Train = Callable[[Indices, int, Mapping[str, Tensor]], Iterator[tuple[Chunk, Trained]]]
"""(clients, step, initial model) -> results of some clients of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStart:
    """Clients that train next, for the sum of all groups."""

    clients: Indices
    step: int
    """The step of their random numbers."""
    tensors: Mapping[str, Tensor]
    """Their initial model."""
    before: Partial
    """Metrics, counts of clients and refusals of earlier steps; no sums."""


class GroupRounds:
    """Trains one group after another at a worker."""

    def __init__(
        self,
        groups: ClientGroups,
        steps: Steps,
        resident: ResidentModule,
        roles: Roles,
        client_id: Callable[[int], str],
        device: torch.device,
    ) -> None:
        self._groups = groups
        self._steps = steps
        self._resident = resident
        self._roles = roles
        self._client_id = client_id
        self._device = device
        self._running = RunningSum(resident.tensors(), roles, client_id)
        self._plain = fedavg()

    def start(
        self,
        group: int,
        round_number: int,
        state: State,
        tensors: Mapping[str, Tensor],
        train: Train,
    ) -> GroupStart:
        """Train all steps of a group but the last; `state` and `tensors` are the round's model.

        Raises FederatedError if its updates leave every range.
        """
        *steps, last = self._steps.of_round(round_number)
        before = Partial({})
        for step in steps:
            clients = self._cohort(group, step, before)
            total = self._sum(group, clients, step, state, tensors, train)
            before.tally.merge(total.tally)
            before.refused.extend(total.refused)
            if total.clients:
                before.earlier[step] = total.clients
            if total.weight:
                state = self._moved(state, total)
                tensors = self._resident.laid_out(to_tensors(state, self._device))
        clients = self._cohort(group, last, before)
        return GroupStart(clients=clients, step=last, tensors=tensors, before=before)

    def _cohort(self, group: int, step: int, before: Partial) -> Indices:
        clients = self._steps.cohort(self._groups, group, step)
        if not before.refused:
            return clients
        fine = [self._client_id(index) not in before.refused for index in clients.tolist()]
        left: Indices = clients[np.array(fine, dtype=bool)]
        return left

    def _sum(
        self,
        group: int,
        clients: Indices,
        step: int,
        state: State,
        tensors: Mapping[str, Tensor],
        train: Train,
    ) -> Partial:
        for coarser in range(0, COARSEST + 1, COARSER_STEP):
            self._running.begin(tensors, grid(state, self._roles, coarser))
            for chunk, trained in train(clients, step, tensors):
                here = trained.where
                self._running.add(
                    chunk.clients[here], trained.tensors, chunk.sizes[here], trained.losses
                )
            total = self._running.take()
            if not total.overflowed:
                return total
        raise FederatedError(
            f"group {self._groups.names[group]}: the updates of {', '.join(total.overflowed)} are "
            "out of any range; the training diverged (a smaller `training.learning_rate` usually "
            "helps)"
        )

    def _moved(self, state: State, total: Partial) -> State:
        moved, _ = self._plain.apply(state, self._roles, {}, total.mean())
        for name, largest in total.largest.items():
            moved[name] = np.maximum(moved[name], largest)
        return moved
