"""GraphPart: the clients of a graph that are at this site, and who of the others gives to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...config.schema import Graph, RunConfig
from ...core.population.sampling import Indices
from ...core.population.shares import Share, held
from ...core.state import Roles, State
from ...core.topology.mixing import PUSH_SUM_UNIT, Mixing
from ...prepare.costs import models_limit
from ...prepare.inputs.run_inputs import RunInputs
from ...prepare.topology import mixing_of
from ..states.layouts import PUSH_SUM_WEIGHT, Layout
from ..states.shared_memory import Spill
from .client_models import ModelsInMemory

if TYPE_CHECKING:
    from ...core.topology.graphs import Topology

AT_ONCE = 1 << 27
"""Bytes of spilled models that a process works on at a time; at most an eighth of the limit."""


@dataclass(frozen=True, kw_only=True)
class GraphPart:
    """What all rounds of a run on a graph share at one site."""

    trains: Callable[[int], bool]
    """Whether a round trains before it mixes, by its number."""
    clients: Indices
    """(k,): in the order in which their models lie: most samples first."""
    samples: Indices
    """(k,): of each, in that order."""
    population: int
    mixing_of_round: Callable[[int], Mixing]
    """By round number, over the whole graph; its nodes are the clients' indices."""
    changes: bool
    """Whether each round has another graph."""
    steps: int
    """How often neighbors mix in a round."""
    initial: State
    roles: Roles
    client_id: Callable[[int], str]
    memory: ModelsInMemory
    pushes: bool
    """Whether nodes have push-sum weights."""

    @property
    def first(self) -> State:
        """What each client begins with, its push-sum weight with it."""
        return {**self.initial, PUSH_SUM_WEIGHT: np.asarray(PUSH_SUM_UNIT)}

    def mixing(
        self, number: int, absent: Indices, push_sum_weights: Indices | None = None
    ) -> tuple[Mixing, Indices]:
        """The mixing of a round at this site without absent clients, and whose models it takes.

        Sources are counted through `clients`, and then through those others, which are ascending.
        So are the push-sum weights, if nodes have any.
        """
        if push_sum_weights is None and not len(absent):
            return self.full_mixing(number)
        whole = self.mixing_of_round(number)
        if len(absent):
            whole = whole.without(absent)
        if push_sum_weights is not None:
            weights = np.zeros(self.population, dtype=np.int64)
            _, others = self.full_mixing(number)
            weights[np.concatenate([self.clients, others])] = push_sum_weights
            whole = whole.split(weights)
        return whole.among(self.clients)

    def full_mixing(self, number: int) -> tuple[Mixing, Indices]:
        """The same of a round with all clients."""
        if self.changes:
            return self.mixing_of_round(number).among(self.clients)
        return self._always

    @cached_property
    def _always(self) -> tuple[Mixing, Indices]:
        return self.mixing_of_round(1).among(self.clients)

    def given(self, number: int, to: Share) -> Indices:
        """The clients here whose models some clients of another site take, ascending."""
        return self.mixing_of_round(number).taken(by=self._of(to), of=self.clients)

    def taken(self, number: int, of: Share) -> Indices:
        """The clients of another site whose models some clients here take, ascending."""
        _, others = self.full_mixing(number)
        return others[held(others, of)]

    def places(self, some: Indices) -> Indices:
        """Where the models of some of the clients here lie."""
        order = np.argsort(self.clients)
        return order[np.searchsorted(self.clients, some, sorter=order)]

    def _of(self, share: Share) -> Indices:
        everybody = np.arange(self.population)
        return everybody[held(everybody, share)]


def part_of(
    config: RunConfig, inputs: RunInputs, graphs: Topology, clients: Indices, folder: Path
) -> GraphPart:
    """The part of a run's graph that these clients are; what spills lies in this folder."""
    federation, partition = config.federation, inputs.data.partition
    samples = partition.sizes(clients)
    order = np.argsort(-samples, kind="stable")
    # A round asks for its graph several times.
    mixing = lru_cache(maxsize=1)(lambda number: mixing_of(config, graphs, number))
    layout = Layout.of_models(inputs.initial, inputs.roles, push_sum=federation.pushes)
    limit = models_limit(config)
    return GraphPart(
        trains=lambda number: number == 1 or federation.aggregation_strategy != "gossip",
        clients=clients[order],
        samples=samples[order],
        population=inputs.population,
        mixing_of_round=lambda number: mixing(number if graphs.changes else 1),
        changes=graphs.changes,
        steps=(config.graph or Graph()).mixing_steps,
        initial=inputs.initial,
        roles=inputs.roles,
        client_id=partition.client_id,
        memory=ModelsInMemory(layout, limit, Spill(folder, min(AT_ONCE, limit // 8))),
        pushes=federation.pushes,
    )
