"""Amounts of resources, exact in Ray's own fixed point: one unit is 1/10000; and in words."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

UNIT = 10_000
"""Units per CPU, per GPU, per byte of memory; Ray counts in the same steps."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Resources:
    """An immutable vector of amounts by name; a missing name has amount zero."""

    units: tuple[tuple[str, int], ...] = ()
    """(name, amount in units), sorted by name, without zeros, so that equal vectors are equal."""

    @classmethod
    def of(cls, amounts: Mapping[str, float]) -> Resources:
        """Round each amount to the nearest unit, like Ray. ValueError if negative or not finite."""
        for name, amount in amounts.items():
            if not math.isfinite(amount) or amount < 0:
                raise ValueError(f"{name} must be zero or more and finite, found {amount}")
        return cls._from_units({name: round(amount * UNIT) for name, amount in amounts.items()})

    @classmethod
    def _from_units(cls, units: Mapping[str, int]) -> Resources:
        return cls(tuple(sorted((name, amount) for name, amount in units.items() if amount)))

    @classmethod
    def total(cls, many: Iterable[Resources]) -> Resources:
        """The sum of `many`."""
        sums: dict[str, int] = {}
        for each in many:
            for name, amount in each.units:
                sums[name] = sums.get(name, 0) + amount
        return cls._from_units(sums)

    @property
    def size(self) -> int:
        """All amounts added up, in units. The tightest place is the one with the least."""
        return sum(amount for _, amount in self.units)

    def __getitem__(self, name: str) -> int:
        """Amount of one resource in units."""
        return dict(self.units).get(name, 0)

    def __bool__(self) -> bool:
        return bool(self.units)

    def __add__(self, other: Resources) -> Resources:
        if not (self.units and other.units):
            return self if self.units else other
        total = dict(self.units)
        for name, amount in other.units:
            total[name] = total.get(name, 0) + amount
        known = len(total) == len(self.units)  # then they are sorted, and none is zero
        return Resources(tuple(total.items())) if known else self._from_units(total)

    def __sub__(self, other: Resources) -> Resources:
        """Subtract `other`. ValueError if it does not fit."""
        if not other.units:
            return self
        if not other.fits(self):
            raise ValueError(f"cannot take {other} from {self}")
        left = dict(self.units)
        for name, amount in other.units:
            left[name] -= amount
        return Resources(tuple(pair for pair in left.items() if pair[1]))

    def __or__(self, other: Resources) -> Resources:
        """The larger amount of each resource."""
        larger = dict(self.units)
        for name, amount in other.units:
            larger[name] = max(amount, larger.get(name, 0))
        return self._from_units(larger)

    def beyond(self, room: Resources) -> Resources:
        """What `room` lacks of this."""
        have = dict(room.units)
        lacking = {name: amount - have.get(name, 0) for name, amount in self.units}
        return self._from_units({name: amount for name, amount in lacking.items() if amount > 0})

    def __and__(self, other: Resources) -> Resources:
        """The smaller amount of each resource."""
        have = dict(other.units)
        return self._from_units({n: min(amount, have.get(n, 0)) for n, amount in self.units})

    def capped(self, limits: Mapping[str, int]) -> Resources:
        """At most the limit of each resource, in units; a resource without a limit stays."""
        return self._from_units({n: min(amount, limits.get(n, amount)) for n, amount in self.units})

    def only(self, names: Container[str]) -> Resources:
        return Resources(tuple(pair for pair in self.units if pair[0] in names))

    def without(self, names: Container[str]) -> Resources:
        return Resources(tuple(pair for pair in self.units if pair[0] not in names))

    def copies_in(self, room: Resources) -> int:
        """How many times this fits `room`; 1 if it is empty."""
        have = dict(room.units)
        return min((have.get(name, 0) // amount for name, amount in self.units), default=1)

    def fits(self, room: Resources) -> bool:
        """Whether `room` has at least this much of everything."""
        have = dict(room.units)
        for name, amount in self.units:  # noqa: SIM110 - hot path, and all() is slower
            if amount > have.get(name, 0):
                return False
        return True

    def to_ray(self) -> dict[str, float]:
        return {name: amount / UNIT for name, amount in self.units}

    def __str__(self) -> str:
        if not self.units:
            return "nothing"
        return ", ".join(f"{amount / UNIT:.15g} {name}" for name, amount in self.units)


def amounts(found: Resources | Mapping[str, float]) -> str:
    """Amounts in words, with Ray's names and in reading order: CPU and GPU first, memory last."""
    named = found.to_ray() if isinstance(found, Resources) else found
    return ", ".join(amount(name, named[name]) for name in ordered(named)) or "nothing"


def amount(name: str, value: float) -> str:
    return f"{figure(name, value)} {'GiB ' if name == 'memory' else ''}{name}"


def figure(name: str, value: float) -> str:
    """The number of an amount, without its unit."""
    if name != "memory":
        return f"{value:.15g}"
    gib = value / GIB
    return f"{gib:.0f}" if gib >= 100 else f"{gib:.3g}"


def ordered(names: Iterable[str]) -> list[str]:
    """Names of resources in reading order."""
    ranks = {"CPU": 0, "GPU": 1, "memory": 3}
    return sorted(names, key=lambda name: (ranks.get(name, 2), name))
