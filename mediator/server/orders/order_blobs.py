"""OrderBlobs: keeps the blobs of orders and answers while the orders are open.

An order may come with a blob. Its answer may bring another, kept from the site's offer on. A blob
that no order needs any more is removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...wire.blobs.blob import Blob
from ...wire.blobs.store import BlobStore
from ...wire.messages import OrderId, SiteName
from ...wire.references import Keeping


@dataclass(slots=True)
class _Kept:
    sent: str = ""
    """Digest of the blob that the order comes with."""
    brought: str = ""
    """Digest of the blob that its answer brings, once the site has offered it."""
    brought_bytes: int = 0
    moving_at: float | None = None
    """While a blob crosses the link: when it started, or last progressed."""


class OrderBlobs:
    """The blobs of all sites' open orders."""

    def __init__(self, store: BlobStore, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._keeping = Keeping(store, discard=True)
        self._kept: defaultdict[SiteName, defaultdict[OrderId, _Kept]] = defaultdict(
            lambda: defaultdict(_Kept)
        )

    def keep(self, site: SiteName, id: OrderId, digest: str) -> bool:
        """Keep the blob that an order comes with; return whether the store has it."""
        kept = self._kept[site][id]
        if not kept.sent and self._keeping.keep_again(digest):
            kept.sent = digest
        return bool(kept.sent)

    def expect(self, site: SiteName, id: OrderId, blob: Blob) -> None:
        """Keep the blob of an order's answer, present or not, in place of any other."""
        kept = self._kept[site][id]
        if kept.brought != blob.digest:
            self._store.pin(blob.digest)
            if kept.brought:
                self._store.unpin(kept.brought)
            kept.brought, kept.brought_bytes = blob.digest, blob.size

    def brought(self, site: SiteName, id: OrderId) -> str:
        """Digest of the blob that an order's answer brings; empty if none was offered."""
        return self._kept[site][id].brought

    def brought_bytes(self, site: SiteName, ids: Iterable[OrderId]) -> int:
        """Bytes that the answers to these orders bring."""
        return sum(self._kept[site][id].brought_bytes for id in ids)

    def bringing(self, site: SiteName, digest: str) -> OrderId | None:
        """An order of a site whose answer brings a blob."""
        found = (id for id, kept in self._kept[site].items() if kept.brought == digest)
        return next(found, None)

    def set_out(self, site: SiteName, id: OrderId) -> None:
        """Record that a blob of an order starts across the site's link, unless one is under way."""
        kept = self._kept[site][id]
        if kept.moving_at is None:
            kept.moving_at = self._clock()

    def got_further(self, site: SiteName, id: OrderId) -> float | None:
        """Record progress; return the seconds since the last; None if no blob moved."""
        kept, now = self._kept[site][id], self._clock()
        began, kept.moving_at = kept.moving_at, now
        return None if began is None else now - began

    def arrived(self, site: SiteName, id: OrderId) -> float | None:
        """Record the arrival; return the seconds since the last progress; None if no blob moved."""
        kept = self._kept[site][id]
        began, kept.moving_at = kept.moving_at, None
        return None if began is None else self._clock() - began

    def let_go(self, site: SiteName, id: OrderId) -> None:
        kept = self._kept[site].pop(id, _Kept())
        if kept.sent:
            self._keeping.let_go(kept.sent)
        if kept.brought:
            self._store.unpin(kept.brought)
            if self._keeping.keep_again(kept.brought):
                self._keeping.let_go(kept.brought)  # removes it, unless another order needs it
