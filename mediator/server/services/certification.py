"""Certification: issues a site's first certificate for a token, and each next for the previous one.

The port for joining requires no client certificate. A token that is older than the revocation of a
certificate of its site is refused: the revocation was meant for its holder too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.rules.roles import Act, Role
from ...errors import MediatorError
from ...identity import Authority, digest_of
from ...identity.certificates import identity_of, key_of_request, read_certificate
from ...identity.tls import Peer
from ...proto import federation_pb2 as pb
from ...wire.messages import check_protocol, check_site, parsed
from ..connections.authorization import refuse
from ..events import EventLog
from ..store import AuditEntry
from ..store.database import Database

log = logging.getLogger(__name__)

LARGEST_REQUEST = 64 << 10
"""Bytes of any message to the port for joining."""
LONGEST_TOKEN = 4_096


@dataclass(eq=False)
class Certification:
    """Serves `Join` and `Renew`."""

    _authority: Authority
    _database: Database
    _events: EventLog
    _admitted: Callable[[str], None] = lambda peer: None
    """Called with the address from which a site has joined."""

    async def join(self, data: bytes, context: Any) -> pb.JoinReply | None:
        """Issue a site's first certificate; a well-formed request uses up the token."""
        try:
            reply = await self._join(parsed(pb.JoinRequest, data))
            self._admitted(context.peer())
            return reply
        except MediatorError as error:
            await refuse(context, "join", error, None)

    async def _join(self, request: pb.JoinRequest) -> pb.JoinReply:
        check_protocol(request.protocol, here="this mediator", there="the site that joins")
        site = check_site(request.site)
        key_of_request(request.certificate_request)
        digest, now = digest_of(request.token[:LONGEST_TOKEN]), time.time()
        revoked_at = self._authority.last_revoked_at(site, Role.SITE, now)
        await self._database.ask(
            self._database.store.use_token, digest, site, now=now, made_after=revoked_at
        )
        certificate = self._authority.sign(request.certificate_request, site, Role.SITE, now=now)
        log.info("site %s has got its certificate", site)
        self._events.say("site_certified", site=site)
        return pb.JoinReply(certificate=certificate, authority=self._authority.certificate)

    async def renew(self, request: pb.RenewRequest, peer: Peer) -> pb.RenewReply:
        """Issue a certificate like the caller's, which stays valid until it expires.

        RenewalRefused; IdentityError for a malformed certificate request.
        """
        check_protocol(request.protocol, here="this mediator", there=f"site {peer.name}")
        now = time.time()
        certificate = self._authority.renew(peer.serial, request.certificate_request, now=now)
        made = identity_of(read_certificate(certificate, "what was just signed"))
        entry = AuditEntry(
            at=now,
            who=peer.name,
            role=peer.role,
            act=Act.RENEW,
            what=f"serial={made.serial}, before={peer.serial}",
            outcome="done",
        )
        await self._database.keep(self._database.store.record_audit, entry)
        log.info("site %s has renewed its certificate", peer.name)
        self._events.say("site_renewed", site=peer.name, expires_at=made.expires_at)
        return pb.RenewReply(certificate=certificate)
