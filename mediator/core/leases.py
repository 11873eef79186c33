"""Decides when a runner releases a promise, and when it ends.

* A promise that is not committed in time is released; the runner goes on.
* A runner whose lease is not renewed ends. A lease of 0 s lasts while a peer is connected.
* A runner without a connected peer for `orphan_s` ends.
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
    """The leases of a runner; times in seconds of one clock."""

    lease_s: float
    """How long the runner lives without a renewal; 0 for no such limit."""
    orphan_s: float
    """How long the runner lives without a connected peer."""
    renewed_at: float
    alone_since: float | None
    """None while a peer is connected."""
    promised_at: float | None = None
    """When the uncommitted promise was made."""
    promise_s: float = 0.0

    def renewed(self, now: float, lease_s: float) -> Leases:
        """Renew the lease for `lease_s` seconds."""
        return replace(self, renewed_at=now, lease_s=lease_s)

    def joined(self) -> Leases:
        """Record that a peer has connected."""
        return replace(self, alone_since=None)

    def left(self, now: float) -> Leases:
        """Record that the last peer has disconnected."""
        return replace(self, alone_since=now)

    def promised(self, now: float, promise_s: float | None) -> Leases:
        """Record a promise to commit within `promise_s`, or None for no uncommitted promise."""
        if promise_s is None:
            return replace(self, promised_at=None, promise_s=0.0)
        return replace(self, promised_at=now, promise_s=promise_s)

    def due(self, now: float) -> tuple[LeaseAct, str] | None:
        """The act that is due, and its reason."""
        if self.alone_since is not None and now >= self.alone_since + self.orphan_s:
            return LeaseAct.END, f"no peer was connected for {self.orphan_s:g} s"
        if self.lease_s and now >= self.renewed_at + self.lease_s:
            return LeaseAct.END, f"its lease of {self.lease_s:g} s was not renewed"
        if self.promised_at is not None and now >= self.promised_at + self.promise_s:
            return LeaseAct.RELEASE, f"its promise was not committed within {self.promise_s:g} s"
        return None
