"""Population: the clients of a federation, which of them take part in a round, what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...algorithms import algorithm_of
from ...config.schema import RunConfig
from ...core.algorithm import Needs
from ...core.population.cohort_members import Membership
from ...core.population.federated_data.union import described
from ...core.population.partitions.summary import PartitionSummary, describe
from ...core.population.sampling import cohort
from ...prepare.budgets import rounds_within
from ...prepare.grouping import steps_of

if TYPE_CHECKING:
    from ...prepare.inputs.run_inputs import RunInputs


@dataclass(frozen=True, slots=True)
class Population:
    """All clients, by what the config asks for and what was loaded."""

    config: RunConfig
    inputs: RunInputs

    def describe(self) -> PartitionSummary:
        """How the samples lie on the clients, as far as that is known here."""
        if (union := self.inputs.union) is not None:
            return described(union)
        return describe(self.inputs.data.partition, self.inputs.data.y)

    def samples_of(self, index: int) -> int | None:
        """How many samples a client holds; None if its site does not say."""
        if (union := self.inputs.union) is None:
            return self.inputs.data.partition.size(index)
        samples = union.samples()
        return None if samples is None else int(samples[index])

    # -- rounds -------------------------------------------------------------------------------

    @property
    def cohort_size(self) -> int:
        """Clients per round; with groups, in each round that a group trains by itself."""
        steps, groups = steps_of(self.config), self.inputs.data.groups
        if steps is None or groups is None:
            return self.inputs.cohort_size
        return steps.clients_of_step(groups)

    def cohort(self, round_number: int) -> list[str]:
        """Ids of the clients that train in a round; of groups at sites, all that may."""
        steps, groups = steps_of(self.config), self.inputs.data.groups
        if steps is not None and groups is not None:
            clients = steps.clients_of_round(groups, round_number)
        else:
            size, seed = self.inputs.cohort_size, self.config.run.random_seed
            clients = cohort(self.inputs.population, size, seed, round_number)
        return [self.inputs.data.partition.client_id(index) for index in clients.tolist()]

    def membership(self) -> Membership:
        """Which clients the orders of a run are about."""
        groups = self.inputs.data.groups
        return Membership(
            population=self.inputs.population,
            asked=self.inputs.cohort_size,
            seed=self.config.run.random_seed,
            index_of=self.inputs.data.partition.index_of,
            groups=groups,
            known=steps_of(self.config) is None or groups is not None,
            samples_of=self.inputs.samples_of(),
        )

    # -- bytes --------------------------------------------------------------------------------

    @property
    def bytes_of_updates(self) -> int:
        """Bytes of a round's updates where the algorithm keeps every one; 0 where it sums them."""
        if algorithm_of(self.config.federation).needs is Needs.SUM:
            return 0
        return self.cohort_size * self.inputs.bytes_of_update

    def rounds_within_budget(self, sites: Sequence[str]) -> int | None:
        """How many rounds `traffic` is enough for over these sites; None without limits."""
        clients = dict.fromkeys(sites, -(-self.cohort_size // len(sites)))
        return rounds_within(self.config, self.inputs.costs(self.config), clients)
