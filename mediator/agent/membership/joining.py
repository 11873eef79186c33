"""Joining: an agent without a certificate gets one for a token.

The token has the mediator's address and authority. The key is made here and never leaves the site.
The reply must match that key and the token's authority.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
import grpc.aio

from ...errors import MediatorError, MediatorUnreachable, RequestRefused
from ...identity import Credentials, IdentityError, Role, Token, TokenRefused, new_request
from ...identity.clock import too_early, too_early_for
from ...identity.tls import joining_credentials
from ...proto import federation_pb2 as pb
from ...wire.messages import PROTOCOL, SiteName
from ...wire.rpc import JOIN, Stub
from ..text import mediator_said

JOIN_S = 30.0
LARGEST_REPLY = 256 << 10
UNREACHABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def token_for(site: SiteName, text: str) -> Token:
    """Parse a token. TokenMalformed; IdentityError for the token of another site."""
    token = Token.parse(text)
    if token.site != site:
        raise IdentityError(
            f"the token is for the site {token.site}, and this one is called {site}; "
            f"join as --name {token.site}, or ask for a token for {site}"
        )
    return token


async def join(
    token: Token,
    site: SiteName,
    within_s: float = JOIN_S,
    clock: Callable[[], float] = time.time,
) -> Credentials:
    """Get a site's credentials for a token, which this uses up.

    TokenRefused, RequestRefused, MediatorUnreachable; IdentityError for a reply that does not
    match, or a clock that is behind the mediator's certificates.
    """
    if early := too_early({"the authority of the token": token.authority}, clock()):
        raise IdentityError(early)
    key, request = new_request(site)
    options = (("grpc.max_receive_message_length", LARGEST_REPLY),)
    async with grpc.aio.secure_channel(
        token.address, joining_credentials(token.authority), options
    ) as channel:
        asked = pb.JoinRequest(
            protocol=PROTOCOL, site=site, token=token.secret, certificate_request=request
        )
        try:
            reply = await Stub(channel, JOIN).join(asked, timeout=within_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() in UNREACHABLE:
                early = await asyncio.to_thread(too_early_for, token.address, clock())
                if early:
                    raise IdentityError(early) from error
            raise _explained(token, error) from error
    credentials = Credentials.checked(token.authority, reply.certificate, key, "the reply")
    found = credentials.identity
    if found.name != site or found.role is not Role.SITE:
        raise IdentityError(
            f"a certificate for the site {site} was wanted, and one came for {found.name} as "
            f"{found.role}"
        )
    return credentials


def _explained(token: Token, error: grpc.aio.AioRpcError) -> MediatorError:
    reason = mediator_said(error.details() or "", error.code().name)
    if error.code() in UNREACHABLE:
        return MediatorUnreachable(token.address, reason)
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return TokenRefused(f"the mediator at {token.address} refuses the token: {reason}")
    return RequestRefused(f"the mediator at {token.address} refuses to let us join: {reason}")
