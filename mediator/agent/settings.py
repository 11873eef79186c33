"""How patient a site's agent is. Times are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.restarts import RestartSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent's settings. The mediator's Welcome adds its own."""

    welcome_s: float = 15.0
    """How long the first answer in a session may take."""
    silent_heartbeats: float = 5.0
    """A session that is silent for so many heartbeats is ended."""
    silent_s: float = 8.0
    """And never earlier than that."""
    first_pause_s: float = 0.2
    """Before the second attempt to connect; doubles up to the longest."""
    longest_pause_s: float = 10.0
    holding_pause_s: float = 2.0
    """The longest pause while the site holds runs, which wait for it."""

    watch_s: float = 2.0
    """How often the Ray cluster is looked at."""
    health_s: float = 5.0
    """How long its head may take to answer."""
    first_look_s: float = 15.0
    """How long the first session waits for a Ray cluster that works."""
    looks: int = 2
    """Failed looks in a row after which the cluster is in trouble."""
    probe_silent_s: float = 20.0
    """A probe that is silent for so long is restarted."""

    orphan_s: float = 600.0
    """How long runners go on without an agent, while their leases last."""
    lease_s: float = 60.0
    """The lease of runners until a mediator sets another."""
    lapse_grace_s: float = 10.0
    """A runner that still lives so long after its lease has lapsed is killed."""
    runner_start_s: float = 60.0
    runner_end_s: float = 20.0
    """How long a runner may take to give everything back before it is killed."""
    restarts: RestartSettings = field(default_factory=RestartSettings)
    """How often a run's runner is restarted after it died."""

    blob_bytes: int = 64 << 30
    """Room for blobs in the home folder."""
    command_s: float = 60.0
    """The longest that a command for the mediator may run."""
    command_bytes: int = 1 << 20
    """Of each of its outputs, at most."""
    most_commands: int = 8
    """Commands that run at once; others wait."""
    most_runs: int = 100
    """Runs that have a part here at once: each is a process, and Python takes memory."""
    survey_s: float = 600.0
    """How long reading the declared data sets may take."""
    keep_s: float = 7 * 86_400.0
    """How long the files of an ended run are kept, so that it can be resumed."""
    expiry_warning_s: float = 14 * 86_400.0
    """So long before a certificate's end, every failed renewal is reported."""


def pause_s(settings: AgentSettings, failures: int, *, holding: bool, chance: float) -> float:
    """How long to wait after so many failures in a row; `chance` in [0, 1) spreads sites out."""
    longest = settings.holding_pause_s if holding else settings.longest_pause_s
    doubled = settings.first_pause_s * 2.0 ** min(failures - 1, 30)
    return min(longest, doubled) * (0.5 + 0.5 * chance)
