"""The points at which `fedpilot sweep` trains a config, as the config says them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from pydantic import Field

from fedpilot.common.strict_yaml.schema_problems import Conflict
from fedpilot.common.strict_yaml.wording import value_in_words

from .values import Options, Positive, Section

RANGE = ("low", "high", "scale")
SCALES = ("linear", "log")
RESERVED = {
    "run": "keys of other sections; seeds are in `sweep.seeds`",
    "outputs": "keys of other sections; `--folder` says where the runs lie",
    "sweep": "keys of other sections",
}
"""Sections that make no point, and what to use."""
LISTED = "a list of values, such as [0.01, 0.1]"
RANGED = "a list of values, or a range such as {low: 0.001, high: 0.1, scale: log}"


class Sweep(Section):
    """Where `fedpilot sweep` trains this config: at each point, from each seed. `fedpilot run`
    trains it without the sweep."""

    axes: Options = Field(default={}, examples=[{"training.learning_rate": [0.01, 0.1]}])
    """By config key: a list of its values. The points are all combinations. With `draws` it may be
    a range, such as `{low: 0.001, high: 0.1, scale: log}`; if `low` and `high` are whole numbers,
    whole numbers are drawn."""
    draws: Positive | None = Field(default=None, examples=[20])
    """Points to draw at random from the axes, in place of all combinations. They depend on
    `run.random_seed`."""
    points: list[Options] = Field(default=[], examples=[[{"training.learning_rate": 0.1}]])
    """The points themselves, in place of axes: by config key its value."""
    seeds: list[int] = Field(default=[], examples=[[0, 1, 2]])
    """Values of `run.random_seed`, from which each point trains; left out: the config's own."""

    def broken_rules(self) -> Iterator[Conflict]:
        if bool(self.axes) == bool(self.points):
            found = "both axes and points" if self.axes else "neither axes nor points"
            yield Conflict(key="axes", found=found, allowed="one of the two")
        if self.draws is not None and not self.axes:
            yield Conflict(key="draws", found=f"{self.draws} without axes", allowed="axes")
        for key, values in self.axes.items():
            yield from _wrong_axis(f"axes.{key}", values, drawn=self.draws is not None)
        named = [("axes", key) for key in self.axes]
        named += [(f"points[{at}]", key) for at, point in enumerate(self.points) for key in point]
        for where, key in named:
            if (section := key.split(".")[0]) in RESERVED:
                found = f"a key of `{section}`"
                yield Conflict(key=f"{where}.{key}", found=found, allowed=RESERVED[section])
        if any(not point for point in self.points):
            yield Conflict(key="points", found="a point without keys", allowed="keys with values")
        if _has_equals(self.points):
            yield Conflict(key="points", found="a point twice", allowed="each point once")
        if len(set(self.seeds)) < len(self.seeds):
            yield Conflict(key="seeds", found="a seed twice", allowed="each seed once")


def _wrong_axis(key: str, values: Any, *, drawn: bool) -> Iterator[Conflict]:
    allowed = RANGED if drawn else LISTED
    if isinstance(values, list):
        if not values:
            yield Conflict(key=key, found="no value", allowed=allowed)
        if _has_equals(values):
            yield Conflict(key=key, found="a value twice", allowed="each value once")
        return
    if not isinstance(values, Mapping):
        yield Conflict(key=key, found=value_in_words(values), allowed=allowed)
        return
    if not values.keys() & {"low", "high"}:
        allowed = f"the whole key with dots, and {allowed}"
        yield Conflict(key=key, found="a section", allowed=allowed)
        return
    if not drawn:
        yield Conflict(key=key, found="a range", allowed=f"{LISTED}; ranges need `sweep.draws`")
        return
    if unknown := [name for name in values if name not in RANGE]:
        yield Conflict(key=f"{key}.{unknown[0]}", found="an unknown key", allowed=", ".join(RANGE))
        return
    low, high = values.get("low"), values.get("high")
    scale = values.get("scale")
    if not _is_finite(low) or not _is_finite(high) or low >= high:
        found = ", ".join(
            f"{name} {each if _is_finite(each) else value_in_words(each)}"
            for name, each in (("low", low), ("high", high))
        )
        yield Conflict(key=key, found=found, allowed="two numbers, low below high")
    elif scale not in (None, *SCALES):
        found = value_in_words(scale)
        yield Conflict(key=f"{key}.scale", found=found, allowed=" or ".join(SCALES))
    elif scale == "log" and low <= 0:
        found = value_in_words(low)
        yield Conflict(key=f"{key}.low", found=found, allowed="more than 0 with `scale: log`")


def _is_finite(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)


def _has_equals(values: Sequence[Any]) -> bool:
    texts = [json.dumps(value, sort_keys=True) for value in values]
    return len(set(texts)) < len(texts)
