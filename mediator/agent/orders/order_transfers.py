"""OrderTransfers: downloads orders' blobs and uploads answers' blobs, within the site's policy.

An order's blob arrives before its runner gets the order, and an answer's blob is uploaded before
the answer is sent. Transfers continue across sessions. A blob stays until the mediator has taken
the answer, and longer while its run needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio

from ...core.rules.policy import Policy
from ...core.rules.policy_decision import Refused, enforce
from ...core.traffic import Direction
from ...errors import SiteLost
from ...wire.blobs.blob import Blob
from ...wire.blobs.store import BlobStore
from ...wire.messages import OrderId, RunId, SiteName
from ...wire.transfer import BlobClient, TransferFailed, TransferRefused
from .traffic import SiteTraffic

log = logging.getLogger(__name__)

REFUSED_S = 60.0
"""How long to retry a refused download: a restarted mediator must wait for its coordinator."""
AGAIN_S = 2.0
REFUSALS = 5
"""Uploads that may be refused because of the blob itself."""
FOR_WHAT_IT_IS = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT})
KEPT = 2
"""Models of a run to keep between its orders."""


class RunBlobs:
    """Decides which models no run needs; each run's last ones stay, for its next round."""

    def __init__(self) -> None:
        self._used: dict[RunId, list[str]] = {}

    def used(self, run: RunId, digest: str) -> tuple[str, ...]:
        """Record that an order used a model; return the digests that may be removed."""
        digests = [each for each in self._used.get(run, ()) if each != digest]
        self._used[run] = [*digests, digest][-KEPT:]
        return self._unused([*digests, digest][:-KEPT])

    def ended(self, run: RunId) -> tuple[str, ...]:
        """Forget a run; return the digests that may be removed."""
        return self._unused(self._used.pop(run, []))

    def _unused(self, digests: list[str]) -> tuple[str, ...]:
        needed = {digest for each in self._used.values() for digest in each}
        return tuple(digest for digest in digests if digest not in needed)


@dataclass(slots=True)
class _Kept:
    pins: list[str] = field(default_factory=list)
    brought: str = ""
    """Digest of the answer's blob, from its booking until the answer is taken."""


class OrderTransfers:
    """The blobs of all open orders of a site; used within one event loop."""

    def __init__(
        self,
        site: SiteName,
        store: BlobStore,
        blobs: BlobClient,
        traffic: SiteTraffic,
        *,
        policy: Callable[[], Policy],
        wall_clock: Callable[[], float],
    ) -> None:
        self._site, self._store, self._blobs = site, store, blobs
        self._traffic, self._policy, self._wall_clock = traffic, policy, wall_clock
        self._run_blobs = RunBlobs()
        self._kept: defaultdict[OrderId, _Kept] = defaultdict(_Kept)
        self.session = asyncio.Event()
        """Set during a session, since answers are uploaded only then."""

    def begin_work(self, id: OrderId, round_number: int) -> None:
        """Remember under which round to book an order's bytes."""
        self._traffic.take(self._policy(), id, round_number)

    def round_of(self, id: OrderId) -> int:
        """The round under which an earlier agent booked an order; 0 if none did."""
        return self._traffic.round_of(id)

    async def fetch(self, id: OrderId, blob: Blob | None, round_number: int) -> None:
        """Download an order's blob if it is missing. PolicyRefused, SiteLost."""
        if blob is None:
            return
        self._pin(id, blob.digest)
        if self._store.has(blob):
            return
        self._charge(id, Direction.TO_SITE, blob, round_number)
        try:
            await self._download(blob)
        finally:
            self._traffic.end(Direction.TO_SITE, blob.digest)

    async def _download(self, blob: Blob) -> None:
        until = asyncio.get_running_loop().time() + REFUSED_S
        while True:
            try:
                await self._blobs.download(blob)
                return
            except TransferFailed as error:
                raise SiteLost(self._site, str(error)) from error
            except TransferRefused as error:
                if asyncio.get_running_loop().time() > until:
                    raise SiteLost(self._site, str(error)) from error
                await asyncio.sleep(AGAIN_S)

    async def bring(self, id: OrderId, blob: Blob, round_number: int) -> None:
        """Upload an answer's blob. PolicyRefused, TransferRefused."""
        self._pin(id, blob.digest)
        self._charge(id, Direction.FROM_SITE, blob, round_number)
        self._kept[id].brought = blob.digest
        await self.bring_again(id, blob)

    async def bring_again(self, id: OrderId, blob: Blob) -> None:
        """Upload until the mediator confirms, over broken links; fail after REFUSALS refusals."""
        refused = 0
        while refused < REFUSALS:
            await self.session.wait()
            try:
                await self._blobs.upload(blob, run=id.run, key=id.key)
                return
            except (TransferFailed, TransferRefused) as error:
                # AnswerTaken ends this task; otherwise the next session needs the blob.
                log.info("the answer of %s is uploaded again later: %s", id.key, error)
                last, cause = error, error.__cause__
                if isinstance(cause, grpc.aio.AioRpcError) and cause.code() in FOR_WHAT_IT_IS:
                    refused += 1
            await asyncio.sleep(AGAIN_S)
        raise last

    def crossed(self, direction: Direction, digest: str, nbytes: int) -> None:
        """Count bytes of a blob that crossed the link; PolicyRefused above the policy's cap."""
        now = self._wall_clock()
        enforce(self._site, self._traffic.cross(self._policy, direction, digest, nbytes, now=now))

    def taken(self, id: OrderId, *, ends_run: bool) -> None:
        """Finish an order: remove the blobs that no other order or run needs."""
        kept = self._let_go(id)
        unneeded = [kept.brought] if kept.brought else []
        for digest in kept.pins:
            if digest != kept.brought:
                unneeded += self._run_blobs.used(id.run, digest)
        if ends_run:
            unneeded += self._run_blobs.ended(id.run)
        for digest in unneeded:
            self._store.remove(digest)
        self._traffic.done(id)
        if kept.brought:
            self._traffic.end(Direction.FROM_SITE, kept.brought)

    def close(self) -> None:
        """Unpin all blobs; their files stay."""
        for id in list(self._kept):
            self._let_go(id)

    def _let_go(self, id: OrderId) -> _Kept:
        kept = self._kept.pop(id, _Kept())
        for digest in kept.pins:
            self._store.unpin(digest)
        return kept

    def _pin(self, id: OrderId, digest: str) -> None:
        self._store.pin(digest)
        self._kept[id].pins.append(digest)

    def _charge(self, id: OrderId, direction: Direction, blob: Blob, round_number: int) -> None:
        refused: Refused | None = self._traffic.begin(
            self._policy(),
            direction,
            id.run,
            blob,
            round_number=round_number,
            now=self._wall_clock(),
        )
        enforce(self._site, refused)
