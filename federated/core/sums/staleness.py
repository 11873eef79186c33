"""Late updates: an answer that arrives after its round closed counts in a later round.

A late Partial becomes the mean of its clients' updates. The later round adds that mean to its own
sum, on its own grid, with a weight that decreases with the delay (Xie et al. 2019, Nguyen et al.
2022). The mean is relative to the model of its own round, so it is stale by the time it counts. The
sums are integers, so the order of arrival does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from ...errors import RunRefused
from ..state import Array, digest, under
from .partial import RANGE_BITS, Partial

MEAN, LARGEST = "mean/", "max/"


def weight_of(samples: int, rounds_late: int, exponent: float) -> int:
    """The weight of samples that are so many rounds late: `samples * (1 + s) ** -exponent`."""
    return round(samples * math.pow(1.0 + rounds_late, -exponent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """All late answers of one round, as one update."""

    round_number: int
    """The round that closed without it."""
    clients: int
    samples: int
    weight: int
    """The samples, discounted for the delay."""
    sites: tuple[str, ...]
    """The sites that sent it, sorted."""
    mean: Mapping[str, Array] = field(repr=False)
    """float64 mean move of each tensor from that round's model, weighted by samples."""
    largest: Mapping[str, Array] = field(repr=False)
    """Elementwise maxima of the counters."""

    def to_json(self) -> dict[str, Any]:
        """All fields but the tensors, and a digest of the tensors."""
        return {
            "round": self.round_number,
            "clients": self.clients,
            "samples": self.samples,
            "weight": self.weight,
            "sites": list(self.sites),
            "digest": digest(self.tensors()),
        }

    def tensors(self) -> dict[str, Array]:
        means = {f"{MEAN}{name}": array for name, array in self.mean.items()}
        return means | {f"{LARGEST}{name}": array for name, array in self.largest.items()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], tensors: Mapping[str, Array], where: str) -> Self:
        """The inverse of both; RunRefused if the tensors do not match the digest."""
        if digest(tensors) != told["digest"]:
            raise RunRefused(
                f"{where} holds another update of round {told['round']} than the one that counted: "
                "without it the round cannot be run again as it was"
            )
        return cls(
            round_number=told["round"],
            clients=told["clients"],
            samples=told["samples"],
            weight=told["weight"],
            sites=tuple(told["sites"]),
            mean=under(MEAN, tensors),
            largest=under(LARGEST, tensors),
        )

    def on_grid(self, exponents: Mapping[str, int]) -> Partial:
        """Its part of a sum on this grid; it has no clients, as its own round counted them."""
        partial = Partial(exponents, weight=self.weight)
        for name, mean in self.mean.items():
            units = np.rint(np.ldexp(mean, exponents[name]))
            largest = float(np.abs(units).max(initial=0.0))
            finite = math.isfinite(largest)
            bound = int(largest) * self.weight if finite else 1 << RANGE_BITS
            partial.bounds[name] = bound
            if bound < 1 << RANGE_BITS:
                partial.sums[name] = units.astype(np.int64) * self.weight
        partial.count(self.largest)
        return partial


def as_late(
    partial: Partial,
    *,
    round_number: int,
    rounds_late: int,
    exponent: float,
    sites: Iterable[str],
) -> Late:
    """Turn a late sum into one update."""
    return Late(
        round_number=round_number,
        clients=partial.clients,
        samples=partial.weight,
        weight=weight_of(partial.weight, rounds_late, exponent),
        sites=tuple(sorted(sites)),
        mean=partial.mean(),
        largest=dict(partial.largest),
    )


def with_late(total: Partial, late: Sequence[Late]) -> Partial:
    """Add late updates to a round's sum, in place, and return it."""
    for each in late:
        total.merge(each.on_grid(total.exponents))
    return total
