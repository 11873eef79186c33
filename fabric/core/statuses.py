"""The states of a virtual cluster, as the manager's documents and people's scripts spell them."""

from __future__ import annotations

WAITING, STARTING, ACTIVE, RECOVERING = "waiting", "starting", "active", "recovering"
ENDED = "ended"
"""Of one that is no more: only histories name it."""


def has_started(state: str) -> bool:
    """Whether work can run in a virtual cluster of that state."""
    return state not in (WAITING, STARTING)
