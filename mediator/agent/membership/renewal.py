"""Renewal: when an agent renews its site's certificate, and how it asks for the next one.

The key stays, and never leaves the site. The agent accepts only a certificate of that key, name and
role.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from ...errors import MediatorError, MediatorUnreachable, RequestRefused
from ...identity import Credentials, Identity
from ...identity.certificates import DAY_S, SKEW_S
from ...proto import federation_pb2 as pb
from ...wire.messages import PROTOCOL
from ...wire.rpc import Stub
from ..text import mediator_said
from .channel import MediatorChannels
from .joining import UNREACHABLE

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the agent checks whether its certificate is due."""
DUE = 2 / 3
"""The part of a certificate's life after which it is renewed."""
SPREAD = 1 / 12
"""And up to so much later, by chance, since many sites may have joined in one hour."""
RENEW_S = 30.0
PAUSES = 200
"""Attempts that a certificate's whole life would take."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3_600.0


class Say(Protocol):
    """Reports what happens at the agent, by event and fields."""

    def __call__(self, event: str, /, **fields: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class CertificateRenewal:
    """Renews a site's certificate again and again; `clock` is the event loop's."""

    channels: MediatorChannels
    folder: Path
    """Of the credentials."""
    _: KW_ONLY
    warn_s: float
    """So long before the certificate's end every failure is reported."""
    say: Say
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    chance: Callable[[], float]

    async def renew(self) -> None:
        """Wait until the certificate is due, and have the channels use the next one."""
        due = due_at(self.channels.credentials.identity, self.chance())
        while self.wall_clock() < due:
            await asyncio.sleep(LOOK_S)
        made = await self._renewed()
        self.channels.replace(made)
        self.say("certificate_renewed", expires_at=made.identity.expires_at)

    async def _renewed(self) -> Credentials:
        """Retry until the mediator has issued credentials, and they are on disk."""
        channels, made = self.channels, None
        identity = channels.credentials.identity
        warned_at = -math.inf
        while True:
            try:
                if made is None:
                    made = await renewed(channels.site, channels.credentials, channels.mediator)
                await asyncio.to_thread(made.write, self.folder)
                return made
            except (MediatorError, OSError) as error:
                log.warning("the certificate of this site is not renewed: %s", error)
                left_s = identity.expires_at - self.wall_clock()
                serious = left_s < self.warn_s or not isinstance(error, MediatorUnreachable)
                if serious and self.clock() - warned_at >= DAY_S:
                    warned_at = self.clock()
                    days = round(max(0.0, left_s) / DAY_S, 1)
                    self.say("certificate_not_renewed", days=days, reason=str(error))
            await asyncio.sleep(pause_s(identity))


def due_at(identity: Identity, chance: float) -> float:
    """When to renew, in epoch seconds; `chance` is in [0, 1)."""
    return _issued_at(identity) + _life_s(identity) * (DUE + SPREAD * chance)


def pause_s(identity: Identity) -> float:
    """How long to wait after an attempt that failed."""
    return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, _life_s(identity) / PAUSES))


def _issued_at(identity: Identity) -> float:
    """Certificates begin `SKEW_S` before they are issued, for clocks that are behind."""
    return min(identity.begins_at + SKEW_S, identity.expires_at)


def _life_s(identity: Identity) -> float:
    return identity.expires_at - _issued_at(identity)


async def renewed(stub: Stub, credentials: Credentials, mediator: str) -> Credentials:
    """The next credentials. MediatorUnreachable, RequestRefused; IdentityError for a bad reply."""
    asked = pb.RenewRequest(protocol=PROTOCOL, certificate_request=credentials.request())
    try:
        reply = await stub.renew(asked, timeout=RENEW_S, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        raise _explained(mediator, error) from error
    return credentials.renewed(reply.certificate)


def _explained(mediator: str, error: grpc.aio.AioRpcError) -> MediatorError:
    reason = mediator_said(error.details() or "", error.code().name)
    if error.code() in UNREACHABLE:
        return MediatorUnreachable(mediator, reason)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return RequestRefused(f"the mediator at {mediator} does not know how to: upgrade it")
    return RequestRefused(f"the mediator at {mediator} refuses: {reason}")
