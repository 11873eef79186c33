"""KeeperSettings: how the manager of a Ray cluster goes about it, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.places.request import QueuePolicy
from ..pickle_names import travels


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """How a manager goes about it."""

    policy: QueuePolicy = QueuePolicy.FIFO
    """Which request is first in a queue."""
    lease_s: float = 60.0
    """Seconds after which what was borrowed goes back, once nothing uses it."""
    grace_s: float = 3.0
    """Seconds that Ray may take to give what the ledger has free; then the cluster waits again."""
    settle_s: float = 1.5
    """Seconds until Ray's own view of a machine shows what has just been done there."""
    knock_s: float = 1.0
    """Seconds between two checks for machines without Ray, which Ray itself notices late."""
    audit_s: float = 2.0
    """Seconds between two looks at what runs beyond its virtual cluster."""
    turn_s: float = 0.25
    """Seconds between two looks at Ray."""
    machines_come: bool = False
    """Whether machines are added for what waits: what is too large today is then not refused."""
    actors_without_resources: int | None = None
    """The most actors with no resources, each of which takes memory, in one virtual cluster."""
