"""Amounts in words: one form each, whatever the command."""

from __future__ import annotations

import pytest

from fedpilot.common.text.amounts import (
    ago,
    brief,
    counted,
    duration,
    in_bytes,
    in_rate,
    listed,
    number,
    ordinal,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        pytest.param(-1.0, "0 s", id="less than nothing"),
        pytest.param(0.0, "0 s", id="no time"),
        pytest.param(0.04, "0 s", id="hardly any"),
        pytest.param(4.21, "4.2 s", id="tenths"),
        pytest.param(9.96, "10 s", id="ten seconds have no tenths"),
        pytest.param(59.4, "59 s", id="nearly a minute"),
        pytest.param(59.97, "1 min", id="so nearly that it is one"),
        pytest.param(185.4, "3 min 5 s", id="minutes"),
        pytest.param(3599.7, "1 h", id="nearly an hour"),
        pytest.param(7620.0, "2 h 7 min", id="hours"),
        pytest.param(86_399.0, "23 h 59 min", id="nearly a day"),
        pytest.param(198_000.0, "2 d 7 h", id="days"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_duration_may_have_one_unit() -> None:
    assert duration(7620.0, units=1) == "2 h"
    assert ago(1000.0, 1185.2, units=1) == "3 min ago"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 KB"),
        (38_440, "38.4 KB"),
        (961_000, "961 KB"),
        (999_600, "1 MB"),
        (44_700_000, "44.7 MB"),
        (8_300_000_000, "8.3 GB"),
        (2 * 10**16, "20000 TB"),
    ],
)
def test_bytes_have_three_digits(count: float, words: str) -> None:
    assert in_bytes(count) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 clients"), (1, "1 client"), (1000, "1,000 clients")]
)
def test_one_is_singular(count: int, words: str) -> None:
    assert counted(count, "client") == words


def test_what_is_not_known_is_a_dash() -> None:
    assert (number(0.87654), number(0.5, 2), number(None)) == ("0.8765", "0.50", "–")


@pytest.mark.parametrize(
    ("position", "words"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (112, "112th")]
)
def test_ordinals(position: int, words: str) -> None:
    assert ordinal(position) == words


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b", "c", "d", "e", "f", "g"], "a, b, c, d, e and 2 more"),
    ],
)
def test_of_many_names_the_first_are_listed(names: list[str], words: str) -> None:
    assert listed(names) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        pytest.param(0.0, "0 s", id="no time"),
        pytest.param(4e-8, "0.04 µs", id="hardly any"),
        pytest.param(3.4e-4, "340 µs", id="millionths"),
        pytest.param(0.01249, "12.5 ms", id="thousandths"),
        pytest.param(0.9996, "1 s", id="so nearly a second that it is one"),
        pytest.param(4.21, "4.21 s", id="seconds"),
        pytest.param(59.97, "1 min", id="so nearly a minute that it is one"),
        pytest.param(185.4, "3 min 5 s", id="minutes"),
    ],
)
def test_a_brief_time_has_three_digits(seconds: float, words: str) -> None:
    assert brief(seconds) == words


def test_a_speed_is_in_bytes_per_second() -> None:
    assert in_rate(12_500_000) == "12.5 MB/s"
