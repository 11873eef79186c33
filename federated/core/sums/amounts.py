"""Checks how much a site's sum weighs and how large it can be, before the round uses it.

The rules:

* a sum weighs what its tally counts, and what its clients are declared to hold where that is known;
* clients whose training was not finite are refused one by one at their site, so a sum has none;
* a sum's bound is what its clients could reach: no client moves further than its type can say, and
  the bound of a single client is the largest number of its sum.

A weight decides how much a site owns of the next model; a bound decides the grid of everybody's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..population.sampling import Indices
from ..state import Array, State
from .partial import RANGE_BITS, Partial, Tally


@dataclass(frozen=True, slots=True)
class Wrong:
    """What cannot be, and what would be right."""

    what: str
    found: str
    wanted: str


def weight_problem(
    weight: int, tally: Tally, *, each_once: bool, samples: Indices | None, unnamed: int = 0
) -> Wrong | None:
    """What is wrong with the weight of a sum.

    `samples` are those of the clients that it covers, without those refused by name; -1 where one
    does not say, None where nothing is known. `unnamed` of them were refused without a name.
    `each_once`: every client of it trained once; in groups some train several times, or never.
    """
    if tally.not_finite:
        found = f"with {tally.not_finite} samples whose loss is not finite"
        return Wrong("its tally", found, "none: clients that are not finite are refused")
    if weight > tally.samples or (each_once and weight != tally.samples):
        return Wrong("`weight`", f"{weight}", f"the {tally.samples} samples of its tally")
    if samples is None or bool((samples < 0).any()):
        return None
    ascending = np.sort(samples)
    most = total(ascending[unnamed:]) if each_once else total(ascending)
    least = total(ascending[: len(ascending) - unnamed]) if each_once else 0
    if not least <= weight <= most:
        wanted = f"{most}" if least == most else f"{least} to {most}"
        return Wrong("`weight`", f"{weight}", f"{wanted}, the samples that its clients hold")
    return None


def judged_problem(tally: Tally, samples: Indices | None) -> Wrong | None:
    """What is wrong with a tally over the samples of the clients that evaluate a model.

    `samples` has -1 for a client whose number is not known; it is None where none is known.
    """
    if tally.untold:
        return Wrong("its tally", f"with {tally.untold} samples without a loss", "one of each")
    if samples is None or bool((samples < 0).any()):
        return None
    whole = total(samples)
    if tally.samples != whole:
        wanted = f"{whole}, the samples that are judged"
        return Wrong("the samples of its tally", f"{tally.samples}", wanted)
    return None


def update_problem(weight: int, tally: Tally, samples: int) -> Wrong | None:
    """What is wrong with the weight of one client's update; -1 samples are not known."""
    known = None if samples < 0 else np.array([samples], dtype=np.int64)
    return weight_problem(weight, tally, each_once=True, samples=known)


def bound_problem(partial: Partial, model: State) -> Wrong | None:
    """What is wrong with how large a sum says that it can be; its tensors were checked before."""
    for name, bound in partial.bounds.items():
        most = _most(model[name], partial.exponents[name]) * partial.weight
        if bound > most:
            wanted = f"at most {_in_words(most)} for its weight of {partial.weight}"
            return Wrong(f"the bound of {name}", _in_words(bound), wanted)
        if partial.clients == 1 and bound < 1 << RANGE_BITS:
            reached = largest(partial.sums[name])
            if reached != bound:
                wanted = f"{reached}, the largest of its only client"
                return Wrong(f"the bound of {name}", f"{bound}", wanted)
    return None


def size_problem(before: Partial, after: Partial) -> Wrong | None:
    """What is wrong with a sum on a coarser grid than before, of the same clients' same training.

    Each client's largest move is rounded once on either grid, by half a unit at most.
    """
    if before.weight != after.weight:
        return Wrong("`weight`", f"{after.weight}", f"{before.weight}, as on the grid before")
    for name, bound in before.bounds.items():
        bits = before.exponents[name] - after.exponents[name]
        again = after.bounds.get(name, 0) << bits
        if abs(bound - again) > before.weight << bits:
            found = f"{_in_words(bound)} on one grid and {_in_words(again)} on a coarser one"
            return Wrong(f"the bound of {name}", found, "the same on both")
    return None


def leaves_range(partials: Iterable[Partial]) -> bool:
    """Whether the sum of these leaves its range."""
    bounds: dict[str, int] = {}
    for partial in partials:
        for name, bound in partial.bounds.items():
            bounds[name] = bounds.get(name, 0) + bound
    return any(bound >= 1 << RANGE_BITS for bound in bounds.values())


def largest(total: Array) -> int:
    """The largest absolute value of integers."""
    return max(int(total.max(initial=0)), -int(total.min(initial=0)))


def total(samples: Indices) -> int:
    """The sum of numbers that may be too large for one of int64."""
    if not len(samples) or int(samples.max()) <= np.iinfo(np.int64).max // len(samples):
        return int(samples.sum())
    return sum(samples.tolist())


def _most(tensor: Array, exponent: int) -> int:
    """The most units that one client can move a tensor by: what its type can say."""
    wide = np.float32 if tensor.dtype.itemsize < 4 else tensor.dtype
    bits = int(np.finfo(wide).maxexp) + exponent
    return 1 << max(0, bits)


def _in_words(number: int) -> str:
    return f"{number}" if number < 1 << 64 else f"about 2^{number.bit_length() - 1}"
