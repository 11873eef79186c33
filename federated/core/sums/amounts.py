"""Checks how much a site's sum weighs and how large it can be, before the round uses it.

The rules:

* a sum's weight is the samples in its tally, and those that its clients declare, where known;
* a site refuses clients one by one if their training was not finite, so no sum contains one;
* a sum's bound is at most what its clients could reach: no client moves further than its type can
  express, and the bound of a single client is the largest number of its sum.

A weight decides a site's part of the next model; a bound decides the grid of all sites.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...errors import FederatedError
from ..population.sampling import Indices
from ..state import Array, State
from .partial import RANGE_BITS, Partial, Tally


class AnswerRefused(FederatedError):
    """A site sent an impossible answer."""

    def __init__(self, what: str, found: str, wanted: str) -> None:
        super().__init__(what, found, wanted)
        self.what, self.found, self.wanted = what, found, wanted

    def __str__(self) -> str:
        return f"its answer is refused: {self.what} is {self.found}, wanted {self.wanted}"


def shown(value: object) -> str:
    """A value of an answer, as a message shows it."""
    return "missing" if value is None else f"{value!r:.60}"


def check_weight(
    weight: int,
    tally: Tally,
    *,
    each_once: bool,
    samples: Indices | None,
    unnamed: int = 0,
    equal: int | None = None,
) -> None:
    """Raise AnswerRefused for a sum with an impossible weight.

    Where each client weighs 1, `equal` are the clients in the sum.

    `samples` are those of the clients in the answer, without those refused by name; -1 for an
    unknown number, None if all are unknown. `unnamed` of these clients were refused without a name.
    `each_once`: every client trained once; in groups some train several times, or never.
    """
    if tally.not_finite:
        found = f"with {tally.not_finite} samples whose loss is not finite"
        raise AnswerRefused("its tally", found, "none: clients that are not finite are refused")
    if equal is not None:
        if weight != equal:
            raise AnswerRefused("`weight`", f"{weight}", f"1 for each of {equal} clients")
        weight = tally.samples
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
    """Raise AnswerRefused for a tally that does not match the samples of the evaluating clients.

    `samples` has -1 for a client with an unknown number; it is None where none is known.
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


def check_bounds(partial: Partial, model: State, *, parts: int = 1) -> None:
    """Raise AnswerRefused for an impossible bound; the sum's tensors must be checked before.

    A bound that leaves its range may be in units that are `parts` times as small: on a graph the
    site bounds its mixtures.
    """
    for name, bound in partial.bounds.items():
        beyond = bound >= 1 << RANGE_BITS
        # Where all clients of a graph's site are absent, their neighbors' models are still bounded.
        weight = max(partial.weight, 1) if beyond and parts > 1 else partial.weight
        most = _most(model[name], partial.exponents[name]) * weight
        if bound > most * (parts if beyond else 1):
            wanted = f"at most {_in_words(most)} for its weight of {partial.weight}"
            raise AnswerRefused(f"the bound of {name}", _in_words(bound), wanted)
        if partial.clients == 1 and bound < 1 << RANGE_BITS:
            reached = largest(partial.sums[name])
            if reached != bound:
                wanted = f"{reached}, the largest of its only client"
                raise AnswerRefused(f"the bound of {name}", f"{bound}", wanted)


def check_repeated(before: Partial, after: Partial) -> None:
    """Raise AnswerRefused if a sum on a coarser grid is not of the same training as the first.

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
    """Whether the sum of these may leave its range."""
    bounds: dict[str, int] = {}
    for partial in partials:
        for name, bound in partial.bounds.items():
            bounds[name] = bounds.get(name, 0) + bound
    return any(bound >= 1 << RANGE_BITS for bound in bounds.values())


def largest(total: Array) -> int:
    """The largest absolute value of integers."""
    return max(int(total.max(initial=0)), -int(total.min(initial=0)))


def total(samples: Indices) -> int:
    """Sum numbers whose sum may be too large for int64."""
    if not len(samples) or int(samples.max()) <= np.iinfo(np.int64).max // len(samples):
        return int(samples.sum())
    return sum(samples.tolist())


def _most(tensor: Array, exponent: int) -> int:
    """The most units that one client can move a tensor by: the largest value of its type."""
    wide = np.float32 if tensor.dtype.itemsize < 4 else tensor.dtype
    bits = int(np.finfo(wide).maxexp) + exponent
    return 1 << max(0, bits)


def _in_words(number: int) -> str:
    return f"{number}" if number < 1 << 64 else f"about 2^{number.bit_length() - 1}"
