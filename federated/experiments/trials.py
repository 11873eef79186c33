"""The trials of a sweep: its points, each with every seed. No clock and no state."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.schema.sweep import Sweep

Point = Mapping[str, Any]
"""By config key its value."""
MOST = 10_000
"""Trials of a sweep."""


@dataclass(frozen=True, slots=True)
class SweepTrial:
    """One run of a sweep."""

    number: int
    """The number of its point, from 1."""
    point: Point
    seed: int

    @property
    def run_id(self) -> str:
        """The name of its run folder; those of a sweep are in order."""
        return f"point-{self.number:03}-seed-{self.seed}"

    @property
    def overrides(self) -> list[str]:
        """What it changes in the config of the sweep, as after `--set`."""
        changes = {**self.point, "run.random_seed": self.seed, "sweep": None}
        return [f"{key}={as_yaml(value)}" for key, value in changes.items()]


def trials_of(sweep: Sweep, random_seed: int) -> list[SweepTrial]:
    """All trials, point by point; `random_seed` is the config's own.

    Random points (Bergstra and Bengio 2012) are distinct; there are fewer than asked for where the
    axes have fewer.
    """
    if sweep.points:
        points: Sequence[Point] = sweep.points
    elif sweep.draws is None:
        points = [
            dict(zip(sweep.axes, values, strict=True))
            for values in itertools.product(*sweep.axes.values())
        ]
    else:
        points = list(itertools.islice(_distinct(sweep.axes, random_seed), sweep.draws))
    seeds = sweep.seeds or [random_seed]
    return [
        SweepTrial(number, point, seed)
        for number, point in enumerate(points, start=1)
        for seed in seeds
    ]


def count_of(sweep: Sweep) -> int:
    """The number of trials, without making them."""
    points = len(sweep.points)
    if sweep.axes:
        points = sweep.draws or math.prod(len(values) for values in sweep.axes.values())
    return points * max(1, len(sweep.seeds))


def _distinct(axes: Mapping[str, Any], random_seed: int) -> Iterator[Point]:
    """Random points, each once; ends when new ones have become rare."""
    seen: set[str] = set()
    repeated = 0
    for number in itertools.count():
        point = {
            key: _drawn(values, random.Random(f"{random_seed} {number} {key}").random())
            for key, values in axes.items()
        }
        text = json.dumps(point, sort_keys=True)
        if text not in seen:
            seen.add(text)
            repeated = 0
            yield point
        elif (repeated := repeated + 1) > MOST:
            return


def _drawn(values: Any, uniform: float) -> Any:
    """A value of an axis for a number in [0, 1)."""
    if isinstance(values, list):
        return values[int(uniform * len(values))]
    low, high = values["low"], values["high"]
    whole = isinstance(low, int) and isinstance(high, int)
    if values.get("scale") == "log":
        found = math.exp(math.log(low) + uniform * (math.log(high) - math.log(low)))
        return round(found) if whole else found
    return low + int(uniform * (high - low + 1)) if whole else low + uniform * (high - low)


def as_yaml(value: Any) -> str:
    """A config's value as after `--set key=`."""
    return json.dumps(value, ensure_ascii=False)
