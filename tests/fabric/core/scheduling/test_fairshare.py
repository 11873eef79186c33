"""Division: nothing is lost, no queue gets more than it asks for, and lists may be in any order."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.core.scheduling.fairshare import ShareClaim, divide
from fedpilot.fabric.core.scheduling.records import UNLIMITED


def claim(name: str = "A", **given: Any) -> ShareClaim:
    defaults = {"quota": 0, "weight": Fraction(1), "limit": UNLIMITED, "requested": 100}
    return ShareClaim(name=name, **{**defaults, **given})


CLAIMS = st.lists(
    st.builds(
        ShareClaim,
        name=st.just(""),
        quota=st.sampled_from([0, 1, 2, 5, UNLIMITED]),
        weight=st.fractions(0, 5, max_denominator=10),
        limit=st.sampled_from([0, 3, 10, UNLIMITED]),
        requested=st.integers(0, 30),
        priority=st.integers(0, 1),
    ),
    min_size=1,
    max_size=6,
).map(lambda each: [replace(c, name=f"q{i}", created=i) for i, c in enumerate(each)])


@given(total=st.integers(0, 60), claims=CLAIMS)
def test_shares_and_what_stays_make_the_total_unless_quotas_exceed_it(
    total: int, claims: list[ShareClaim]
) -> None:
    shares, rest = divide(total, claims)
    base = sum(min(total if c.quota == UNLIMITED else c.quota, c.wants) for c in claims)
    assert sum(shares) + rest == max(total, base)
    assert rest >= 0


@given(total=st.integers(0, 60), claims=CLAIMS)
def test_a_share_is_at_least_the_quota_in_use_and_at_most_what_is_asked_for(
    total: int, claims: list[ShareClaim]
) -> None:
    for each, share in zip(claims, divide(total, claims)[0], strict=True):
        assert min(total, each.quota, each.wants) <= share <= each.wants


@given(total=st.integers(0, 60), claims=CLAIMS, order=st.randoms(use_true_random=False))
def test_the_order_of_the_queues_decides_nothing(
    total: int, claims: list[ShareClaim], order: Any
) -> None:
    shuffled = list(claims)
    order.shuffle(shuffled)
    shares = dict(zip((c.name for c in claims), divide(total, claims)[0], strict=True))
    again = dict(zip((c.name for c in shuffled), divide(total, shuffled)[0], strict=True))
    assert shares == again


@given(total=st.integers(0, 60), claims=CLAIMS)
def test_nothing_stays_while_a_queue_with_weight_wants_more(
    total: int, claims: list[ShareClaim]
) -> None:
    shares, rest = divide(total, claims)
    if rest:
        for each, share in zip(claims, shares, strict=True):
            assert not each.weight or share == each.wants


def test_shares_are_whole_devices() -> None:
    claims = [claim(name, requested=100_000) for name in "AB"]
    assert divide(25_000, claims, unit=10_000)[0] == [10_000 + 5_000, 10_000]


@pytest.mark.parametrize(
    ("effect", "shares"),
    [
        pytest.param(0.0, [5, 5], id="without an effect usage changes nothing"),
        pytest.param(0.5, [3, 7], id="who used more lately gets less"),
        pytest.param(9.0, [0, 10], id="a weight never falls below zero"),
    ],
)
def test_usage_moves_weights(effect: float, shares: list[int]) -> None:
    claims = [
        claim("A", usage=Fraction(9, 10)),
        claim("B", usage=Fraction(1, 10)),
    ]
    assert divide(10, claims, usage_effect=effect)[0] == shares
