"""What a round costs in traffic and memory, and when that is too much to begin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fedpilot.common.text.amounts import in_bytes
from fedpilot.mediator.core.traffic import Budget

from ..algorithms import algorithm_of
from ..algorithms.coordinatewise import cut
from ..config.schema import FederationConfig, RunConfig
from ..core.algorithm import Needs
from ..core.rounds.round_costs import Costs, Judges, fitting
from ..errors import ConfigError

KEPT_SHARE, MODELS_SHARE = 0.25, 0.15
"""Share of a machine's memory for a round's updates, of which up to three copies exist on the way;
and for the models of a graph's clients, of which there are up to five."""


def budget_of(config: RunConfig) -> Budget:
    """The limits in a config."""
    return Budget(**dict(config.traffic))


def judges_of(config: RunConfig, round_number: int) -> Judges:
    if not config.evaluation.is_due(round_number, config.federation.rounds):
        return Judges.NOBODY
    return Judges.ALL if config.evaluation.where == "sites" else Judges.ONE


def check_budget(config: RunConfig, costs: Costs) -> None:
    """Raise ConfigError if a limit is below one site's cost of one round."""
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
    """How many rounds the budget covers (None without one); `clients`: the most per site."""
    budget = budget_of(config)
    if not budget.limits_anything:
        return None
    return fitting(costs, clients, budget, config.federation.rounds, lambda n: judges_of(config, n))


def check_aggregation(section: FederationConfig, cohort: int, bytes_of_update: int) -> None:
    """Raise ConfigError if an algorithm has too few clients per round, or too many for memory."""
    if section.trim is not None and not cut(section.trim, cohort):
        raise ConfigError.about(
            "federation.trim",
            found=f"{section.trim:g} of {cohort} clients per round, which cuts off none",
            allowed="more clients per round, a larger share, or `median`",
        )
    if algorithm_of(section).needs is Needs.SUM and not section.is_graph:
        return
    keeps, share = "every update of a round", KEPT_SHARE
    instead = "`fedavg`, or at most {:,} clients per round of this model"
    if section.is_graph:
        keeps, share = "the model of each client", MODELS_SHARE
        instead = "`topology: star`, or at most {:,} clients of this model"
    memory, bytes_of_all = machine_memory(), cohort * bytes_of_update
    if bytes_of_all > memory * share:
        raise ConfigError.about(
            "federation.aggregation_strategy",
            found=f"`{section.aggregation_strategy}` keeps {keeps}: {cohort:,} clients of "
            f"{in_bytes(bytes_of_update)} are {in_bytes(bytes_of_all)}, more than {share:.0%} of "
            f"the {in_bytes(memory)} of memory here",
            allowed=instead.format(int(memory * share) // bytes_of_update),
        )


def machine_memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of this machine's memory, or of the process's control group if it has less."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(size, int(limit.read_text()))
    except (OSError, ValueError):  # no control groups here, or "max": no limit
        return size
