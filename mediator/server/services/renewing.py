"""SiteService.Renew: a site's next certificate, for the one that it calls with.

The name and the role are those of that certificate, whatever the request says; it stays good until
it ends. What is issued is in the audit log.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from ...core.rules.roles import Act
from ...identity import Authority
from ...identity.certificates import identity_of, read_certificate
from ...identity.tls import Peer
from ...proto import federation_pb2 as pb
from ...wire.messages import check_protocol
from ..events import EventLog
from ..store import AuditEntry
from ..store.database import Database

log = logging.getLogger(__name__)


class Renewing:
    """Serves `Renew`; who calls was settled before."""

    def __init__(self, authority: Authority, database: Database, events: EventLog) -> None:
        self._authority = authority
        self._database = database
        self._events = events

    async def renew(self, request: pb.RenewRequest, context: Any, peer: Peer) -> pb.RenewReply:
        """The certificate; RenewalRefused, IdentityError for a request that is none."""
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
