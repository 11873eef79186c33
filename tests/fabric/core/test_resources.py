"""Resources are exact: what is taken can be given back, in Ray's own steps of 1/10000."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.core.resources import GIB, UNIT, Resources, amounts

NAMES = ["CPU", "GPU", "memory", "lidar"]
some = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 50 * UNIT).map(lambda n: n / UNIT))
resources = some.map(Resources.of)


@given(resources, resources)
def test_what_was_added_can_be_taken_away(a: Resources, b: Resources) -> None:
    assert (a + b) - b == a
    assert a + b == b + a


@given(resources, resources, resources)
def test_the_order_of_adding_does_not_matter(a: Resources, b: Resources, c: Resources) -> None:
    assert (a + b) + c == a + (b + c)


@given(resources, resources)
def test_it_fits_exactly_where_it_can_be_taken_away(a: Resources, b: Resources) -> None:
    if a.fits(b):
        assert (b - a) + a == b
    else:
        with pytest.raises(ValueError, match="cannot take"):
            b - a


@given(resources, resources)
def test_capped_amounts_are_within_the_limits_that_are_named(a: Resources, b: Resources) -> None:
    limits = dict(b.units)
    capped = a.capped(limits)
    assert capped.only(limits) == a & b
    assert capped.without(limits) == a.without(limits)


@given(resources, resources)
def test_the_larger_of_two_holds_both(a: Resources, b: Resources) -> None:
    assert a.fits(a | b)
    assert b.fits(a | b)
    assert (a | b).fits(a + b)


@given(resources)
def test_ray_sees_what_we_see(a: Resources) -> None:
    assert Resources.of(a.to_ray()) == a
    assert a.only({"CPU"}) + a.without({"CPU"}) == a


def test_ten_tenths_are_one() -> None:
    tenths = Resources()
    for _ in range(10):
        tenths += Resources.of({"CPU": 0.1})
    assert tenths == Resources.of({"CPU": 1})


@pytest.mark.parametrize(
    "amount",
    [
        pytest.param(-1.0, id="a negative amount is refused"),
        pytest.param(math.nan, id="not a number is refused"),
        pytest.param(math.inf, id="an infinite amount is refused"),
    ],
)
def test_what_is_no_amount_is_refused(amount: float) -> None:
    with pytest.raises(ValueError, match="CPU must be zero or more and finite"):
        Resources.of({"CPU": amount})


@pytest.mark.parametrize(
    ("given_amounts", "text"),
    [
        pytest.param({"CPU": 2, "GPU": 1}, "2 CPU, 1 GPU", id="whole amounts have no fraction"),
        pytest.param({"CPU": 0.25}, "0.25 CPU", id="fractions are shown as they are"),
        pytest.param({"memory": 8e9}, "8000000000 memory", id="large amounts are written out"),
        pytest.param({"CPU": 0}, "nothing", id="zero is nothing"),
    ],
)
def test_it_reads_well(given_amounts: dict[str, float], text: str) -> None:
    assert str(Resources.of(given_amounts)) == text


@pytest.mark.parametrize(
    ("gib", "said"),
    [
        (0.25, "0.25"),
        (7.3333, "7.33"),
        (512, "512"),
        (999.7, "1000"),
        (1000, "1000"),
        (2048, "2048"),
        (12_345.6, "12346"),
    ],
)
def test_memory_is_told_in_gib_without_powers_of_ten(gib: float, said: str) -> None:
    assert amounts({"memory": gib * GIB}) == f"{said} GiB memory"
