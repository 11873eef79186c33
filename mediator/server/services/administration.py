"""Administration: calls about the mediator itself: tokens, revocations, audit log, events.

The guard has checked the caller and its role. Times in answers are epoch seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ...core.rules.results import event_without_results
from ...core.rules.roles import reads_results
from ...errors import BadRequest
from ...identity import Authority, Token, digest_of, new_secret
from ...identity.tls import Peer
from ...proto import federation_pb2 as pb
from ...wire.messages import check_site
from ..events import FEDERATION, EventLog
from ..orders.sites import SiteRegistry
from ..store.database import Database
from .paging import TOLD_TOGETHER_BYTES, how_many_fit

MOST_AUDIT = 10_000
BY_HAND = "account"
"""Replaces the role where `who` is an account of the mediator's machine."""
SHORTEST_TOKEN_S, LONGEST_TOKEN_S = 1.0, 30 * 86_400.0


@dataclass(eq=False)
class Administration:
    """Serves the methods of UserService about the federation as a whole."""

    _authority: Authority
    _database: Database
    _events: EventLog
    _sites: SiteRegistry
    _join_address: Callable[[], str]

    async def make_token(self, request: pb.MakeTokenRequest, peer: Peer) -> pb.MakeTokenReply:
        """Make a token with which a site may join once."""
        site = check_site(request.site)
        if not SHORTEST_TOKEN_S <= request.valid_s <= LONGEST_TOKEN_S:
            raise BadRequest(
                f"a token is good for {SHORTEST_TOKEN_S:g} to {LONGEST_TOKEN_S:g} s; "
                f"found {request.valid_s:g}"
            )
        secret, now = new_secret(), time.time()
        token = Token(
            site=site,
            address=self._join_address(),
            authority=self._authority.certificate,
            secret=secret,
        )
        expires_at, store = now + request.valid_s, self._database.store
        times = {"now": now, "expires_at": expires_at}
        await self._database.ask(
            store.add_token, digest_of(secret), site, made_by=peer.name, **times
        )
        return pb.MakeTokenReply(token=str(token), expires_at=expires_at)

    async def revoke_certificate(self, request: pb.RevokeRequest, peer: Peer) -> pb.RevokeReply:
        """Revoke certificates, and end the sessions that began with them."""
        serials = self._authority.revoke(request.which, now=time.time())
        self._sites.end_sessions(serials)
        return pb.RevokeReply(serials=serials)

    async def list_audit(self, request: pb.ListAuditRequest, peer: Peer) -> pb.ListAuditReply:
        """The last audited acts and those of `fedpilot certs`, as many as fit into one answer."""
        last = min(request.last or 100, MOST_AUDIT)
        entries = await self._database.ask(self._database.store.audit, last)
        by_hand = await asyncio.to_thread(self._authority.acts, last)
        told = last_acts(map(asdict, entries), map(asdict, by_hand), last)
        fit = how_many_fit(reversed(told), TOLD_TOGETHER_BYTES)
        return pb.ListAuditReply(entry_json=told[len(told) - fit :])

    async def follow_events(self, request: pb.FollowRequest, peer: Peer) -> AsyncIterator[pb.Event]:
        """Stream the federation's events, for as long as the caller follows."""
        async for record in self._events.follow(FEDERATION, request.after, lambda: request.follow):
            yield pb.Event(number=record.number, event_json=_event_json(record.event_json, peer))


def last_acts(
    asked: Iterable[dict[str, Any]], by_hand: Iterable[dict[str, Any]], last: int
) -> list[str]:
    """Merge both kinds of acts as JSON, latest last; manual acts get the role BY_HAND."""
    acts = [*asked, *({"role": BY_HAND, **each} for each in by_hand)]
    acts.sort(key=lambda act: float(act["at"]))
    return [json.dumps(act) for act in acts[max(0, len(acts) - last) :]]


def _event_json(event_json: str, peer: Peer) -> str:
    """Hide results from users; only admins read those of older mediators, without owners."""
    event = json.loads(event_json)
    owner, shared = str(event.get("owner", "")), event.get("shared") is True
    if reads_results(peer.name, peer.role, owner, shared=shared):
        return event_json
    told = event_without_results(event)
    return event_json if told == event else json.dumps(told)
