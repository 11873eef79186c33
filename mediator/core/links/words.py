"""A link in words, with where each figure comes from."""

from __future__ import annotations

from fedpilot.common.text.amounts import DASH, ago, brief, in_rate

from .speed import LinkSpeed


def in_words(link: LinkSpeed, now: float) -> str:
    """`up 12.5 MB/s (declared), down 96 MB/s (measured 3 min ago), round trip 12 ms`."""
    parts = []
    if link.has_speed:
        parts.append(f"up {_speed(link.up, link.up_measured_at, now)}")
        parts.append(f"down {_speed(link.down, link.down_measured_at, now)}")
    if link.round_trip_s is not None:
        parts.append(f"round trip {brief(link.round_trip_s)}")
    return ", ".join(parts)


def _speed(rate: float | None, measured_at: float | None, now: float) -> str:
    if rate is None:
        return DASH
    # Another machine's clock may be ahead.
    source = "declared" if measured_at is None else f"measured {ago(min(measured_at, now), now, 1)}"
    return f"{in_rate(rate)} ({source})"
