"""Past usage: what is older counts less, and cutting a span in two changes nothing."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fedpilot.fabric.core.scheduling.usage import Span, UsageHistory

CAPACITY = (10,)


def used(*spans: tuple[float, float, int], half_life_s: float | None = None) -> Fraction:
    """The part of ten that a queue has used until 0."""
    made = [Span(begin_s=a, end_s=b, amounts=(n,)) for a, b, n in spans]
    return UsageHistory.of([made], 1, 0.0, half_life_s).of_capacity(0, CAPACITY)[0]


def test_without_a_half_life_it_is_the_mean_since_the_history_begins() -> None:
    assert used((-100, -50, 10)) == Fraction(1, 2)
    assert used((-100, 0, 5)) == Fraction(1, 2)
    assert used() == 0


def test_with_a_half_life_what_is_older_counts_less() -> None:
    early = used((-100, -50, 10), (-50, 0, 0), half_life_s=50)
    late = used((-100, -50, 0), (-50, 0, 10), half_life_s=50)
    assert early == pytest.approx(1 / 3, abs=1e-6)
    assert late == pytest.approx(2 / 3, abs=1e-6)


@pytest.mark.parametrize("half_life_s", [None, 30.0])
def test_a_history_that_goes_on_is_one_that_was_known_from_the_start(
    half_life_s: float | None,
) -> None:
    begun = UsageHistory.of([[Span(begin_s=-100, end_s=-60, amounts=(8,))]], 1, -60.0, half_life_s)
    later = begun.after(-20.0, [(2,)]).after(0.0, [(4,)])
    whole = used((-100, -60, 8), (-60, -20, 2), (-20, 0, 4), half_life_s=half_life_s)
    assert later.of_capacity(0, CAPACITY) == (whole,)
