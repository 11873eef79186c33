"""The mark and the colour of each state of virtual clusters, jobs and queues."""

from __future__ import annotations

from fedpilot.common.terminal.statuses import Looks

from ...core.records import ACTIVE, ENDED, RECOVERING, STARTING, WAITING

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
QUEUES: Looks = {
    "in-quota": ("●", "green"),
    "over-quota": ("◐", "yellow"),
    "over-fairshare": ("▲", "red"),
}
