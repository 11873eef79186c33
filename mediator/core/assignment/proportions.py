"""Divides numbers in proportion to weights."""

from __future__ import annotations

from collections.abc import Mapping


def proportional(number: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divide a number in proportion to weights, each part exact to within one, sorted by name."""
    names = sorted(weights)
    total = sum(weights.values())
    parts = {name: number * weights[name] // total for name in names}
    by_remainder = sorted(names, key=lambda name: (-(number * weights[name] % total), name))
    for name in by_remainder[: number - sum(parts.values())]:
        parts[name] += 1
    return parts
