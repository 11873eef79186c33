"""The groups of a run: the rule of its config, applied to the samples and clients here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..config.schema import RunConfig
from ..core.population.groups import ClientGroups, Steps, blocks, grouped, most_frequent
from ..core.population.partitions.partition import Partition
from ..errors import ConfigError


def steps_of(config: RunConfig) -> Steps | None:
    """How the groups of a run train; None in a star."""
    if (hierarchy := config.hierarchy) is None:
        return None
    return Steps(
        per_round=hierarchy.rounds_per_group,
        seed=config.run.random_seed,
        clients=hierarchy.clients_per_round,
        rate=hierarchy.client_sampling_rate,
    )


def groups_of(
    config: RunConfig,
    partition: Partition,
    labels: NDArray[np.int64],
    columns: Mapping[str, NDArray[np.str_]],
    here: range,
) -> ClientGroups | None:
    """The groups of the clients that are here; None in a star.

    `labels` and `columns` are the partition's. ConfigError: no such column, too many blocks.
    """
    if config.hierarchy is None:
        return None
    rule, clients = config.hierarchy.groups, len(here)
    match rule.by:
        case "label":
            kinds = most_frequent(labels, partition, here)
            names = [f"label {label}" for label in range(int(labels.max(initial=0)) + 1)]
        case "column":
            wanted = rule.column or ""
            if wanted not in columns:
                raise no_column("hierarchy.groups.column", wanted, columns)
            values, codes = np.unique(columns[wanted], return_inverse=True)
            kinds = most_frequent(codes.astype(np.int64), partition, here)
            names = values.tolist()
        case "blocks":
            count = rule.count or 1
            if count > clients:
                found = f"{count} groups of {clients} clients"
                raise ConfigError.about("hierarchy.groups.count", found, f"at most {clients}")
            kinds = blocks(clients, count)
            names = [f"block {number}" for number in range(count)]
    return grouped(kinds, names, partition, first=here.start)


def no_column(key: str, wanted: str, columns: Mapping[str, object]) -> ConfigError:
    """The error of a column, named by a key, that the data set does not have."""
    there = ", ".join(sorted(columns))
    return ConfigError.about(
        key,
        found=f"`{wanted}`, which the data set was not loaded with",
        allowed=f"one of its columns: {there}"
        if there
        else "a data set that is loaded with columns, such as `npz` with its option `columns`; or "
        "another rule",
    )
