"""Renewal: decides when an agent renews its site's certificate, and requests the next one.

The key stays, at the site. The agent accepts only a certificate with its key, name and role.
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
"""The largest random delay after `DUE`, since many sites may have joined in one hour."""
RENEW_S = 30.0
PAUSES = 200
"""Attempts per life of a certificate."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3_600.0


class Say(Protocol):
    """Reports an event at the agent, with its fields."""

    def __call__(self, event: str, /, **fields: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class CertificateRenewal:
    """Renews a site's certificate; `clock` is the event loop's."""

    channels: MediatorChannels
    folder: Path
    """The folder of the credentials."""
    _: KW_ONLY
    warn_s: float
    """Every failure is reported this long before the certificate expires, once a day."""
    say: Say
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    chance: Callable[[], float]

    async def renew(self) -> None:
        """Wait until the certificate is due, renew it, and switch the channels to the new one."""
        due = due_at(self.channels.credentials.identity, self.chance())
        while self.wall_clock() < due:
            await asyncio.sleep(LOOK_S)
        made = await self._renewed()
        self.channels.replace(made)
        self.say("certificate_renewed", expires_at=made.identity.expires_at)

    async def _renewed(self) -> Credentials:
        """Retry until the mediator has issued credentials and they are on disk."""
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
    """How long to wait after a failed attempt."""
    return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, _life_s(identity) / PAUSES))


def _issued_at(identity: Identity) -> float:
    """Certificates become valid `SKEW_S` before they are issued."""
    return min(identity.begins_at + SKEW_S, identity.expires_at)


def _life_s(identity: Identity) -> float:
    return identity.expires_at - _issued_at(identity)


async def renewed(stub: Stub, credentials: Credentials, mediator: str) -> Credentials:
    """Request the next credentials. MediatorUnreachable, RequestRefused, IdentityError."""
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
