"""What queues have used lately: a sum over time in which what is older counts less.

Usage as old as the half-life counts half. Without a half-life all of the history counts the same.
A queue's usage is compared with its pool's capacity over the same time, weighed alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .records import Amounts

STEPS = 10**6
"""A usage is rounded to so many steps, so that it does not depend on how a machine rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a queue used from one time to another."""

    begin_s: float
    end_s: float
    amounts: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageHistory:
    """The usage of all queues until a time, in units times weighted seconds."""

    at_s: float
    half_life_s: float | None
    span_s: float = 0.0
    """The weighted seconds of the history itself."""
    used: tuple[tuple[float, ...], ...] = ()
    """By queue and resource."""

    @classmethod
    def of(
        cls, spans: Sequence[Sequence[Span]], width: int, at_s: float, half_life_s: float | None
    ) -> UsageHistory:
        """The history of queues, each with its spans, as it counts at a time."""
        begin = min((each.begin_s for mine in spans for each in mine), default=at_s)

        def weight(span: Span) -> float:
            return _weight(span.end_s - span.begin_s, at_s - span.end_s, half_life_s)

        return cls(
            at_s=at_s,
            half_life_s=half_life_s,
            span_s=_weight(at_s - begin, 0.0, half_life_s),
            used=tuple(
                tuple(math.fsum(weight(s) * s.amounts[i] for s in mine) for i in range(width))
                for mine in spans
            ),
        )

    def after(self, now: float, held: Sequence[Amounts]) -> UsageHistory:
        """The history at a later time, if the queues have held these amounts since then."""
        passed = now - self.at_s
        keeps = _decay(passed, self.half_life_s)
        more = _weight(passed, 0.0, self.half_life_s)
        return UsageHistory(
            at_s=now,
            half_life_s=self.half_life_s,
            span_s=keeps * self.span_s + more,
            used=tuple(
                tuple(keeps * old + more * has for old, has in zip(mine, amounts, strict=True))
                for mine, amounts in zip(self.used, held, strict=True)
            ),
        )

    def of_capacity(self, queue: int, capacity: Amounts) -> tuple[Fraction, ...]:
        """The part of a capacity that a queue has used."""
        totals = (most * self.span_s for most in capacity)
        return tuple(
            Fraction(round(STEPS * used / total), STEPS) if total else Fraction(0)
            for used, total in zip(self.used[queue], totals, strict=True)
        )


def _decay(age_s: float, half_life_s: float | None) -> float:
    """How much usage of this age still counts."""
    return 1.0 if half_life_s is None else 0.5 ** (age_s / half_life_s)


def _weight(length_s: float, age_s: float, half_life_s: float | None) -> float:
    """The weighted seconds of a span that ended `age_s` ago."""
    if half_life_s is None:
        return length_s
    rate = math.log(2) / half_life_s
    return -math.expm1(-rate * length_s) / rate * _decay(age_s, half_life_s)
