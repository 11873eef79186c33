"""LoadedConfig: a run's config with all that it names: the user's code, the data, the model.

All of it is checked before anything starts. One thing of it changes later: what `execution: auto`
means is settled before the first site starts, or taken over from an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...config import as_before, identity
from ...config.schema import RunConfig
from ...config.schema.rules import share_conflicts
from ...errors import ConfigError, Problem
from ...prepare.gang_request import uncollected
from ...prepare.user_code import UserCode
from ..events import Emit
from .population import Population

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
    def population(self) -> Population:
        """The clients, by the config as it is now."""
        return Population(self.config, self.inputs)

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
