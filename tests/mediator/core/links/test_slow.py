"""A link that holds rounds up is named, with what a round takes over it; others are not."""

from __future__ import annotations

import pytest

from fedpilot.mediator.core.links import LinkUse, LinkWatch, SlowLink

ROUND = 12_000_000
"""Bytes: a model of 4 MB down, a sum of 8 MB up."""


def said(*uses: tuple[int, int, float, float]) -> list[SlowLink]:
    """What is said of oslo's link, by (round, bytes, their seconds, now)."""
    watch = LinkWatch(ROUND)
    found = (watch.used(LinkUse(number, "oslo", n, s), now) for number, n, s, now in uses)
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    "uses",
    [
        pytest.param([(1, ROUND, 1.0, 1.0)], id="a fast one"),
        pytest.param([(1, ROUND, 9.0, 9.0)], id="some seconds"),
        pytest.param(
            [(1, 4_000_000, 4.0, 4.0), (1, 8_000_000, 8.0, 600.0)], id="beside which sites work"
        ),
        pytest.param([(1, 0, 60.0, 60.0)], id="nothing has crossed, so nothing is known"),
        pytest.param(
            [(number, ROUND, 9.0, 10.0 * number) for number in range(1, 6)],
            id="some seconds, round after round",
        ),
        pytest.param(
            [(2, 1, 0.1, 1.0), (1, ROUND, 60.0, 61.0)], id="the rest of a round that is over"
        ),
    ],
)
def test_nothing_is_said_of(uses: list[tuple[int, int, float, float]]) -> None:
    assert said(*uses) == []


def test_a_slow_link_is_named_while_its_first_transfer_goes_on() -> None:
    megabyte_each_8_s = [(1, 1_000_000, 8.0, 8.0 * number) for number in range(1, 5)]
    (slow,) = said(*megabyte_each_8_s)
    assert slow == SlowLink(
        site="oslo", round_number=1, seconds=96.0, bytes_per_second=pytest.approx(125_000)
    )


def test_a_link_is_spoken_of_again_once_what_was_said_is_not_so_any_more() -> None:
    times = [100.0, 110.0, 90.0, 220.0, 210.0, 100.0]
    uses, now = [], 0.0
    for number, seconds in enumerate(times, start=1):
        now += seconds
        uses.append((number, ROUND, seconds, now))
    assert [each.seconds for each in said(*uses)] == [100.0, 220.0, 100.0]


def test_a_transfer_that_sends_again_counts_what_it_took() -> None:
    (slow,) = said((1, 3 * ROUND, 300.0, 300.0))
    assert slow.seconds == 300.0
