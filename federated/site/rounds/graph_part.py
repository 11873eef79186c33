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
from ...core.rounds.exchange_costs import crossing_sizes
from ...core.state import Roles, State
from ...core.topology.covers import Cover, CoverOf, remembering
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
    """(k,): in the order in which their models lie: by vnode class, then most samples first."""
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
    cover: CoverOf
    """What crosses, from the edges between two sites."""

    @property
    def first(self) -> State:
        """What each client begins with, its push-sum weight with it."""
        return {**self.initial, PUSH_SUM_WEIGHT: np.asarray(PUSH_SUM_UNIT)}

    def mixing(
        self, number: int, absent: Indices, push_sum_weights: Indices | None = None
    ) -> Mixing:
        """The mixing of a round at this site without absent clients.

        Sources are counted through `clients`, and then through the others of `full_mixing`. So are
        the push-sum weights, if nodes have any.
        """
        mixing, others = self.full_mixing(number)
        if push_sum_weights is None and not len(absent):
            return mixing
        whole = self._whole(number, absent)
        if push_sum_weights is not None:
            whole = self._split(whole, np.concatenate([self.clients, others]), push_sum_weights)
        return whole.among(self.clients, others)[0]

    def _whole(self, number: int, absent: Indices) -> Mixing:
        whole = self.mixing_of_round(number)
        return whole.without(absent) if len(absent) else whole

    def _split(self, whole: Mixing, clients: Indices, push_sum_weights: Indices) -> Mixing:
        weights: Indices = np.zeros(self.population, dtype=np.int64)
        weights[clients] = push_sum_weights
        return whole.split(weights)

    def full_mixing(self, number: int) -> tuple[Mixing, Indices]:
        """The same of a round with all clients."""
        if self.changes:
            return self.mixing_of_round(number).among(self.clients)
        return self._always

    @cached_property
    def _always(self) -> tuple[Mixing, Indices]:
        return self.mixing_of_round(1).among(self.clients)

    def given(self, number: int, to: Share, absent: Indices, *, sums: bool) -> Cover:
        """What crosses to another site: whose states, and for whom partial sums if these may."""
        return self._crossing(number, self.clients, self._of(to), absent, sums)

    def taken(self, number: int, of: Share, absent: Indices, *, sums: bool) -> Cover:
        """What crosses from another site."""
        return self._crossing(number, self._of(of), self.clients, absent, sums)

    def _crossing(
        self, number: int, givers: Indices, takers: Indices, absent: Indices, sums: bool
    ) -> Cover:
        edges = self._whole(number, absent).edges_between(givers, takers)
        return self.cover(*edges) if sums else Cover.of_states(edges[0])

    def neighbors(self, number: int, of: Share) -> Indices:
        """The clients of another site that some clients here take of, ascending."""
        _, others = self.full_mixing(number)
        return others[held(others, of)]

    def needed(self, number: int, absent: Indices) -> Indices:
        """The clients of other sites that some clients here take of without absent ones."""
        if not len(absent):
            return self.full_mixing(number)[1]
        return self._whole(number, absent).among(self.clients)[1]

    def sums(
        self,
        number: int,
        cover: Cover,
        absent: Indices,
        push_sum_weights: Indices | None = None,
    ) -> Mixing:
        """What the targets of a cover take of the clients whose states do not cross.

        Its sources are counted through `clients`, and so are the push-sum weights here.
        """
        whole = self._whole(number, absent)
        if push_sum_weights is not None:
            whole = self._split(whole, self.clients, push_sum_weights)
        crossing = np.isin(self.clients, cover.states)
        return whole.to(cover.sums, self.clients).without_sources(np.flatnonzero(crossing))

    def weights_of(self, number: int, cover: Cover, of: Share, absent: Indices) -> Indices:
        """By target of a cover, the weight of its sum over clients of another site, (k,).

        It is known beforehand unless nodes have push-sum weights.
        """
        givers = np.setdiff1d(self._of(of), cover.states)
        return self._whole(number, absent).to(cover.sums, givers).totals

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
    of = np.zeros(len(clients), np.int16) if inputs.classes is None else inputs.classes.of(clients)
    order = np.lexsort((-samples, of))
    # A round asks for its graph several times.
    mixing = lru_cache(maxsize=1)(lambda number: mixing_of(config, graphs, number))
    layout = layout_of(config, inputs)
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
        cover=remembering(crossing_sizes(inputs.initial, inputs.roles, pushes=federation.pushes)),
    )


def layout_of(config: RunConfig, inputs: RunInputs) -> Layout:
    """How a client's model lies in a row."""
    pushes = config.federation.pushes
    return Layout.of_models(inputs.initial, inputs.roles, push_sum=pushes)
