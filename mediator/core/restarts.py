"""Whether a process that was killed is started again: after a growing pause, within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings:
    """The budget, and the pauses. Seconds."""

    most: int = 5
    """Restarts within the window."""
    window_s: float = 600.0
    first_pause_s: float = 0.5
    """Before the first restart of a window; doubles with each up to `longest_pause_s`."""
    longest_pause_s: float = 20.0


def pause_before_restart(
    deaths: Sequence[float], now: float, settings: RestartSettings
) -> float | None:
    """Seconds to wait before the next restart, or None if the budget is used up.

    `deaths` are the moments of all deaths until now, the last of them included.
    """
    recent = [at for at in deaths if at > now - settings.window_s]
    if len(recent) > settings.most:
        return None
    doublings = max(0, len(recent) - 1)
    return min(settings.longest_pause_s, settings.first_pause_s * 2.0**doublings)
