"""A site agent's settings. Times are in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.restarts import RestartSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent's settings. The mediator's Welcome adds its own."""

    welcome_s: float = 15.0
    """How long the first answer in a session may take."""
    silent_heartbeats: float = 5.0
    """A session ends after this many heartbeats of silence,"""
    silent_s: float = 8.0
    """but not before this time."""
    first_pause_s: float = 0.2
    """Before the second attempt to connect; doubles up to `longest_pause_s`."""
    longest_pause_s: float = 10.0
    holding_pause_s: float = 2.0
    """The longest pause while the site holds runs."""

    watch_s: float = 2.0
    """How often the Ray cluster and the disk are checked."""
    health_s: float = 5.0
    """How long its head may take to answer."""
    first_look_s: float = 15.0
    """How long the first session waits for a usable Ray cluster."""
    looks: int = 2
    """Failed looks in a row after which the cluster is in trouble."""
    probe_silent_s: float = 20.0
    """A probe that is silent for this long is restarted."""

    orphan_s: float = 600.0
    """How long runners live without an agent, within their leases."""
    lease_s: float = 60.0
    """The lease of runners until a mediator sets another."""
    lapse_grace_s: float = 10.0
    """A runner that lives this long after its lease is killed."""
    runner_start_s: float = 60.0
    runner_end_s: float = 20.0
    """How long a runner may take to release everything before it is killed."""
    restarts: RestartSettings = field(default_factory=RestartSettings)
    """How often a run's runner is restarted after a death."""

    blob_bytes: int = 64 << 30
    """Room for blobs in the home folder."""
    command_s: float = 60.0
    """The longest that a mediator's command may run."""
    command_bytes: int = 1 << 20
    """The most that is kept of each of its outputs."""
    most_commands: int = 8
    """Commands that run at once; others wait."""
    most_runs: int = 100
    """Runs with a part here at once: each is a Python process."""
    survey_s: float = 600.0
    """How long reading the declared data sets may take."""
    keep_s: float = 7 * 86_400.0
    """How long an ended run's files are kept for a resume."""
    expiry_warning_s: float = 14 * 86_400.0
    """How long before a certificate's end every failed renewal is reported."""


def pause_s(settings: AgentSettings, failures: int, *, holding: bool, chance: float) -> float:
    """How long to wait after `failures` in a row; `chance` in [0, 1) spreads sites out."""
    longest = settings.holding_pause_s if holding else settings.longest_pause_s
    doubled = settings.first_pause_s * 2.0 ** min(failures - 1, 30)
    return min(longest, doubled) * (0.5 + 0.5 * chance)
