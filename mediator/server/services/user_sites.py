"""UserSites: users' calls to list sites, change one, and run a command at one.

The guard has checked the caller and its role. Times in answers are epoch seconds.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...core.health import SiteEvent, SiteState
from ...core.rules.roles import Role
from ...errors import BadRequest, RequestRefused
from ...identity import Authority
from ...identity.tls import Peer
from ...proto import federation_pb2 as pb
from ...wire.messages import check_site
from ...wire.payloads import header_json, read
from ..orders.site_table import SiteEntry
from ..orders.sites import SiteRegistry
from ..orders.traffic_accounting import TrafficAccounting
from ..settings import ServerSettings
from ..store.database import Database

log = logging.getLogger(__name__)

LONGEST_COMMAND = 64 << 10
"""Characters of a command."""
_CHANGES = (SiteEvent.CORDON, SiteEvent.UNCORDON, SiteEvent.DRAIN, SiteEvent.REMOVE)
CHANGES: dict[str, SiteEvent] = {event.value: event for event in _CHANGES}


@dataclass(eq=False)
class UserSites:
    """Serves the methods of UserService about sites."""

    _settings: ServerSettings
    _clock: Callable[[], float]
    _sites: SiteRegistry
    _accounting: TrafficAccounting
    _authority: Authority
    _database: Database

    async def list_sites(self, request: pb.ListSitesRequest, peer: Peer) -> pb.ListSitesReply:
        """List all sites by name except removed ones, or show one with its data."""
        one = request.site
        told = [
            self._site_json(each, with_data=bool(one))
            for each in self._sites.table
            if not each.removed and one in ("", each.name)
        ]
        return pb.ListSitesReply(site_json=told)

    async def change_site(self, request: pb.ChangeSiteRequest, peer: Peer) -> pb.SiteReply:
        """Cordon, uncordon, drain or remove a site; with `timeout_s`, wait for the drain."""
        if request.change not in CHANGES:
            raise BadRequest(
                f"a site is changed by {', '.join(CHANGES)}; found {request.change[:80]!r}"
            )
        reason = f"{request.change} by {peer.name}"
        if request.change == "remove":
            await self._shut_out(self._sites.table.entry(request.site).name)
        entry = await self._sites.change(request.site, CHANGES[request.change], reason)
        if request.change == "drain" and request.timeout_s > 0:
            try:
                await self._sites.drained(entry.name, min(request.timeout_s, self._settings.ask_s))
            except TimeoutError:
                log.info("site %s is not empty after %g s", entry.name, request.timeout_s)
        return pb.SiteReply(site_json=self._site_json(entry))

    async def _shut_out(self, name: str) -> None:
        """Void a site's tokens and certificates: it needs a new token to join again."""
        now = time.time()
        await self._database.ask(self._database.store.void_tokens, name, now=now)
        for issued in self._authority.issued():
            if (issued.name, issued.role) == (name, Role.SITE) and issued.state(now) == "valid":
                self._authority.revoke(issued.serial, now=now)

    async def run_at_site(self, request: pb.RunAtSiteRequest, peer: Peer) -> pb.RunAtSiteReply:
        """Run a command at a site's agent, if the site's policy allows it."""
        arguments = list(request.arguments)
        if not arguments or sum(map(len, arguments)) > LONGEST_COMMAND:
            raise BadRequest(f"a command has 1 to {LONGEST_COMMAND} characters")
        header = {
            "arguments": arguments,
            "timeout_s": self._settings.ask_s,
            "user": peer.name,
            "role": peer.role,
        }
        answer = await self._sites.orders.command(
            check_site(request.site), "command", header_json(header), self._settings.ask_s
        )
        if answer.WhichOneof("result") != "done":
            raise RequestRefused(f"site {request.site}: {answer.failure.message}")
        found = read("command", answer.done.header_json, None).header
        try:
            code, out, err = int(found["exit_code"]), str(found["out"]), str(found["err"])
        except (KeyError, TypeError, ValueError) as error:
            raise RequestRefused(
                f"site {request.site} reported no outcome of the command"
            ) from error
        return pb.RunAtSiteReply(exit_code=code, out=out, err=err)

    def _site_json(self, entry: SiteEntry, *, with_data: bool = False) -> str:
        standing = entry.standing
        data = {"data": json.loads(entry.data_json or "{}")} if with_data else {}
        return json.dumps(
            {
                **data,
                "name": entry.name,
                "state": standing.state,
                "reason": standing.reason,
                "since": standing.since,
                "wish": standing.wish,
                "connected": entry.session is not None,
                "first_joined": entry.first_joined,
                "heard_at": standing.heard_at,
                "agent": entry.agent,
                "version": entry.version,
                "capacity": entry.capacity.to_json(),
                "runs": sorted(run for run in entry.holding if run),
                "orders": len(entry.orders.open),
                "bytes": self._accounting.total(entry.name),
                "link": entry.link.known(self._clock()).to_json(),
                "removed": standing.state is SiteState.LEFT,
            },
            ensure_ascii=False,  # no longer than the site's own text
        )
