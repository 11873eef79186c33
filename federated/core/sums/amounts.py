"""Checks how much a site's sum weighs and how large it can be, before the round uses it.

The rules:

* a sum weighs what its tally counts, and what its clients are declared to hold where that is known;
* clients whose training was not finite are refused one by one at their site, so a sum has none;
* a sum's bound is what its clients could reach: no client moves further than its type can say, and
  the bound of a single client is the largest number of its sum.

A weight decides how much a site owns of the next model; a bound decides the grid of all sites.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...errors import FederatedError
from ..population.sampling import Indices
from ..state import Array, State
from .partial import RANGE_BITS, Partial, Tally


class AnswerRefused(FederatedError):
    """A site's answer cannot be what it was asked for."""

    def __init__(self, what: str, found: str, wanted: str) -> None:
        super().__init__(what, found, wanted)
        self.what, self.found, self.wanted = what, found, wanted

    def __str__(self) -> str:
        return f"its answer is refused: {self.what} is {self.found}, wanted {self.wanted}"


def shown(value: object) -> str:
    """A value of an answer, as a message shows it."""
    return "missing" if value is None else f"{value!r:.60}"


def check_weight(
    weight: int, tally: Tally, *, each_once: bool, samples: Indices | None, unnamed: int = 0
) -> None:
    """AnswerRefused for a sum with a weight that it cannot have.

    `samples` are those of the clients that it covers, without those refused by name; -1 where one
    does not say, None where nothing is known. `unnamed` of them were refused without a name.
    `each_once`: every client of it trained once; in groups some train several times, or never.
    """
    if tally.not_finite:
        found = f"with {tally.not_finite} samples whose loss is not finite"
        raise AnswerRefused("its tally", found, "none: clients that are not finite are refused")
    if weight > tally.samples or (each_once and weight != tally.samples):
        raise AnswerRefused("`weight`", f"{weight}", f"the {tally.samples} samples of its tally")
    if samples is None or bool((samples < 0).any()):
        return
    ascending = np.sort(samples)
    most = total(ascending[unnamed:]) if each_once else total(ascending)
    least = total(ascending[: len(ascending) - unnamed]) if each_once else 0
    if not least <= weight <= most:
        wanted = f"{most}" if least == most else f"{least} to {most}"
        raise AnswerRefused("`weight`", f"{weight}", f"{wanted}, the samples that its clients hold")


def check_judged(tally: Tally, samples: Indices | None) -> None:
    """AnswerRefused for a tally that cannot be over the samples of the clients that evaluate.

    `samples` has -1 for a client whose number is not known; it is None where none is known.
    """
    if tally.untold:
        raise AnswerRefused(
            "its tally", f"with {tally.untold} samples without a loss", "one of each"
        )
    if samples is None or bool((samples < 0).any()):
        return
    whole = total(samples)
    if tally.samples != whole:
        wanted = f"{whole}, the samples that are judged"
        raise AnswerRefused("the samples of its tally", f"{tally.samples}", wanted)


def check_bounds(partial: Partial, model: State) -> None:
    """AnswerRefused for a sum with a bound that it cannot have; its tensors were checked before."""
    for name, bound in partial.bounds.items():
        most = _most(model[name], partial.exponents[name]) * partial.weight
        if bound > most:
            wanted = f"at most {_in_words(most)} for its weight of {partial.weight}"
            raise AnswerRefused(f"the bound of {name}", _in_words(bound), wanted)
        if partial.clients == 1 and bound < 1 << RANGE_BITS:
            reached = largest(partial.sums[name])
            if reached != bound:
                wanted = f"{reached}, the largest of its only client"
                raise AnswerRefused(f"the bound of {name}", f"{bound}", wanted)


def check_repeated(before: Partial, after: Partial) -> None:
    """AnswerRefused for a sum on a coarser grid that is not of the same training as before.

    Each client's largest move is rounded once on either grid, by half a unit at most.
    """
    if before.weight != after.weight:
        wanted = f"{before.weight}, as on the grid before"
        raise AnswerRefused("`weight`", f"{after.weight}", wanted)
    for name, bound in before.bounds.items():
        bits = before.exponents[name] - after.exponents[name]
        again = after.bounds.get(name, 0) << bits
        if abs(bound - again) > before.weight << bits:
            found = f"{_in_words(bound)} on one grid and {_in_words(again)} on a coarser one"
            raise AnswerRefused(f"the bound of {name}", found, "the same on both")


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
