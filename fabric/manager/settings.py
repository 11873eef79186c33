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
    """Who is first in a queue."""
    lease_s: float = 60.0
    """Seconds after which what was borrowed goes back, once nothing uses it."""
    grace_s: float = 3.0
    """Seconds that Ray may take to give what should be free. After that somebody else had it, and
    the virtual cluster waits again."""
    settle_s: float = 1.5
    """Seconds until Ray's own view of a machine shows what has just been done there."""
    knock_s: float = 1.0
    """Seconds between two looks for machines whose Ray is gone, which Ray notices late."""
    audit_s: float = 2.0
    """Seconds between two looks at what runs beyond its virtual cluster."""
    turn_s: float = 0.25
    """Seconds between two looks at Ray."""
    machines_come: bool = False
    """Whether somebody adds machines for what waits, as Ray's autoscaler does. Then what is too
    large for the machines of today waits for others; otherwise it is refused."""
    actors_without_resources: int | None = None
    """The most actors with no resources in one virtual cluster; none are refused without it.

    They fit everywhere, and each is a process that takes memory of its machine all the same.
    """
