"""What the traffic budget of a config allows: too little for any round, or enough for how many."""

from __future__ import annotations

from collections.abc import Mapping

from fedpilot.mediator.core.traffic import Budget

from ..config.schema import RunConfig
from ..core.rounds.round_costs import Costs, Judges, fitting
from ..errors import ConfigError
from .update_costs import in_bytes


def budget_of(config: RunConfig) -> Budget:
    """The limits that a config sets."""
    limits = config.traffic
    return Budget(
        round_bytes=limits.round_bytes, run_bytes=limits.run_bytes, site_bytes=limits.site_bytes
    )


def judges_of(config: RunConfig, round_number: int) -> Judges:
    if not config.evaluation.is_due(round_number, config.federation.rounds):
        return Judges.NOBODY
    return Judges.ALL if config.evaluation.where == "sites" else Judges.ONE


def check_budget(config: RunConfig, costs: Costs) -> None:
    """ConfigError if a limit is less than one site's part of one round."""
    tightest, least = budget_of(config).tightest, costs.at_least
    if tightest is None or tightest[1] >= least:
        return
    limit, allowed = tightest
    raise ConfigError.about(
        f"traffic.{limit}",
        found=f"{in_bytes(allowed)}, which is not enough for one round of one site: its model has "
        f"{in_bytes(costs.model)}, and {in_bytes(costs.answer + costs.update)} come back",
        allowed=f"at least {least} bytes",
    )


def rounds_within(config: RunConfig, costs: Costs, clients: Mapping[str, int]) -> int | None:
    """How many of the config's rounds its budget is enough for; None where it has none.

    `clients`: how many each site trains in a round, at most.
    """
    budget = budget_of(config)
    if not budget.limits_anything:
        return None
    return fitting(costs, clients, budget, config.federation.rounds, lambda n: judges_of(config, n))
