"""MediatorSites: the sites of a mediator, which come and go during a run.

A run begins once enough sites are ready. It brings in later and returning sites, drains a site that
drains, and gives up a lost one even without an order there. A run of a fixed number of sites
(`sites.count`) that lacks one takes any other ready site, unless its clients must stay where they
are: then it reports that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedpilot.mediator import (
    FederationMediator,
    GangRequest,
    LinkedSite,
    Payload,
    ReservationRefused,
    Site,
)
from fedpilot.mediator.coordinator.connection import MediatorConnection
from fedpilot.mediator.core.health import SiteState, works
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.wire.messages import SiteStanding, check_site

from ...config.schema import RunConfig
from ...config.telling import at_sites
from ...core.rounds.site_changes import SiteChange, chosen, moves, passed_over
from ...prepare.user_code.user_code import UserCode, attached
from ...prepare.user_code.user_sources import own_code
from ..run_folder.folder import replace_text
from ..sites.membership_watcher import MembershipWatcher
from ..sites.sources import Declarations, SiteSource, StartedRun

log = logging.getLogger(__name__)

ELSEWHERE = ("elsewhere",)
"""Placeholder until the sites are known."""


def declarations(
    config: RunConfig,
    connection: MediatorConnection,
    kept: Path,
    suggested: Collection[str] = (),
) -> Declarations | None:
    """What a run's sites disclose, if its data lies there; the same for every call.

    `kept` stores it for a resumed run. A new one prefers the `suggested` sites. Raises
    ReservationRefused if too few sites hold the data.
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
    names = chosen(held, wanted.count, wanted.required, suggested)
    made = {site: {name: held[site][name]} for site in names}
    replace_text(kept, json.dumps(made))
    return made


