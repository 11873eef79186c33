"""What it costs to keep every update of a round, and when that is too much to begin."""

from __future__ import annotations

import os
from pathlib import Path

from fedpilot.fabric.core.text.amounts import in_bytes

from ..algorithms import algorithm_of
from ..algorithms.coordinatewise import cut
from ..config.schema import FederationConfig
from ..core.algorithm import Needs
from ..errors import ConfigError

KEPT_SHARE = 0.25
"""Part of a machine's memory that a round's updates may take: on their way from the workers to the
coordinator they are there up to three times."""


def check_aggregation(section: FederationConfig, cohort: int, bytes_of_update: int) -> None:
    """ConfigError if a round's clients are too few for what is asked of them, or too many."""
    if section.trim is not None and not cut(section.trim, cohort):
        raise ConfigError.about(
            "federation.trim",
            found=f"{section.trim:g} of {cohort} clients per round, which cuts off nobody",
            allowed="more clients per round, a larger share, or `median`",
        )
    if algorithm_of(section).needs is Needs.SUM:
        return
    memory, bytes_of_all = machine_memory(), cohort * bytes_of_update
    if bytes_of_all > memory * KEPT_SHARE:
        fitting = int(memory * KEPT_SHARE) // bytes_of_update
        raise ConfigError.about(
            "federation.aggregation_strategy",
            found=f"`{section.aggregation_strategy}` keeps every update of a round: {cohort:,} "
            f"clients of {in_bytes(bytes_of_update)} are {in_bytes(bytes_of_all)}, more than a "
            f"quarter of the {in_bytes(memory)} of memory here",
            allowed=f"`fedavg`, or at most {fitting:,} clients per round of this model",
        )


def machine_memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of memory that this machine has, or that the process's control group may use."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(size, int(limit.read_text()))
    except (OSError, ValueError):  # no control groups here, or "max": no limit
        return size
