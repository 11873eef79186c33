"""KeeperSettings: how the manager of a Ray cluster goes about it, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.places.admission import QueuePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """How a manager goes about it."""

    policy: QueuePolicy = QueuePolicy.FIFO
    """Who is first in a queue."""
    lease_s: float = 60.0
    """Seconds after which what was borrowed goes back, once nothing uses it."""
    grace_s: float = 3.0
    """Seconds that Ray may take to give what the ledger has as free. Then the virtual cluster waits
    again: other work has taken it."""
    settle_s: float = 1.5
    """Seconds until Ray's own view of a machine shows what has just been done there."""
    knock_s: float = 1.0
    """Seconds between two looks for machines whose Ray is gone, which Ray notices late."""
    audit_s: float = 2.0
    """Seconds between two looks at what runs beyond its virtual cluster."""
    turn_s: float = 0.25
    """Seconds between two looks at Ray."""
    machines_come: bool = False
    """Whether machines are added for what waits, as Ray's autoscaler does. Then a request that is
    too large for the machines of today waits; otherwise it is refused."""
    actors_without_resources: int | None = None
    """The most actors with no resources in one virtual cluster; without it any number.

    Each is a process that takes memory of its machine.
    """
