"""JoinService: a site pays with a token for its first certificate. No certificate is asked for.

A token from before a certificate of the site was revoked is worth nothing: whoever has it was meant
to be shut out as well, by whatever process the certificate was revoked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from ...core.rules.roles import Role
from ...errors import MediatorError
from ...identity import Authority, digest_of
from ...identity.certificates import key_of_request
from ...proto import federation_pb2 as pb
from ...wire.messages import check_protocol, check_site, parsed
from ..connections.authorization import refuse
from ..events import EventLog
from ..store.database import Database

log = logging.getLogger(__name__)

LARGEST_REQUEST = 64 << 10
"""Bytes of anything that comes to this port."""
LONGEST_TOKEN = 4_096


class Joining:
    """Serves `Join`."""

    def __init__(
        self,
        authority: Authority,
        database: Database,
        events: EventLog,
        *,
        admitted: Callable[[str], None] = lambda peer: None,
    ) -> None:
        """`admitted` is told from where a site has joined."""
        self._admitted = admitted
        self._authority = authority
        self._database = database
        self._events = events

    async def join(self, data: bytes, context: Any) -> pb.JoinReply | None:
        """The certificate, once the token is used up; it is not for a request that is wrong."""
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
