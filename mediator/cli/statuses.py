"""The mark and the colour of each state of sites, runs and certificates."""

from __future__ import annotations

from fedpilot.common.terminal.statuses import Looks

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
    "queued": ("", "cyan"),
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
