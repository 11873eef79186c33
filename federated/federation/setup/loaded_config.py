"""LoadedConfig: a run's config with all that it names: the user's code, the data, the model.

It says which clients there are, which of them take part in a round, and what a round costs. All of
it is checked before anything starts. One thing changes later: what `execution: auto` means is
settled before the first site starts, or taken over from an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...algorithms import algorithm_of
from ...config import as_before, identity, load_config, located, parse_config
from ...config.schema import RunConfig
from ...config.schema.rules import share_conflicts
from ...core.algorithm import Needs
from ...core.population.cohort_members import Membership
from ...core.population.federated_data.union import described
from ...core.population.partitions.summary import PartitionSummary, describe
from ...core.population.sampling import cohort
from ...errors import ConfigError, Problem
from ...prepare.costs import rounds_within
from ...prepare.gang_request import uncollected
from ...prepare.grouping import steps_of
from ...prepare.user_code import UserCode
from ..events import Emit

if TYPE_CHECKING:
    from ...prepare.inputs.run_inputs import RunInputs

Located = Callable[[ConfigError], ConfigError]
"""Adds to the problems of a config where their keys stand in its file."""


@dataclass(slots=True, kw_only=True)
class LoadedConfig:
    """What a federation is made of."""

    config: RunConfig
    code: UserCode
    """What the config names of the user's own modules."""
    inputs: RunInputs
    paths: Sequence[str]
    """The folders in which the user's own modules were looked for."""
    located: Located

    @property
    def identity(self) -> str:
        """What decides the bits of a run's result, as one hash."""
        return self.identity_of(self.config)

    def identity_of(self, config: RunConfig) -> str:
        """The same with another config over the same code and data."""
        return identity(config, self.code.digest, self.inputs.data_digest)

    def among(self, sites: Sequence[str]) -> tuple[str, ...]:
        """The sites that clients may be assigned to: all, or those with the run's data."""
        union = self.inputs.union
        return tuple(sites) if union is None else tuple(s for s in sites if s in union.sites)

    def check_shares(self, sites: int) -> None:
        """ConfigError for a limit on shares that so many sites cannot keep."""
        found = [
            Problem(key=each.key, found=each.found, allowed=each.allowed)
            for each in share_conflicts(self.config.robustness, sites)
        ]
        if found:
            raise ConfigError(found)

    def settle_execution(self, emit: Emit) -> None:
        """Settle how a chunk is computed; ConfigError for what does not suit the model."""
        from ...prepare.execution_choice import settled

        try:
            self.config, reason = settled(self.config, self.inputs)
        except ConfigError as error:
            raise self.located(error) from error
        training = self.config.training
        emit(
            "execution_chosen",
            execution=training.execution,
            chunk_size=training.chunk_size,
            execution_model=training.execution_model,
            reason=reason,
        )

    def take_over_execution(self, earlier: RunConfig) -> None:
        """Have `auto` mean what it meant in an earlier run."""
        self.config = as_before(self.config, earlier)

    # -- clients ------------------------------------------------------------------------------

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


def read_config(
    config: RunConfig | Mapping[str, Any] | str | Path, overrides: Sequence[str]
) -> tuple[RunConfig, str, Located]:
    """The config, its file's name, and what tells where in the file a problem's key stands."""
    if isinstance(config, str | Path):
        found = partial(located, path=config, overrides=overrides)
        return load_config(config, overrides), Path(config).stem, found
    if not isinstance(config, RunConfig) or overrides:
        values = config.model_dump() if isinstance(config, RunConfig) else config
        config = parse_config(values, overrides)
    return config, "federation", lambda error: error


def inputs_of(config: RunConfig, declared: Mapping[str, Any] | None) -> RunInputs:
    """What the config stands for; ConfigError for what cannot be.

    `declared`: what each site discloses of its data; None where the data is loaded here.
    """
    from importlib.util import find_spec

    with uncollected():
        from ...prepare.inputs.data_at_sites import gather_declared
        from ...prepare.inputs.local_data import gather

    if config.outputs.tensorboard and find_spec("tensorboardX") is None:
        raise ConfigError.about(
            "outputs.tensorboard",
            found="true, but tensorboardX is not installed",
            allowed="false, or `pip install 'fedpilot[tensorboard]'`",
        )
    return gather(config) if declared is None else gather_declared(config, declared)


def execution_of(config: RunConfig) -> list[Any]:
    """What an order says of how to compute a chunk."""
    return [config.training.execution, config.training.chunk_size]
