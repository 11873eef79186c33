"""KeeperSettings: the queue policy, timeouts and limits of a Ray cluster's manager."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.pickle_names import reads_older, travels
from ..core.places.request import QueuePolicy


@travels
@reads_older
@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """The settings of a manager."""

    policy: QueuePolicy = QueuePolicy.FIFO
    """The order of requests in a queue."""
    lease_s: float = 60.0
    """Seconds until a loan is due; it is returned when it is also unused."""
    grace_s: float = 3.0
    """Seconds that Ray may take to give what the ledger has free; then the cluster waits again."""
    settle_s: float = 1.5
    """Seconds until Ray's own view of a machine shows the latest changes there."""
    knock_s: float = 1.0
    """Seconds between two checks for machines without Ray, which Ray itself notices late."""
    audit_s: float = 2.0
    """Seconds between two audits of work outside its virtual cluster."""
    turn_s: float = 0.25
    """Seconds between two looks at Ray."""
    machines_come: bool = False
    """Whether machines are added for waiting work: then what is too large today is not refused."""
    actors_without_resources: int | None = None
    """The most actors without resources in one virtual cluster; each takes memory."""
    plan_inline: int = 2000
    """Up to so many machines and virtual clusters a plan is made at once; larger ones take longer,
    and are made in a thread while the manager answers."""