class MediatorSites(SiteSource):
    """The sites of a mediator, for one run."""

    apart = True
    brings_ray = False

    def __init__(
        self,
        config: RunConfig,
        connection: MediatorConnection,
        *,
        again: bool = False,
        declared: Declarations | None = None,
        code: UserCode | None = None,
        members: Path | None = None,
        suggested: Collection[str] = (),
    ) -> None:
        """The sites that the config asks for, as far as they are ready when opened.

        `again`: the run's gang was complete before, so it continues with as few sites as a gang
        that lost some. `declared` is what sites disclose of their data: those sites take part.
        `members` is a file with the current sites' names, for the next coordinator. A run that
        begins prefers the `suggested` sites. `code` came
        with the run and goes to sites if they run any of it; without it, it is installed there.
        """
        self._config = config
        self._connection = connection
        self._again = again
        self._declared = declared
        self._code = code
        self._members = members
        self._suggested = () if again else tuple(suggested)
        self.names = tuple(declared or ELSEWHERE)
        self.counted = connection.drain_flows
        self.least = (config.sites.min_sites or 1) if again else config.sites.min_sites

    def disclosed(self) -> Declarations:
        """What the sites disclose of the run's data set."""
        return self._declared or {}

    def begin(self) -> None:
        """Start nothing: the sites are there."""

    def close(self) -> None:
        """End nothing: the sites stay."""

    def open(
        self, request: GangRequest, store: int, among: Collection[str], undo: ExitStack
    ) -> Sequence[Site]:
        """The sites that are ready; raises ReservationRefused if they are too few for too long."""
        wanted = self._config.sites
        before = self._before() if self._again else ()
        stay = before if self._config.clients_keep_states else ()
        ready = self._connection.wait_for_sites(
            max(self.least or wanted.count or 1, len(stay)),
            (*wanted.required, *stay),
            self._config.participation.wait_for_sites_s,
            among=() if self._declared is None else among,
            # Orders under way are found again only if every site has the same clients as before.
            settled=self._again,
        )
        names = tuple(str(each.name) for each in ready)
        if self._declared is None:
            first = before or self._suggested
            self.names = names = stay or chosen(names, wanted.count, wanted.required, first)
            self._keep(names)
        if self._again:
            self._leave_others(names)
        return [self._site(name) for name in self.names]

    def _before(self) -> tuple[str, ...]:
        """The sites that took part when the previous coordinator ended."""
        try:
            return () if self._members is None else tuple(json.loads(self._members.read_text()))
        except (OSError, ValueError, TypeError):
            return ()  # an unreadable file loses only a preference

    def _keep(self, names: Collection[str]) -> None:
        if self._members is not None:
            try:
                replace_text(self._members, json.dumps(sorted(names)))
            except OSError as error:
                log.warning("the sites of this run are not written down: %s", error)

    def _leave_others(self, mine: Collection[str]) -> None:
        """Have sites outside the gang release what they may hold of an earlier one."""
        for name, each in self._connection.sites.items():
            if name not in mine and works(each.state):
                self._site(name).release()

    def _site(self, name: str) -> LinkedSite:
        def speed() -> LinkSpeed:
            standing = self._connection.sites.get(check_site(name))
            return LinkSpeed() if standing is None else standing.link

        return LinkedSite(name, self._connection.link(name), speed)

    def told(self, spec: Payload) -> Payload:
        """A site's spec of the federation, with the code that came with the run."""
        if self._code is None or not own_code(at_sites(self._config)):
            return spec
        return attached(spec, self._code)

    def follow(self, run: StartedRun, undo: ExitStack) -> None:
        """Bring in, drain and give up sites as they come, drain and go, until `undo`."""
        mediator, membership = run.mediator, run.mediator.membership
        round_number = run.round_number
        count, began = self._config.sites.count, self.names
        stays = self._why_all_stay(mediator)
        among = began if stays else ()
        coming: dict[str, Future[Any]] = {}
        told: set[str] = set()
        """Sites reported as not taken in."""

        def look(busy: Collection[str]) -> dict[str, Future[Any]]:
            standings = {str(name): each for name, each in self._connection.sites.items()}
            states = {name: each.state for name, each in standings.items()}
            begun: dict[str, Future[Any]] = {}
            there, left = membership.sites, {*busy, *membership.excluded}
            soon = [site for site, each in coming.items() if site not in there and not each.done()]
            room = None if count is None or stays else count - len(there) - len(soon)
            for site in passed_over(states, there, among):
                if site not in told:
                    told.add(site)
                    run.passed(site, stays)
            found = moves(states, there, among=among, busy=left, first=began, room=room)
            for site, move in found.items():
                reason = standings[site].reason
                log.info("site %s: %s (%s)", site, move, reason)
                match move:
                    case SiteChange.GIVE_UP:
                        membership.remove(site, reason, round_number=round_number())
                    case SiteChange.DRAIN:
                        begun[site] = mediator.orders.drain(
                            site, reason, round_number=round_number()
                        )
                    case SiteChange.BRING_IN:
                        mediator.add(self._site(site), run.spec_of(site))
                        begun[site] = coming[site] = mediator.readmit(site)
            kept = self._before()
            if set(needed := self._needed(mediator, kept)) != set(kept):
                self._keep(needed)
            return begun

        watcher = MembershipWatcher(look)
        undo.callback(watcher.close)

        def changed(standing: SiteStanding | None = None) -> None:
            membership.know_links(
                {str(name): each.link for name, each in self._connection.sites.items()}
            )
            # At once: the next message may be that another site is lost.
            membership.leave_alone(
                [
                    str(name)
                    for name, each in self._connection.sites.items()
                    if each.state is SiteState.CORDONED
                ]
            )
            watcher.wake()

        self._connection.on_link_use = run.link_used
        self._connection.on_site_change(changed)
        # Also for sites that are lost although their agents are up.
        undo.enter_context(mediator.events.heard_by(watcher.hear))
        changed()

    def _needed(self, mediator: FederationMediator, kept: Collection[str]) -> Collection[str]:
        """The sites with which the next coordinator continues; `kept` are those written down."""
        there = mediator.membership.sites
        if self._config.participation.replicate_every is None:
            return there if len(there) >= len(kept) else kept
        # The clients of a lost site may be at the holder of its replica by now.
        return [site for site, share in mediator.membership.assignment.shares.items() if share]

    def _why_all_stay(self, mediator: FederationMediator) -> str:
        """Why only the sites that a run began with may take part; empty if others may."""
        if self._declared is not None:
            return "the data of the run lies at the sites that it began with"
        if self._config.clients_keep_states:
            return "what its clients keep is at the sites that it began with"
        if self._config.sites.count is not None and not mediator.membership.replacement:
            return "its clients stay with the sites that they were given to"
        return ""
