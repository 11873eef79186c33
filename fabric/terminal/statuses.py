"""The mark and the colour of each state of virtual clusters, jobs, sites, runs, certificates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from rich.text import Text

from ..core.records import ACTIVE, ENDED, RECOVERING, STARTING, WAITING

Looks: TypeAlias = Mapping[str, tuple[str, str]]
"""The mark of each state, which may be empty, and its colour."""

CLUSTERS: Looks = {
    ACTIVE: ("●", "green"),
    STARTING: ("◐", "cyan"),
    WAITING: ("○", "yellow"),
    RECOVERING: ("▲", "red"),
    ENDED: ("×", "bright_black"),
}
JOBS: Looks = {
    "WAITING": ("", "yellow"),
    "PENDING": ("", "cyan"),
    "RUNNING": ("", "green"),
    "SUCCEEDED": ("", "green"),
    "FAILED": ("", "red"),
    "STOPPED": ("", "bright_black"),
}
SITES: Looks = {
    "joining": ("◐", "cyan"),
    "ready": ("●", "green"),
    "cordoned": ("■", "yellow"),
    "draining": ("▼", "yellow"),
    "suspect": ("▲", "yellow"),
    "lost": ("×", "red"),
    "left": ("○", "bright_black"),
}
RUNS: Looks = {
    "submitted": ("", "cyan"),
    "running": ("", "green"),
    "stopping": ("", "yellow"),
    "stopped": ("", "bright_black"),
    "finished": ("", "green"),
    "failed": ("", "red"),
    "interrupted": ("", "yellow"),
}
CERTIFICATES: Looks = {
    "valid": ("", "green"),
    "expired": ("", "yellow"),
    "revoked": ("", "red"),
}


def marked(looks: Looks, state: str, more: str = "") -> Text:
    """A state with its mark and colour; an unknown (newer) one gets a question mark."""
    unknown = ("?" if any(mark for mark, _ in looks.values()) else "", "")
    mark, colour = looks.get(state, unknown)
    return Text(f"{mark} {state}{more}".lstrip(), colour)
