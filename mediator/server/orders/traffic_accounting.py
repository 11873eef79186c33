"""TrafficAccounting: counts bytes across sites' boundaries, for coordinators and the store.

Every byte is reported to its run's coordinator once and added to the store once. Bytes of no run,
such as heartbeats, are stored under an empty run id.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from ...core.links import LinkUse
from ...core.traffic import Direction, Flow, TrafficLedger
from ...proto import federation_pb2 as pb
from ...wire.messages import RunId
from ..store.database import Database

MESSAGE_BYTES = 36
"""The overhead of a message in bytes: gRPC 5, HTTP/2 9, TLS 22."""
NO_RUN = RunId("")
SESSION = "session"
"""The purpose of bytes of no run."""


class TrafficAccounting:
    """Ledgers by run."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._untold: defaultdict[RunId, TrafficLedger] = defaultdict(TrafficLedger)
        self._unwritten: defaultdict[RunId, TrafficLedger] = defaultdict(TrafficLedger)
        self._links: dict[RunId, dict[tuple[int, str], LinkUse]] = {}
        """How long bytes took, by round and site, since the last report."""
        self._totals: Counter[tuple[str, Direction]] = Counter()

    def total(self, site: str) -> dict[str, int]:
        """A site's bytes by direction since the mediator started."""
        return {str(each): self._totals[site, each] for each in Direction}

    def book(self, run: RunId, flow: Flow, nbytes: int) -> None:
        self._totals[flow.site, flow.direction] += nbytes
        self._unwritten[run].book(flow, nbytes)
        if run != NO_RUN:
            self._untold[run].book(flow, nbytes)

    def session(self, site: str, direction: Direction, nbytes: int) -> None:
        """Count a message of no run."""
        self.book(NO_RUN, Flow(0, site, direction, SESSION), nbytes + MESSAGE_BYTES)

    def took(self, run: RunId, use: LinkUse) -> None:
        """Count the seconds that bytes of a blob took to cross a site's link."""
        links, of = self._links.setdefault(run, {}), (use.round_number, use.site)
        links[of] = links[of] + use if of in links else use

    def tell(self, run: RunId) -> pb.ToCoordinator | None:
        """The counts not yet reported to a run's coordinator; None if there are none."""
        ledger, links = self._untold.pop(run, None), self._links.pop(run, {})
        if ledger is None and not links:
            return None
        flows = [
            pb.FlowBytes(
                round=flow.round_number,
                site=flow.site,
                direction=flow.direction,
                purpose=flow.purpose,
                bytes=nbytes,
            )
            for flow, nbytes in (ledger.rows() if ledger is not None else ())
        ]
        took = [
            pb.LinkSeconds(
                round=use.round_number, site=use.site, bytes=use.nbytes, seconds=use.seconds
            )
            for use in links.values()
        ]
        return pb.ToCoordinator(bytes=pb.Bytes(flows=flows, links=took))

    def forget(self, run: RunId) -> None:
        """Drop the unreported counts of a run that is over."""
        self._untold.pop(run, None)
        self._links.pop(run, None)

    def write(self, *, last: bool = False) -> None:
        """Add new counts to the store; while it is away, only if this is the `last` time."""
        if self._database.away and not last:
            return
        unwritten, self._unwritten = self._unwritten, defaultdict(TrafficLedger)
        for run, ledger in unwritten.items():
            self._database.write(self._database.store.add_traffic, run, ledger.rows())
