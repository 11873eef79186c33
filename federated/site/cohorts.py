"""Cohorts: the clients of a site's orders, derived from (seed, round) and shares.

In a star an order is about clients of the round's cohort. With groups, one worker trains a group as
a whole, and all groups train in every round: orders name groups, each by one client's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config.schema import RunConfig
from ..core.population.groups import ClientGroups, Steps
from ..core.population.sampling import Indices, cohort, evaluation_cohort, share as share_of
from ..core.population.shares import Share, held, part_name, taken, unpacked
from ..engine.journal import RoundKey
from ..prepare.grouping import steps_of
from ..prepare.inputs.run_inputs import RunInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """The clients, or groups, of a round that an order is about, and their costs."""

    clients: Indices
    """Sorted; group numbers if there are groups."""
    places: Indices
    """Their places in the round's whole cohort; a group's place is that of its client."""
    whole: int
    """Size of the whole cohort; with groups, the population."""
    samples: Indices
    """Samples that each client holds; for groups, about how many a round processes."""
    groups: ClientGroups | None = None

    def nodes(self, some: Indices) -> Indices:
        """The clients that some entries stand for."""
        return some if self.groups is None else self.groups.clients(some)

    def places_of(self, some: Indices) -> Indices:
        """Places of these entries' clients in the whole cohort."""
        if self.groups is not None:
            return self.groups.clients(some)
        return self.places[np.isin(self.clients, some, assume_unique=True)]


MOST_DRAWN = 1 << 22
MOST_AHEAD = 1 << 12
"""Most clients drawn, and most rounds searched, to look ahead: about a second."""


class Cohorts:
    """Looks up the clients of orders, if possible before the orders come."""

    def __init__(self, config: RunConfig, inputs: RunInputs) -> None:
        self._evaluation = config.evaluation
        self._rounds = config.federation.rounds
        self._seed = config.run.random_seed
        self._inputs = inputs
        self._steps = steps_of(config)
        self._costs: Indices | None = None
        """What a round of each group costs, once computed."""
        self._planned: tuple[int, str, Cohort] | None = None
        """A round, the name of a part of it, and that part's clients."""

    def of_order(self, header: Mapping[str, Any], key: RoundKey) -> Cohort:
        """The clients of an order; usually looked up while the last round trained."""
        if self._planned is not None and self._planned[:2] == (key.round_number, key.part):
            return self._planned[2]
        return self._plan(key.round_number, taken(header["share"]), header.get("counted"))

    def plan_ahead(self, round_number: int, share: list[list[int]]) -> None:
        """Look up the clients of a coming round's order."""
        whose = taken(share)
        self._planned = round_number, part_name(whose), self._plan(round_number, whose, None)

    def of_round(self, round_number: int) -> Indices:
        """All clients in a round's cohort."""
        population, size = self._inputs.population, self._inputs.cohort_size
        return cohort(population, size, self._seed, round_number)

    def judges(self, round_number: int) -> Indices:
        """All clients that evaluate a round's model at the sites."""
        population = self._inputs.population
        match self._evaluation.clients:
            case "sampled":
                return self.of_round(round_number)
            case "fraction":
                size = share_of(population, self._evaluation.fraction or 1.0)
                return evaluation_cohort(population, size, self._seed, round_number)
            case "all":
                return np.arange(population, dtype=np.int64)

    def first_alone(self) -> int | None:
        """The first round in which only one of this site's clients trains or evaluates.

        None if there is none in the rounds that are searched.
        """
        groups, here = self._inputs.data.groups, self._inputs.here
        in_each_step = len(here)
        if self._steps is not None and groups is not None:
            in_each_step = self._steps.clients_of_step(groups)
        if in_each_step == 1 or len(here) == 1:
            return 1
        population, size = self._inputs.population, self._inputs.cohort_size
        judging = self._evaluation.where == "sites" and self._evaluation.clients == "fraction"
        if size >= population and not judging:
            return None
        for number in range(1, min(self._rounds, MOST_AHEAD, MOST_DRAWN // size) + 1):
            drawn = [self.of_round(number)]
            if judging and self._evaluation.is_due(number, self._rounds):
                drawn.append(self.judges(number))
            for clients in drawn:
                first, last = np.searchsorted(clients, (here.start, here.stop))
                if last - first == 1:
                    return number
        return None

    def _plan(self, round_number: int, share: Share, counted: str | None) -> Cohort:
        """The clients of a round in a share; only those that counted, if recorded."""
        groups = self._inputs.data.groups
        if self._steps is not None and groups is not None:
            return self._groups_in(groups, self._steps, share, counted)
        whole = self.of_round(round_number)
        inside = held(whole, share)
        if counted is not None:
            inside &= unpacked(counted, len(whole))
        places = np.flatnonzero(inside)
        clients = whole[places]
        return Cohort(
            clients=clients,
            places=places,
            whole=len(whole),
            samples=self._inputs.data.partition.sizes(clients),
        )

    def _groups_in(
        self, groups: ClientGroups, steps: Steps, share: Share, counted: str | None
    ) -> Cohort:
        whole = self._inputs.population
        inside = held(groups.places, share)
        if counted is not None:  # a group counted with all its clients, or not at all
            inside &= unpacked(counted, whole)[groups.firsts]
        if self._costs is None:
            self._costs = steps.costs(groups, self._inputs.data.partition)
        return Cohort(
            clients=np.flatnonzero(inside),
            places=groups.places[inside],
            whole=whole,
            samples=self._costs[inside],
            groups=groups,
        )
