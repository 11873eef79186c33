"""Decides which part of a config makes the bits of a run's result, and writes a config in full.

The identity covers the sections in `DECIDING_SECTIONS`, the seed, the threads of a worker, whether
workers have GPUs, and the digests of code and data. Names, folders, numbers of workers, timeouts
and the Ray cluster are no part of it: a run may be resumed with others. Vnode classes are part of
it if they differ in threads or in having GPUs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from fedpilot.common.strict_yaml.wording import value_in_words
from fedpilot.common.strict_yaml.writing import written

from .schema import ResourcesConfig, RunConfig
from .schema.learning import ADAPT_EVERY, SERVER_BETAS, SERVER_MOMENTUM, SERVER_TAU
from .schema.vnode_classes import threads_of

IDENTITY_FORMAT = 2
"""Incremented when the same config must get another identity."""

DECIDING_SECTIONS = (
    "federation",
    "hierarchy",
    "graph",
    "model",
    "data",
    "training",
    "evaluation",
    "robustness",
)
EXPLAINING = ("training.execution_model", "training.execution_reason")
"""Keys that explain the choice of an execution: the execution itself decides the bits."""


def to_yaml(config: RunConfig) -> str:
    """The config with every default, as `load_config` reads it; leaves out keys without a value."""
    sections = config.model_dump(exclude_none=True)
    return "\n".join(written({name: section}) for name, section in sections.items())


def with_execution(
    config: RunConfig,
    execution: str,
    chunk_size: int | str,
    *,
    model: int | None = None,
    reason: str | None = None,
) -> RunConfig:
    """The config with this execution in place of `auto`, and how it was chosen."""
    found = {
        "execution": execution,
        "chunk_size": chunk_size,
        "execution_model": model,
        "execution_reason": reason,
    }
    return config.model_copy(update={"training": config.training.model_copy(update=found)})


def as_before(config: RunConfig, earlier: RunConfig) -> RunConfig:
    """The config with an earlier run's choice for `auto`."""
    mine, theirs = config.training, earlier.training
    if theirs.chunk_size == "auto" or mine.execution not in ("auto", theirs.execution):
        return config
    if mine.chunk_size not in ("auto", theirs.chunk_size):
        return config
    return with_execution(
        config,
        theirs.execution,
        theirs.chunk_size,
        model=theirs.execution_model,
        reason=theirs.execution_reason,
    )


USUAL: Mapping[str, Any] = {
    "evaluation.nodes": "sampled",
    "graph.adapt_every": ADAPT_EVERY,
    "federation.server_momentum": SERVER_MOMENTUM,
    "federation.server_betas": list(SERVER_BETAS),
    "federation.server_tau": SERVER_TAU,
    "federation.server_bias_correction": False,
    "training.nesterov": False,
    "training.proximal_mu": 0.0,
    "training.schedule.final_rate": 0.0,
}
"""Values that a key has if it is left out, and that count as if it were."""


def deciding(config: RunConfig) -> dict[str, Any]:
    """By dotted key: the values that decide the bits of the result."""
    keys: dict[str, Any] = {"run.random_seed": config.run.random_seed}
    for name in DECIDING_SECTIONS:
        if (section := getattr(config, name)) is not None:
            keys.update(_flat(section, name))
    for name in EXPLAINING:
        keys.pop(name, None)
    # What these were before they could be left out: earlier runs keep their identity.
    keys.setdefault("federation.assignment", "capacity")
    if config.graph is not None:
        keys.setdefault("graph.weights", "uniform" if config.federation.pushes else "metropolis")
    for name, usual in USUAL.items():
        if keys.get(name) == usual:
            del keys[name]
    keys.update(_arithmetic(config.resources))
    if config.participation.over_sampling:  # the journal has the clients that counted
        keys["participation.over_sampling"] = config.participation.over_sampling
    if config.participation.late_updates == "carry":
        for name in ("late_updates", "staleness_exponent", "most_rounds_late"):
            keys[f"participation.{name}"] = getattr(config.participation, name)
    return keys


def _arithmetic(resources: ResourcesConfig) -> Iterator[tuple[str, Any]]:
    """What of the vnodes decides bits: classes only if they differ in it."""
    first = resources.classes[0]
    yield "resources.cpus_per_worker", threads_of(first)
    yield "resources.gpus_per_worker", first.gpus_per_worker > 0
    if resources.groups is not None and not resources.alike:
        yield (
            "resources.groups",
            [
                {
                    "clients": each.clients and each.clients.model_dump(exclude_none=True),
                    "cpus_per_worker": threads_of(each),
                    "gpus_per_worker": each.gpus_per_worker > 0,
                }
                for each in resources.groups
            ],
        )


def _flat(section: BaseModel, path: str) -> Iterator[tuple[str, Any]]:
    for field, value in section:
        name = type(section).model_fields[field].alias or field
        if isinstance(value, BaseModel):
            yield from _flat(value, f"{path}.{name}")
        elif value is not None:
            yield f"{path}.{name}", value


def identity(config: RunConfig, code_digest: str, data_digest: str) -> str:
    """SHA-256 (hex) of everything that decides the bits of the result."""
    whole = {
        "format": IDENTITY_FORMAT,
        "code": code_digest,
        "data": data_digest,
        "config": deciding(config),
    }
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(before: RunConfig, after: RunConfig) -> tuple[str, ...]:
    """Deciding keys that differ, such as `federation.rounds: 10 -> 20`."""
    old, new = deciding(before), deciding(after)
    return tuple(
        f"{key}: {_shown(old.get(key))} -> {_shown(new.get(key))}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    )


def _shown(value: Any) -> str:
    text = "not given" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else value_in_words(value)
