"""Decides when a runner gives back a promise, or ends: what it holds is held under leases.

* A promise that is not committed in time is given back; the runner goes on.
* A runner whose lease nobody renews ends. A lease of 0 s lasts while somebody is connected.
* A runner that nobody is connected to for `orphan_s` ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class LeaseAct(StrEnum):
    """What is due."""

    RELEASE = "release"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases:
    """What a runner's life depends on; times in seconds of one clock."""

    lease_s: float
    """How long the runner lives without a renewal; 0 for no such limit."""
    orphan_s: float
    """How long it lives without anybody connected."""
    renewed_at: float
    alone_since: float | None
    """None while somebody is connected."""
    promised_at: float | None = None
    """When the promise was made that nobody has committed yet."""
    promise_s: float = 0.0

    def renewed(self, now: float, lease_s: float) -> Leases:
        """Somebody wants it to go on, for so long."""
        return replace(self, renewed_at=now, lease_s=lease_s)

    def joined(self) -> Leases:
        """Somebody has connected."""
        return replace(self, alone_since=None)

    def left(self, now: float) -> Leases:
        """Nobody is connected any more."""
        return replace(self, alone_since=now)

    def promised(self, now: float, promise_s: float | None) -> Leases:
        """A promise was made; None: there is none that waits for its commit."""
        if promise_s is None:
            return replace(self, promised_at=None, promise_s=0.0)
        return replace(self, promised_at=now, promise_s=promise_s)

    def due(self, now: float) -> tuple[LeaseAct, str] | None:
        """What has to be done now, and why."""
        if self.alone_since is not None and now >= self.alone_since + self.orphan_s:
            return LeaseAct.END, f"nobody was connected for {self.orphan_s:g} s"
        if self.lease_s and now >= self.renewed_at + self.lease_s:
            return LeaseAct.END, f"its lease of {self.lease_s:g} s was not renewed"
        if self.promised_at is not None and now >= self.promised_at + self.promise_s:
            return LeaseAct.RELEASE, f"its promise was not committed within {self.promise_s:g} s"
        return None
