"""MediatedFederation: a federation over the sites of a mediator, which come and go while it runs.

It begins once enough sites are ready. Later ones are brought in, those that come back too; one that
drains is left in peace, one that is lost is given up even if nothing was asked of it just then.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from fedpilot.mediator import LinkedSite, Payload, ReservationRefused, Site
from fedpilot.mediator.coordinator_link import MediatorConnection
from fedpilot.mediator.core.health import works

from .config.schema import RunConfig
from .core.following import Move, chosen, moves
from .events import Observer
from .federation import Federation
from .user_code import UserCode, attached

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often sites are looked at where nothing was said of them."""
AGAIN_S = 10.0
"""After a site could not be brought in."""
ELSEWHERE = ("elsewhere",)


Declarations = Mapping[str, Mapping[str, Any]]
"""What sites disclose of their data sets, by site and data set."""


def declarations(
    config: RunConfig, connection: MediatorConnection, kept: Path
) -> Declarations | None:
    """What the sites of a run disclose, if its data lies there; the same whenever it is asked.

    It is written to `kept` the first time: who takes part in a run does not change when it goes on
    after an interruption. ReservationRefused if too few sites hold the data set.
    """
    if config.data.from_ is None:
        return None
    if kept.exists():
        found: Declarations = json.loads(kept.read_text())
        return found
    wanted, name = config.sites, config.data.dataset or ""
    least = wanted.min_sites or wanted.count or 1
    wait_s = config.participation.wait_for_sites_s
    ready = connection.wait_for_sites(least, wanted.required, wait_s)
    told = {str(each.name): json.loads(each.data_json or "{}") for each in ready}
    held = {site: sets for site, sets in told.items() if name in sets}
    missing = sorted({*wanted.required} - set(held))
    if len(held) < least or missing:
        lacks = {site: f"it declares no data set {name}" for site in sorted(set(told) - set(held))}
        needed = f"{least} sites that declare data set {name} are needed, found {len(held)}"
        raise ReservationRefused({ReservationRefused.NO_SITE: needed, **lacks})
    names = chosen(held, wanted.count, wanted.required)
    made = {site: {name: held[site][name]} for site in names}
    aside = kept.with_name(f".{kept.name}.tmp")
    aside.write_text(json.dumps(made))
    aside.replace(kept)
    return made


class MediatedFederation(Federation):
    """A Federation whose sites are a mediator's."""

    def __init__(
        self,
        config: RunConfig,
        connection: MediatorConnection,
        *,
        name: str,
        again: bool = False,
        observers: Sequence[Observer] = (),
        declared: Declarations | None = None,
        code: UserCode | None = None,
    ) -> None:
        """Load and check a configuration; `name` tells its gang from others. ConfigError.

        `again`: its gang stood before, so that it goes on with as few sites as a gang that lost
        some would. `declared` is what sites disclose of the data that lies there: those sites take
        part. `code` came with the run, and goes to every site; without it, what the config names
        is installed there.
        """
        super().__init__(
            config,
            observers=observers,
            sites=tuple(declared or ELSEWHERE),
            declared=declared,
            code=code,
        )
        self._sent = code
        self._paths = ()  # folders here are nothing to a site
        self._name = name
        self._again = again
        self._apart = True
        self._connection = connection
        self._counted = connection.drain_flows

    def _sites_apart(self, undo: ExitStack) -> Sequence[Site]:
        """The sites that are ready by now; ReservationRefused if they are too few for too long."""
        wanted = self.config.sites
        ready = self._connection.wait_for_sites(
            self._least_sites or wanted.count or 1,
            wanted.required,
            self.config.participation.wait_for_sites_s,
            among=self._sites if self.has_site_data else (),
            # Orders under way are found again only where all have the clients that they had.
            settled=self._again,
        )
        names = tuple(str(each.name) for each in ready)
        if not self.has_site_data:
            self._sites = names = chosen(names, wanted.count, wanted.required)
        if self._again:
            self._leave_others(names)
        stay = wanted.count is not None or self.has_site_data
        following = Following(self, self._connection, among=self._sites if stay else ())
        undo.callback(following.close)
        return [self.site(name) for name in names]

    def _leave_others(self, mine: Collection[str]) -> None:
        """Have sites give back what they may hold of the gang before, and which is not used now."""
        for name, each in self._connection.sites.items():
            if name not in mine and works(each.state):
                self.site(name).release()

    @property
    def _least_sites(self) -> int | None:
        least = super()._least_sites
        return least or 1 if self._again else least

    def spec_of(self, site: str) -> Payload:
        """What a site is told of this federation, with the code that came with the run."""
        spec = super().spec_of(site)
        return spec if self._sent is None else attached(spec, self._sent)

    def site(self, name: str) -> LinkedSite:
        """A site of the mediator, by the way that leads there."""
        return LinkedSite(name, self._connection.link(name))

    def site_of(self, index: int) -> str:
        """The site that a client belongs to; empty before the gang is reserved."""
        return "" if self._mediator is None else self._mediator.assignment.site_of(index)

    def follow(self, among: Sequence[str], busy: Mapping[str, float]) -> dict[str, Future[Any]]:
        """Do what has to be done about sites now; the futures of what takes time, by site."""
        mediator = self._mediator
        if mediator is None:
            return {}
        standings = self._connection.sites
        states = {str(name): each.state for name, each in standings.items()}
        begun: dict[str, Future[Any]] = {}
        left = {*busy, *mediator.distrusted}
        for site, move in moves(states, mediator.sites, among=among, busy=left).items():
            reason = next(each.reason for name, each in standings.items() if name == site)
            log.info("site %s: %s (%s)", site, move, reason)
            match move:
                case Move.GIVE_UP:
                    mediator.lose(site, reason, round_number=self.round)
                case Move.DRAIN:
                    begun[site] = mediator.drain(site, reason, round_number=self.round)
                case Move.BRING_IN:
                    mediator.add(self.site(site), self.spec_of(site))
                    begun[site] = mediator.readmit(site)
        return begun


class Following:
    """A thread that looks at the sites whenever one changes, and now and then."""

    def __init__(
        self,
        federation: MediatedFederation,
        connection: MediatorConnection,
        *,
        among: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._federation, self._connection = federation, connection
        self._among = among
        self._clock = clock
        self._news = threading.Event()
        self._closed = False
        self._busy: dict[str, float] = {}
        """Sites that something is done about, and until when they are left alone."""
        self._lock = threading.Lock()
        connection.on_site_change(lambda standing: self._news.set())
        self._thread = threading.Thread(target=self._run, name="sites", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; may be called twice."""
        self._closed = True
        self._news.set()
        self._thread.join(LOOK_S)

    def _run(self) -> None:
        while not self._closed:
            self._news.wait(LOOK_S)
            self._news.clear()
            if self._closed:
                return
            now = self._clock()
            with self._lock:
                self._busy = {site: until for site, until in self._busy.items() if until > now}
                busy = dict(self._busy)
            for site, future in self._federation.follow(self._among, busy).items():
                with self._lock:
                    self._busy[site] = float("inf")
                future.add_done_callback(partial(self._ended, site))

    def _ended(self, site: str, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            log.warning("site %s could not be brought in or drained: %s", site, error)
        with self._lock:
            if error is None:
                self._busy.pop(site, None)
            else:
                self._busy[site] = self._clock() + AGAIN_S
        self._news.set()  # it may have changed meanwhile
