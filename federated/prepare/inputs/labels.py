"""Clients' labels: of the data that is loaded here, or as the sites of the data disclose them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...config.schema import RunConfig
from ...core.population.partitions.partition import Int64s
from ...errors import ConfigError
from .run_inputs import RunInputs

AT_ONCE = 1 << 14
"""Clients whose samples are looked up at a time."""


def with_labels(config: RunConfig, inputs: RunInputs) -> RunInputs:
    """The inputs with the labels that the assignment asks for; ConfigError if these stay."""
    if config.federation.assigned_by != "data_affinity":
        return inputs
    labels = labels_of(inputs)
    if labels is None:
        raise labels_stay("federation.assignment", "`data_affinity`", inputs, "another strategy")
    return replace(inputs, labels=labels)


def labels_of(inputs: RunInputs) -> Int64s | None:
    """(clients, labels): samples of each label; None where a site of the data discloses none."""
    if inputs.union is not None:
        return inputs.union.labels()
    data, population = inputs.data, inputs.population
    found = np.zeros((population, data.num_classes), dtype=np.int64)
    for first in range(0, population, AT_ONCE):
        some = np.arange(first, min(first + AT_ONCE, population))
        rows, counts = data.partition.rows(some)
        places = np.repeat(some - first, counts) * data.num_classes + data.y[rows]
        counted = np.bincount(places, minlength=len(some) * data.num_classes)
        found[some] = counted.reshape(len(some), -1)
    return found


def labels_stay(key: str, what: str, inputs: RunInputs, otherwise: str) -> ConfigError:
    """The error of a config that needs labels which sites do not disclose."""
    sites = ", ".join(() if inputs.union is None else inputs.union.without_labels)
    return ConfigError.about(
        key,
        found=f"{what}, and the labels of each client do not leave site {sites}",
        allowed=f"{otherwise}, or data whose `disclose.client_labels` is `exact`, `rounded` or "
        "`noised` in `site.yaml`",
    )
