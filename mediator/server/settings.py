"""ServerSettings: a mediator's settings, and the places in its folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from ..core.health import HealthSettings
from ..core.restarts import RestartSettings
from ..core.retention import Retention

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one mediator. Seconds and bytes, unless said otherwise."""

    folder: Path
    """Its state: the authority, runs, blobs and, unless `store` says otherwise, the database."""
    host: str = "127.0.0.1"
    port: int = 0
    """Of sites and users; 0 takes any that is free."""
    join_port: int = 0
    """Of sites that join with a token."""
    store: str = ""
    """URL of the database; empty for a SQLite file in the folder."""
    health: HealthSettings = field(default_factory=HealthSettings)
    restarts: RestartSettings = field(default_factory=RestartSettings)
    lease_s: float = 120.0
    """A site frees what it holds for a run so long after the last renewal."""
    hello_s: float = 10.0
    """How long a session may take to begin."""
    piece_bytes: int = MIB
    largest_blob_bytes: int = 16 << 30
    blobs_bytes: int = 64 << 30
    """Of all blobs together; unneeded ones are removed for new ones."""
    messages_per_s: float = 200.0
    """Of one site; one that sends more is read more slowly."""
    messages_at_once: int = 2_000
    hellos_per_s: float = 1.0
    """Sessions that one site may begin, after `hellos_at_once`; more of them wait."""
    hellos_at_once: int = 20
    site_calls: int = 64
    """Calls that one site may have open; more are refused, to be tried again."""
    user_calls: int = 256
    """Calls that one user may have open."""
    connections: int = 4_096
    """TCP connections of sites and users at once, as far as RLIMIT_NOFILE permits; a site has two.
    Further ones are closed as they come."""
    strangers: int = 512
    """Connections on which no call was admitted yet; a quarter of `connections` at most. The rest
    is kept for known peers."""
    connections_per_address: int = 1_024
    """Connections of one address on which calls were admitted. Sites behind one firewall share
    one."""
    handshake_s: float = 10.0
    """How long a TLS handshake may take."""
    stranger_s: float = 30.0
    """How long a connection may stay without an admitted call."""
    idle_s: float = 600.0
    """How long a connection may stay without an open call; a site always has one."""
    held_back: int = 4_096
    """Messages to one peer that may wait; a peer that reads too slowly has to reconnect."""
    ask_s: float = 600.0
    """The longest that a user's question to a run or a site may take."""
    attach_s: float = 600.0
    """How long a coordinator may be unattached before it is killed and started again."""
    alive_s: float = 120.0
    """How long an attached coordinator may send nothing before that."""
    end_s: float = 20.0
    """How long a coordinator may take to end when told to."""
    user_code: bool = True
    """Whether runs may bring or name code of their own, which their coordinators load."""
    retention: Retention = field(default_factory=Retention)
    """Which runs and records are kept; by default all."""
    coordinator: tuple[str, ...] = (sys.executable, "-m", "fedpilot.mediator.coordinator.process")
    """The command of a coordinator; the folder and the run's id follow."""

    @property
    def authority(self) -> Path:
        """The folder of the certificates, as `fedpilot certs` takes it."""
        return self.folder / "certs"

    @property
    def admin(self) -> Path:
        """The credentials of the first admin, to be moved to where they are used."""
        return self.folder / "admin"

    @property
    def blobs(self) -> Path:
        """The folder that coordinators share."""
        return self.folder / "blobs"

    @property
    def runs(self) -> Path:
        """A folder per run."""
        return self.folder / "runs"

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.folder.resolve() / 'mediator.sqlite'}"
