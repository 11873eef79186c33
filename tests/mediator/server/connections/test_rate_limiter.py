"""Whoever sends more than allowed is read at the allowed rate."""

from __future__ import annotations

import pytest

from fedpilot.mediator.server.connections.rate_limiter import RateLimiter


def test_who_sends_no_more_than_allowed_is_never_slowed() -> None:
    pacing = RateLimiter(10, 5, now=0.0)
    assert [pacing.pause_s(0.1 * n) for n in range(100)] == [0.0] * 100


def test_who_sends_too_much_is_read_at_the_allowed_rate() -> None:
    pacing, now = RateLimiter(10, 5, now=0.0), 0.0
    for _ in range(105):
        now += pacing.pause_s(now)
    assert now == pytest.approx(10.0, abs=0.2)


def test_a_message_that_is_given_back_does_not_count() -> None:
    pacing = RateLimiter(10, 5, now=0.0)
    for _ in range(100):
        assert pacing.pause_s(0.0) == 0.0
        pacing.give_back()
    assert [pacing.pause_s(0.0) for _ in range(6)] == [0.0] * 5 + [0.1]
