"""FederationMediator: reserves a gang at a federation's sites, runs its workload, releases both.

A returning site reserves, checks and starts before it counts. A site whose runner dies at the start
starts another, until that works or the site is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Self

from ..core.assignment import ChosenStrategy
from ..core.reservation import Answer, Promise, SiteQuorum
from ..core.traffic import Flow
from ..errors import (
    AnswerUnreadable,
    MediatorError,
    RaysUnusable,
    ReservationRefused,
    RunnerDied,
    RunnersSpent,
    SitesFull,
    SiteUnreachable,
)
from ..workload import Notify, Payload
from .futures import done, failed, followed, then
from .gang_reservation import reserve_gang
from .membership import SiteMembership
from .order_router import OrderRouter
from .site import GangRequest, Site
from .site_events import SiteEvents

RELEASE_S = 30.0
"""How long `close` waits for the sites; what they hold after that ends with its lease."""


class FederationMediator:
    """Spans the sites of one federation; owns what it reserved there until `close`."""

    def __init__(
        self,
        sites: Iterable[Site],
        *,
        assignment: ChosenStrategy = "capacity",
        replacement: bool = True,
        counted: Callable[[], list[tuple[Flow, int]]] | None = None,
    ) -> None:
        """`replacement`: other sites get a lost site's clients; otherwise the clients wait for it.

        `counted` returns the bytes on the wire since its last call; without it, tensors count.
        """
        self._sites = {site.name: site for site in sites}
        self._request: GangRequest | None = None
        """What a returning site must reserve; None without a gang."""
        self._started: tuple[str, Mapping[str, Payload], Notify] | None = None
        self.events = SiteEvents()
        self.membership = SiteMembership(
            self._sites, strategy=assignment, replacement=replacement, tell=self.events.tell
        )
        self.orders = OrderRouter(self._sites, self.membership, counted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reserve(
        self,
        request: GangRequest,
        *,
        min_sites: int | None = None,
        required: Collection[str] = (),
    ) -> Mapping[str, Promise]:
        """Reserve the gang on every site that promises, if at least `min_sites` do.

        As many sites must remain while the gang works, with the required ones. Without `min_sites`
        all must promise and one must remain. ReservationRefused, with nothing left reserved;
        SitesFull if a later attempt may succeed.
        """
        enough = len(self._sites) if min_sites is None else min_sites
        self.membership.require(
            SiteQuorum(to_begin=enough, to_go_on=min_sites or 1, required=frozenset(required))
        )
        try:
            outcome = reserve_gang(self._sites, request, min_sites=enough, required=required)
        except BaseException:
            self.close()
            raise
        if not outcome.granted:
            if outcome.full:
                raise SitesFull(outcome.refusals)
            refused = RaysUnusable if outcome.unreachable else ReservationRefused
            raise refused(outcome.refusals)
        self._request = request
        self.membership.form(outcome.promises)
        return outcome.promises

    def close(self) -> None:
        """Release all sites; an unreachable site's lease ends its part. May be called twice."""
        self._request = self._started = None
        self.membership.end()
        releasing: list[Future[None]] = []
        with ExitStack() as asking:
            for site in list(self._sites.values()):
                asking.callback(lambda site: releasing.append(site.release()), site)
        ended, _ = wait(releasing, timeout=RELEASE_S)
        for error in [each.exception() for each in ended]:
            if error is not None and not isinstance(error, SiteUnreachable):
                raise error

    # -- the workload -----------------------------------------------------------------------------

    def start(self, workload: str, specs: Mapping[str, Payload], notify: Notify) -> None:
        """Check the workload at every site, then start it; lost sites may be left out."""
        self._started = workload, specs, notify
        sites, membership = self._sites, self.membership
        there = [site for site in specs if site in membership.promises]
        died = self._each({site: sites[site].check(workload, specs[site]) for site in there})
        there = [site for site in there if site in membership.promises]
        telling = {site: self.events.notifier(site, notify) for site in there}
        died |= self._each({site: sites[site].start(telling[site]) for site in there})
        for site, error in died.items():
            if membership.too_few_to_begin():
                self._begin_again(site, error)

    def _each(self, answers: Mapping[str, Future[None]]) -> dict[str, RunnerDied]:
        """Wait for all answers; return restartable sites, and raise a loss that leaves too few."""
        died: dict[str, RunnerDied] = {}
        for site, answer in answers.items():
            try:
                answer.result()
            except (SiteUnreachable, AnswerUnreadable) as error:
                self.membership.give_up(site, error)
                if isinstance(error, RunnerDied) and self.membership.may_start(site):
                    died[site] = error
                elif self.membership.too_few_to_begin():
                    raise
        return died

    def _begin_again(self, site: str, error: SiteUnreachable) -> None:
        """Have a site restart its dead runner, until that works or the budget is spent."""
        while True:
            try:
                self.readmit(site).result()
                return
            except RunnersSpent:
                raise
            except RunnerDied as again:
                error = again
            except ReservationRefused:
                raise error from None

    def add(self, site: Site, spec: Payload) -> None:
        """Add a site, which `readmit` can then bring in."""
        self._sites[site.name] = site
        self.membership.know(site.name)
        if self._started is not None:
            workload, specs, notify = self._started
            self._started = workload, {**specs, site.name: spec}, notify

    def readmit(self, site: str) -> Future[Promise]:
        """Have an absent site reserve, check and start; it counts once that is done.

        A participating site stays unchanged. If the future fails, the site holds nothing.
        """
        promised = self.membership.promises.get(site)
        if promised is not None:
            return done(lambda: promised)
        if (why := self.membership.excluded.get(site)) is not None:
            return failed(ReservationRefused({site: why}))
        if self._request is None or self._started is None:
            raise RuntimeError("a site comes back to a federation that has been started")
        workload, specs, notify = self._started
        there = self._sites[site]
        future: Future[Promise] = Future()

        def commit(answer: Answer) -> Future[Promise]:
            if not isinstance(answer, Promise):
                reason = "no answer" if answer is None else answer.reason
                raise ReservationRefused({site: reason})
            return then(there.commit(), lambda _: answer)

        def check(promise: Promise) -> Future[Promise]:
            return then(there.check(workload, specs[site]), lambda _: promise)

        def start(promise: Promise) -> Future[Promise]:
            return then(there.start(self.events.notifier(site, notify)), lambda _: promise)

        def ended(started: Future[Promise]) -> None:
            error = started.exception()
            if error is None and self._request is not None:
                self.membership.restore(site, started.result())
                future.set_result(started.result())
            else:
                there.release()
                if isinstance(error, RunnersSpent):
                    self.membership.spend(site, error.reason)
                future.set_exception(error or MediatorError("the federation has ended meanwhile"))

        steps = followed(there.prepare(self._request), commit)
        followed(followed(steps, check), start).add_done_callback(ended)
        return future
