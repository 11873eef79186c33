"""Kubernetes quantities are read exactly, and nothing else is."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.spec.ray_cluster.quantities import quantity_of


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        pytest.param("2", 2, id="a plain number"),
        pytest.param(2, 2, id="a whole number that is no text"),
        pytest.param(0.5, Fraction(1, 2), id="a fraction that is no text"),
        pytest.param("500m", Fraction(1, 2), id="thousandths"),
        pytest.param("4Gi", 4 * 2**30, id="binary units"),
        pytest.param("40G", 40 * 10**9, id="decimal units"),
        pytest.param("1k", 1000, id="a small k is a thousand"),
        pytest.param("1.5Gi", 3 * 2**29, id="a fraction of a unit"),
        pytest.param(".5", Fraction(1, 2), id="no digit before the point"),
        pytest.param("5.", 5, id="no digit behind the point"),
        pytest.param("1e3", 1000, id="an exponent"),
        pytest.param("1E-3", Fraction(1, 1000), id="a negative exponent"),
        pytest.param("+1", 1, id="a plus"),
        pytest.param("-0", 0, id="a zero below zero"),
    ],
)
def test_a_quantity_is_read_exactly(value: object, amount: Fraction) -> None:
    assert quantity_of(value) == amount


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("-1", id="less than nothing"),
        pytest.param("4GB", id="units that Kubernetes does not have"),
        pytest.param("1K", id="a large K alone"),
        pytest.param("", id="nothing"),
        pytest.param(".", id="a point alone"),
        pytest.param("1 Gi", id="a space"),
        pytest.param("1e999999999", id="an exponent that would take for ever"),
        pytest.param("9" * 31, id="too many digits"),
        pytest.param("10E", id="more than 10^18"),
        pytest.param("٣", id="digits of other scripts"),
        pytest.param(True, id="a truth value"),
        pytest.param(float("nan"), id="no number"),
        pytest.param(None, id="null"),
    ],
)
def test_other_values_are_no_quantities(value: object) -> None:
    assert quantity_of(value) is None


@given(st.integers(0, 10**11), st.sampled_from(["", "m", "k", "Ki", "M", "Mi", "u", "n"]))
def test_a_larger_number_is_a_larger_quantity(number: int, suffix: str) -> None:
    amounts = quantity_of(f"{number}{suffix}"), quantity_of(f"{number + 1}{suffix}")
    assert amounts[0] is not None
    assert amounts[1] is not None
    assert amounts[0] < amounts[1]
