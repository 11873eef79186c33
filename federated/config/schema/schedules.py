"""How the clients' learning rate changes from round to round, as a config says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from fedpilot.common.strict_yaml.schema_problems import Conflict

from .values import Fraction, NonNegativeFloat, Positive, Section


class Schedule(Section):
    """How the clients' learning rate changes from round to round. All steps of a round have the
    same rate."""

    kind: Literal["constant", "step", "exponential", "cosine", "linear"] = "constant"
    """`step` multiplies the rate by `gamma` once in `every` rounds, `exponential` in each round.
    `cosine` (Loshchilov and Hutter 2017) and `linear` lower it to `final_rate` within
    `decay_rounds` rounds. `constant` does not change it."""
    warmup_rounds: Annotated[int, Ge(0)] = 0
    """First rounds, in which the rate rises linearly to `training.learning_rate`. The schedule
    begins after them."""
    gamma: Fraction | None = Field(default=None, examples=[0.5])
    """For `step` and `exponential` (required): factor of the rate."""
    every: Positive | None = Field(default=None, examples=[30])
    """For `step` (required): rounds from one change to the next."""
    decay_rounds: Positive | None = Field(default=None, examples=[100])
    """For `cosine` and `linear` (required): rounds from the first rate to `final_rate`, which all
    later rounds have."""
    final_rate: NonNegativeFloat | None = Field(default=None, examples=[0.001])
    """For `cosine` and `linear`: the last rate, at most `training.learning_rate`; left out: 0."""

    def broken_rules(self) -> Iterator[Conflict]:
        yield from self.only_with("gamma", "kind", "step", "exponential")
        yield from self.only_with("every", "kind", "step")
        yield from self.only_with("decay_rounds", "kind", "cosine", "linear")
        yield from self.only_with("final_rate", "kind", "cosine", "linear", required=False)
