"""The vnode classes of a run: the rules of its config, applied to the clients known here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..config.schema import ClientsOfClass, RunConfig
from ..core.population.partitions.partition import Partition
from ..core.population.vnode_classes import ClassRule, ClientClasses
from ..errors import ConfigError
from .grouping import no_column


def rules_of(config: RunConfig) -> tuple[ClassRule, ...]:
    """Which clients each class of a config takes; empty without classes."""
    return tuple(
        ClassRule(
            name=each.name,
            ids=_patterns(clients.ids),
            column=clients.column,
            values=_patterns(clients.values),
            share=clients.share,
        )
        for each in config.resources.groups or ()
        for clients in [each.clients or ClientsOfClass.model_construct()]
    )


def _patterns(given: str | list[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def classes_of(
    config: RunConfig,
    partition: Partition,
    columns: Mapping[str, NDArray[np.str_]],
    here: range,
) -> ClientClasses | None:
    """The vnode class of each client; None for a gang of one class.

    `columns` are those of the samples `here`. ConfigError: no such column, or a client that no
    class takes.
    """
    if not (rules := rules_of(config)):
        return None
    for at, rule in enumerate(rules):
        if rule.column is not None and rule.column not in columns:
            key = f"resources.groups[{at}].clients.column"
            raise no_column(key, rule.column, columns)
    classes = ClientClasses(rules, partition, columns, config.run.random_seed, here)
    if (lost := classes.first_left_out()) is not None:
        raise ConfigError.about(
            "resources.groups",
            found=f"{partition.client_id(lost)}, which no class takes",
            allowed="a class for each client, such as one without `clients`",
        )
    return classes


def check_used(config: RunConfig, classes: ClientClasses | None) -> None:
    """Raise ConfigError for a class without any client, where all clients are known."""
    if classes is None or not (idle := classes.without_clients()):
        return
    at = classes.names.index(idle[0])
    rule = rules_of(config)[at]
    key, found = f"resources.groups[{at}]", f'"{rule.name}" takes none of the clients'
    if rule.takes_the_rest:
        key, found = f"{key}.clients", f'no client is left for "{rule.name}"'
    elif rule.share is not None:
        key = f"{key}.clients.share"
    else:
        which = "values" if rule.ids == () else "ids"
        patterns = ", ".join(rule.ids or rule.values)
        key, found = f"{key}.clients.{which}", f"`{patterns}` takes none of the clients"
    raise ConfigError.about(key, found, "a class that some client trains on, or without it")
