"""Startup: starts a workload at the sites that hold a gang, and at a site that comes back.

A site whose runner dies meanwhile starts another one, until that works or the site is given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from ..core.reservation import Answer, Promise
from ..errors import (
    AnswerUnreadable,
    MediatorError,
    ReservationRefused,
    RunnerDied,
    RunnersSpent,
    SiteUnreachable,
)
from ..workload import Notify, Payload
from .futures import done, failed, followed, then
from .membership import SiteMembership
from .site import GangRequest, Site
from .site_events import SiteEvents


class Startup:
    """What one federation starts at its sites."""

    def __init__(
        self, sites: Mapping[str, Site], membership: SiteMembership, events: SiteEvents
    ) -> None:
        self._sites = sites
        self._membership = membership
        self._events = events
        self._started: tuple[str, Mapping[str, Payload], Notify] | None = None
        self.request: GangRequest | None = None
        """What a site that comes back has to reserve; None while there is no gang."""

    def start(self, workload: str, specs: Mapping[str, Payload], notify: Notify) -> None:
        """Check the workload at every site, then start it at every site."""
        self._started = workload, specs, notify
        sites, membership = self._sites, self._membership
        there = [site for site in specs if site in membership.promises]
        died = self._each({site: sites[site].check(workload, specs[site]) for site in there})
        there = [site for site in there if site in membership.promises]
        telling = {site: self._events.notifier(site, notify) for site in there}
        died |= self._each({site: sites[site].start(telling[site]) for site in there})
        for site, error in died.items():
            if membership.too_few_to_begin():
                self._begin_again(site, error)

    def _each(self, answers: Mapping[str, Future[None]]) -> dict[str, RunnerDied]:
        """Wait for all answers; the sites whose runners died, and can be started again.

        Any other loss that leaves too few sites is raised.
        """
        died: dict[str, RunnerDied] = {}
        for site, answer in answers.items():
            try:
                answer.result()
            except (SiteUnreachable, AnswerUnreadable) as error:
                self._membership.give_up(site, error)
                if isinstance(error, RunnerDied) and self._membership.may_start(site):
                    died[site] = error
                elif self._membership.too_few_to_begin():
                    raise
        return died

    def _begin_again(self, site: str, error: SiteUnreachable) -> None:
        """Have a site whose runner died start another one, until that works or is given up."""
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

    def add(self, site: str, spec: Payload) -> None:
        if self._started is not None:
            workload, specs, notify = self._started
            self._started = workload, {**specs, site: spec}, notify

    def readmit(self, site: str) -> Future[Promise]:
        """Have a site that is not there reserve, check and start; it counts once that is done."""
        promised = self._membership.promises.get(site)
        if promised is not None:
            return done(lambda: promised)
        if (why := self._membership.excluded.get(site)) is not None:
            return failed(ReservationRefused({site: why}))
        if self.request is None or self._started is None:
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
            return then(there.start(self._events.notifier(site, notify)), lambda _: promise)

        def ended(started: Future[Promise]) -> None:
            error = started.exception()
            if error is None and self.request is not None:
                self._membership.restore(site, started.result())
                future.set_result(started.result())
            else:
                there.release()
                if isinstance(error, RunnersSpent):
                    self._membership.spend(site, error.reason)
                future.set_exception(error or MediatorError("the federation has ended meanwhile"))

        steps = followed(there.prepare(self.request), commit)
        followed(followed(steps, check), start).add_done_callback(ended)
        return future

    def end(self) -> None:
        """Start nothing any more."""
        self.request = self._started = None
