"""FederationMediator: connects the sites of one federation and owns what is reserved there.

Sites may be lost and come back while it works. What a lost site was doing is up to whoever waits
for that. A site that came back is reserved, checked and started anew before it counts again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from ..core.assignment import Assignment, Share
from ..core.reservation import Promise, SiteQuorum
from ..core.traffic import Flow
from ..errors import AnswerUnreadable, RaysUnusable, ReservationRefused, SiteUnreachable
from ..workload import Notify, Payload
from .gang_reservation import reserve_gang
from .membership import Change, SiteMembership
from .order_router import OrderRouter, ProblemOf, no_problem
from .site import GangRequest, Site
from .site_events import Hear, SiteEvents
from .startup import Startup

RELEASE_S = 30.0
"""How long `close` waits for the sites; what they still hold then ends with its lease."""


class FederationMediator:
    """Spans the sites of one federation; owns what it reserved on them until `close`."""

    def __init__(
        self,
        sites: Iterable[Site],
        *,
        assignment: str = "capacity",
        replacement: bool = True,
        counted: Callable[[], list[tuple[Flow, int]]] | None = None,
    ) -> None:
        """`replacement`: a lost site's clients belong to others; otherwise they wait for it.

        `counted` gives the bytes since its last call where somebody counts them on the wire; left
        out, the bytes of the tensors are counted here.
        """
        self._sites = {site.name: site for site in sites}
        self._events = SiteEvents()
        self._membership = SiteMembership(
            self._sites, strategy=assignment, replacement=replacement, tell=self._events.tell
        )
        self._startup = Startup(self._sites, self._membership, self._events)
        self._orders = OrderRouter(self._sites, self._membership, counted)

    # -- the gang ---------------------------------------------------------------------------------

    def reserve(
        self,
        request: GangRequest,
        *,
        min_sites: int | None = None,
        required: Collection[str] = (),
    ) -> Mapping[str, Promise]:
        """Reserve the gang on every site or, once `min_sites` have promised, on those.

        As many have to remain while it works, and the required ones; where `min_sites` is left
        out, all have to promise and one has to remain. Raises ReservationRefused, with nothing
        left reserved anywhere.
        """
        enough = len(self._sites) if min_sites is None else min_sites
        self._membership.require(
            SiteQuorum(to_begin=enough, to_go_on=min_sites or 1, required=frozenset(required))
        )
        try:
            outcome = reserve_gang(self._sites, request, min_sites=enough, required=required)
        except BaseException:
            self.close()
            raise
        if not outcome.granted:
            refused = RaysUnusable if outcome.unreachable else ReservationRefused
            raise refused(outcome.refusals)
        self._startup.request = request
        self._membership.form(outcome.promises)
        return outcome.promises

    def start(self, workload: str, specs: Mapping[str, Payload], notify: Notify) -> None:
        """Check the workload at every site, then start it at every site.

        A site that is lost meanwhile is done without if enough remain.
        """
        self._startup.start(workload, specs, notify)

    def close(self) -> None:
        """Release everything at every site; may be called twice.

        What a site that is out of reach still holds ends with its lease.
        """
        self._startup.end()
        self._membership.end()
        releasing: list[Future[None]] = []
        with ExitStack() as asking:
            for site in list(self._sites.values()):
                asking.callback(lambda site: releasing.append(site.release()), site)
        ended, _ = wait(releasing, timeout=RELEASE_S)
        for error in [each.exception() for each in ended]:
            if error is not None and not isinstance(error, SiteUnreachable):
                raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- sites ------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it has ended, and takes no order any more."""
        return self._membership.closed

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that hold a part of the gang; before there is one, all."""
        return self._membership.sites

    @property
    def promises(self) -> Mapping[str, Promise]:
        """What each site holds."""
        return self._membership.promises

    @property
    def distrusted(self) -> Mapping[str, str]:
        """The sites whose answers cannot be believed, and why."""
        return self._membership.distrusted

    @property
    def excluded(self) -> Mapping[str, str]:
        """The sites that take no part any more in this run, and why."""
        return self._membership.excluded

    def lacking(self) -> str | None:
        """What keeps a gang from working, in words: too few sites, or a required one."""
        return self._membership.lacking()

    def hopeless(self) -> bool:
        """Whether no site that may return could make up a gang."""
        return self._membership.hopeless()

    def why_gone(self, site: str) -> str:
        """Why a site takes no part; empty if it does, or never did."""
        return self._membership.why_gone(site)

    def lose(self, site: str, reason: str, *, round_number: int = 0) -> None:
        """Go on without a site; does nothing if that is so already.

        Its clients that may move belong to others from `round_number` on. What it is at work on
        is left to whoever waits for that.
        """
        self._membership.remove(site, reason, round_number)

    def distrust(self, site: str, reason: str, *, round_number: int = 0) -> None:
        """Go on without a site for good: what it answers cannot be believed."""
        self._membership.distrust(site, reason, round_number)

    def give_up(
        self, site: str, error: SiteUnreachable | AnswerUnreadable, *, round_number: int = 0
    ) -> None:
        """Go on without a site that failed so: for good where it cannot be believed, or where its
        processes died too often.
        """
        self._membership.give_up(site, error, round_number)

    def drain(self, site: str, reason: str, *, round_number: int = 0) -> Future[None]:
        """Have a site finish what it is at work on, and no more; the end of its release."""
        return self._orders.drain(site, reason, round_number)

    def add(self, site: Site, spec: Payload) -> None:
        """Know one more site, which `readmit` can then bring in."""
        self._sites[site.name] = site
        self._membership.know(site.name)
        self._startup.add(site.name, spec)

    def readmit(self, site: str) -> Future[Promise]:
        """Have a site that is not there reserve, check and start; it counts once that is done.

        Asked of one that is there, it changes nothing. Fails with why it cannot be, and then the
        site holds nothing.
        """
        return self._startup.readmit(site)

    def returned(self, site: str, promise: Promise) -> None:
        """A site holds its part of the gang again, and its workload has been started there."""
        self._membership.restore(site, promise)

    def leave_alone(self, sites: Collection[str]) -> None:
        """Have these sites, and no others, keep what they have and get nothing new."""
        self._membership.leave_alone(sites)

    def drain_changes(self) -> list[Change]:
        """The sites that went or came back since the last time, in that order."""
        return self._membership.drain_changes()

    def heard_by(self, hear: Hear) -> AbstractContextManager[None]:
        """Tell somebody what happens at sites, from whichever thread it happens in."""
        return self._events.heard_by(hear)

    # -- clients ----------------------------------------------------------------------------------

    def assign(
        self, population: int, pinned: Mapping[str, Sequence[range]] | None = None
    ) -> Assignment:
        """Give every client of the population its site; `pinned` ones to where their data is."""
        return self._membership.assign(population, pinned)

    @property
    def assignment(self) -> Assignment:
        """Every client's site; `assign` comes first."""
        return self._membership.assignment

    @property
    def replaces(self) -> bool:
        """Whether a lost site's clients that may move belong to others."""
        return self._membership.replacement

    def rebalance(self, at_most: float, *, round_number: int = 0) -> None:
        """Give sites that came back a part of what they lack: at most that of all who may move."""
        self._membership.rebalance(at_most, round_number)

    def share_out(self, share: Share, *, without: Collection[str] = ()) -> dict[str, Share]:
        """Deal clients out to the sites that are there, in proportion to their vnodes.

        Nothing is dealt out where all of those are left alone or among `without`.
        """
        return self._membership.share_out(share, without)

    # -- orders -----------------------------------------------------------------------------------

    def deliver(
        self,
        site: str,
        order: Payload,
        *,
        round_number: int = 0,
        purpose: str,
        key: str | None = None,
    ) -> Future[Payload]:
        """Send an order to a site; the future of its answer. Both are booked as traffic.

        Orders with the same `key` are one order, whoever sends it again; without one it is new.
        A site that is lost meanwhile gets none: the future fails with SiteLost. One that drains
        does while it is at work, and is released after that.
        """
        return self._orders.deliver(
            site, order, round_number=round_number, purpose=purpose, key=key
        )

    def deliver_to_client(
        self,
        index: int,
        order: Payload,
        *,
        round_number: int = 0,
        purpose: str,
        problem_of: ProblemOf = no_problem,
    ) -> Future[Payload]:
        """Send an order to the site that a client belongs to.

        If that site is lost and the client may move, the order goes to its next site. So it does
        where `problem_of` says what is wrong with an answer: that site is not believed any more.
        """
        return self._orders.deliver_to_client(
            index, order, round_number=round_number, purpose=purpose, problem_of=problem_of
        )

    @property
    def counts_on_the_wire(self) -> bool:
        """Whether bytes are counted on the wire, headers and all, and not by their tensors."""
        return self._orders.counts_on_the_wire

    def drain_traffic(self) -> list[tuple[Flow, int]]:
        """Bytes to and from the sites since the last time, by flow, sorted."""
        return self._orders.drain_traffic()
