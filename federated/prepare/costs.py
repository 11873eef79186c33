"""What a round costs in traffic and memory, and when that is too much to begin."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

from fedpilot.common.text.amounts import in_bytes
from fedpilot.mediator.core.traffic import Budget, Volume

from ..algorithms import algorithm_of
from ..algorithms.coordinatewise import cut
from ..algorithms.krum import tolerated
from ..config.schema import FederationConfig, RunConfig
from ..core.algorithm import Needs
from ..core.rounds.round_costs import Costs, Judges, fitting
from ..errors import ConfigError

KEPT_SHARE, MODELS_SHARE = 0.25, 0.3
"""Share of a machine's memory for a round's updates, of which up to three copies exist on the way;
and for the models of a graph's clients, before and after a round, unless the config says more."""
SAVED = 4
"""Rounds whose models a graph's sites have saved at most: two checkpoints, and the last two."""
REPLICATED = 4
"""The same of replicas: the last one and the one that is being made, each at the clients' own site
and at its holder."""


def budget_of(config: RunConfig) -> Budget:
    """The limits in a config."""
    return Budget(**dict(config.traffic))


def judges_of(config: RunConfig, round_number: int) -> Judges:
    if not config.evaluation.is_due(round_number, config.federation.rounds):
        return Judges.NOBODY
    at_sites = config.evaluation.where == "sites" or config.evaluated_nodes != "none"
    return Judges.ALL if at_sites else Judges.ONE


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


def rounds_within(
    config: RunConfig,
    costs: Costs,
    clients: Mapping[str, int],
    exchange: Callable[[int], Mapping[str, Volume]] = lambda _: {},
) -> int | None:
    """How many rounds the budget covers (None without one); `clients`: the most per site.

    `exchange`: what each site moves in a round for its clients' neighbors.
    """
    budget = budget_of(config)
    if not budget.limits_anything:
        return None
    rounds = config.federation.rounds
    return fitting(costs, clients, budget, rounds, lambda n: judges_of(config, n), exchange)


def check_aggregation(
    section: FederationConfig, cohort: int, fewest: int, bytes_of_update: int
) -> None:
    """Raise ConfigError if an algorithm has too few clients per round, or too many for memory.

    A round asks `cohort` clients, and closes with `fewest` at least.
    """
    if section.trim is not None and not cut(section.trim, cohort):
        raise ConfigError.about(
            "federation.trim",
            found=f"{section.trim:g} of {cohort} clients per round, which cuts off none",
            allowed="more clients per round, a larger share, or `median`",
        )
    if section.byzantine_clients is not None:
        _check_krum(section, section.byzantine_clients, fewest)
    if algorithm_of(section).needs is Needs.SUM:
        return
    memory, bytes_of_all = machine_memory(), cohort * bytes_of_update
    if bytes_of_all > memory * KEPT_SHARE:
        most = int(memory * KEPT_SHARE) // bytes_of_update
        raise ConfigError.about(
            "federation.aggregation_strategy",
            found=f"`{section.aggregation_strategy}` keeps every update of a round: {cohort:,} "
            f"clients of {in_bytes(bytes_of_update)} are {in_bytes(bytes_of_all)}, more than "
            f"{KEPT_SHARE:.0%} of the {in_bytes(memory)} of memory here",
            allowed=f"`fedavg`, or at most {most:,} clients per round of this model",
        )


def _check_krum(section: FederationConfig, byzantine: int, fewest: int) -> None:
    """Raise ConfigError if the paper's condition, 2 f + 2 < n, does not hold in every round."""
    if byzantine > (most := tolerated(fewest)):
        needed = 2 * byzantine + 3
        raise ConfigError.about(
            "federation.byzantine_clients",
            found=f"{byzantine} of the {fewest:,} clients that a round has at least; "
            f"`{section.aggregation_strategy}` needs more than 2 x {byzantine} + 2 clients",
            allowed=(f"at most {most}, or " if most else "")
            + f"at least {needed:,} clients in every round: `clients_per_round`, and with a "
            "deadline `participation.quorum`",
        )
    if section.krum_keeps is not None and section.krum_keeps > fewest - byzantine:
        raise ConfigError.about(
            "federation.krum_keeps",
            found=f"{section.krum_keeps} of the {fewest:,} clients that a round has at least, "
            f"{byzantine} of whom may send anything",
            allowed=f"at most {fewest - byzantine}",
        )


def models_limit(config: RunConfig) -> int:
    """Bytes of memory for the models of a graph's clients at one site."""
    if (given := config.resources.store_bytes) is not None:
        return given
    return int(machine_memory() * MODELS_SHARE) // len(config.sites.names)


@dataclass(frozen=True, slots=True)
class Spilling:
    """Clients' models that are too much for their sites' memory."""

    models: int
    """Bytes of those that a site works on, over all sites."""
    saved: int
    """Bytes of those that are saved for later rounds and a resume."""


def spilling(config: RunConfig, clients: int, bytes_of_model: int) -> Spilling | None:
    """What a graph's sites spill, if they have as many clients each; None if they spill nothing."""
    each = -(-clients // len(config.sites.names))
    if not config.federation.is_graph or 2 * each * bytes_of_model <= models_limit(config):
        return None
    replicated = 0 if config.participation.replicate_every is None else REPLICATED
    saved = (SAVED + replicated) * clients * bytes_of_model
    return Spilling(2 * clients * bytes_of_model, saved)


def check_disk(config: RunConfig, clients: int, bytes_of_model: int) -> None:
    """Raise ConfigError if the disk of a run's folder has no room for what a graph spills."""
    spilled = spilling(config, clients, bytes_of_model)
    if spilled is None:
        return
    folder = Path(config.outputs.folder).absolute()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free, wanted = disk_usage(there).free, spilled.models + spilled.saved
    if free < wanted:
        raise ConfigError.about(
            "outputs.folder",
            found=f"`{config.outputs.folder}`, on a disk with {in_bytes(free)} left: the models of "
            f"{clients:,} clients exceed the {in_bytes(models_limit(config))} of "
            f"`resources.store_bytes`, and need {in_bytes(wanted)} there",
            allowed=f"a larger disk, or at most {clients * free // wanted:,} clients of this model",
        )


def machine_memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of this machine's memory, or of the process's control group if it has less."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(size, int(limit.read_text()))
    except (OSError, ValueError):  # no control groups here, or "max": no limit
        return size
