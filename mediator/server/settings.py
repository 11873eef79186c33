"""ServerSettings: a mediator's settings, and the places in its folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from fedpilot.fabric.spec.queue_file import QueueFile

from ..core.health import HealthSettings
from ..core.restarts import RestartSettings
from ..core.run_queue import RunQueueSettings
from ..core.storage.retention import Retention

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one mediator; in seconds and bytes unless noted."""

    folder: Path
    """Holds the authority, runs, blobs and, without `store`, the database."""
    host: str = "127.0.0.1"
    port: int = 0
    """For sites and users; 0 takes any free port."""
    join_port: int = 0
    """For sites that join with a token."""
    store: str = ""
    """URL of the database; empty for a SQLite file in the folder."""
    health: HealthSettings = field(default_factory=HealthSettings)
    restarts: RestartSettings = field(default_factory=RestartSettings)
    lease_s: float = 120.0
    """A site frees what it holds for a run this long after the last renewal."""
    hello_s: float = 10.0
    """How long a session may take to begin."""
    piece_bytes: int = MIB
    largest_blob_bytes: int = 16 << 30
    blobs_bytes: int = 64 << 30
    """All blobs together; unneeded ones make room for new ones."""
    messages_per_s: float = 200.0
    """Per site; a site that sends more is read more slowly."""
    messages_at_once: int = 2_000
    hellos_per_s: float = 1.0
    """Sessions that one site may begin after `hellos_at_once`; more wait."""
    hellos_at_once: int = 20
    site_calls: int = 64
    """Calls that one site may have open; more are refused, and may be retried."""
    user_calls: int = 256
    """Calls that one user may have open."""
    connections: int = 4_096
    """TCP connections at once, as far as RLIMIT_NOFILE permits; a site has two. More are closed."""
    strangers: int = 512
    """Connections without an admitted call; a quarter of `connections` at most."""
    connections_per_address: int = 1_024
    """Connections with admitted calls from one address, which sites behind a firewall share."""
    handshake_s: float = 10.0
    stranger_s: float = 30.0
    """How long a connection may stay without an admitted call."""
    idle_s: float = 600.0
    """How long a connection may stay without an open call; a site always has one."""
    held_back: int = 4_096
    """Messages to one peer that may wait; a peer that reads too slowly must reconnect."""
    ask_s: float = 600.0
    """The longest that a user's question to a run or a site may take."""
    attach_s: float = 600.0
    """How long a coordinator may be unattached before it is killed and started again."""
    alive_s: float = 120.0
    """How long an attached coordinator may be silent before that."""
    end_s: float = 20.0
    """How long a coordinator may take to end on request."""
    queue: RunQueueSettings = field(default_factory=RunQueueSettings)
    """The order of runs that wait, and how many of a user work at once."""
    projects: QueueFile | None = None
    """The projects that share the sites; None for a single one that may have everything."""
    user_code: bool = True
    """Whether runs may bring or name their own code, which their coordinators load."""
    retention: Retention = field(default_factory=Retention)
    """Which runs and records are kept; all by default."""
    coordinator: tuple[str, ...] = (sys.executable, "-m", "fedpilot.mediator.coordinator.process")
    """The command of a coordinator; the folder and the run's id are appended."""

    @property
    def authority(self) -> Path:
        """The folder of the authority, for `fedpilot certs`."""
        return self.folder / "certs"

    @property
    def admin(self) -> Path:
        """The first admin's credentials, to be moved to the admin's machine."""
        return self.folder / "admin"

    @property
    def blobs(self) -> Path:
        """The folder of blobs, shared with coordinators."""
        return self.folder / "blobs"

    @property
    def runs(self) -> Path:
        """A folder per run."""
        return self.folder / "runs"

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.folder.resolve() / 'mediator.sqlite'}"
