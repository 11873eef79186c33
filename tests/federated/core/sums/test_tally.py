"""A Tally counts losses and hits exactly, in whatever order they come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.sums.partial import Tally, exact


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1e9)), min_size=1, max_size=8))
def test_tallies_merge_in_any_order(parts: list[tuple[int, float]]) -> None:
    def total(order: Sequence[tuple[int, float]]) -> list[int]:
        tally = Tally()
        for samples, loss in order:
            tally.merge(Tally().add(samples, 1, loss))
        return tally.to_json()

    assert total(parts) == total(parts[::-1]) == total(sorted(parts))
    assert Tally.from_json(total(parts)).to_json() == total(parts)


@pytest.mark.parametrize(
    ("tally", "loss", "accuracy"),
    [
        pytest.param(Tally(), math.nan, math.nan, id="nothing was measured"),
        pytest.param(Tally().add(4, 3, 2.0), 0.5, 0.75, id="means per sample"),
        pytest.param(Tally().add(4, 3, math.inf), math.nan, 0.75, id="an infinite loss"),
        pytest.param(
            Tally().add(4, 3, 2.0).merge(Tally().add(1, 0, math.nan)), math.nan, 0.6,
            id="one part that is not finite spoils the loss alone",
        ),
    ],
)  # fmt: skip
def test_what_a_tally_says(tally: Tally, loss: float, accuracy: float) -> None:
    assert tally.mean_loss == pytest.approx(loss, nan_ok=True)
    assert tally.accuracy == pytest.approx(accuracy, nan_ok=True)


@given(st.floats(-(2.0**900), 2.0**900, allow_nan=False))
def test_a_loss_is_rounded_once_to_the_nearest_unit(value: float) -> None:
    assert exact(value) == round(Fraction(value) * 2**32)


@pytest.mark.parametrize("loss", [1e300, -1e300, 1.7e308])
def test_a_finite_loss_is_never_too_large_to_count(loss: float) -> None:
    tally = Tally().add(1, 0, loss)
    tally.merge(Tally().add(1, 0, loss))
    assert tally.mean_loss == loss
