"""Renewal: when a site's certificate is renewed, and how its agent asks for that.

It is asked for by the certificate that there is, long before that ends. The key stays, and never
leaves the site; what comes back is believed only if it belongs to that key, name and role.
"""

from __future__ import annotations

import grpc
import grpc.aio

from ...errors import MediatorError, MediatorUnreachable, RequestRefused
from ...identity import Credentials, Identity
from ...identity.certificates import SKEW_S
from ...proto import federation_pb2 as pb
from ...wire.messages import PROTOCOL
from ...wire.rpc import Stub
from ..text import one_line

DUE = 2 / 3
"""Of a certificate's life: then it is renewed."""
SPREAD = 1 / 12
"""And up to so much later, by chance: many sites may have joined in one hour."""
RENEW_S = 30.0
PAUSES = 200
"""Attempts that a certificate's whole life would take."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3_600.0
_UNREACHABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def due_at(identity: Identity, chance: float) -> float:
    """When to renew, in epoch seconds; `chance` is in [0, 1)."""
    return _issued_at(identity) + _life_s(identity) * (DUE + SPREAD * chance)


def pause_s(identity: Identity) -> float:
    """How long to wait after an attempt that failed."""
    return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, _life_s(identity) / PAUSES))


def _issued_at(identity: Identity) -> float:
    """Certificates begin before they are issued, for the sake of clocks that are behind.

    Counted from that beginning, one that is good for a minute would be due when it is issued.
    """
    return min(identity.begins_at + SKEW_S, identity.expires_at)


def _life_s(identity: Identity) -> float:
    return identity.expires_at - _issued_at(identity)


async def renewed(stub: Stub, credentials: Credentials, mediator: str) -> Credentials:
    """The next credentials, over a line that was opened with those that there are.

    Raises MediatorUnreachable, RequestRefused, IdentityError for a reply that is not ours.
    """
    asked = pb.RenewRequest(protocol=PROTOCOL, certificate_request=credentials.request())
    try:
        reply = await stub.renew(asked, timeout=RENEW_S, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        raise _explained(mediator, error) from error
    return credentials.renewed(reply.certificate)


def _explained(mediator: str, error: grpc.aio.AioRpcError) -> MediatorError:
    reason = one_line(error.details() or "", error.code().name)
    if error.code() in _UNREACHABLE:
        return MediatorUnreachable(mediator, reason)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return RequestRefused(f"the mediator at {mediator} does not know how to: upgrade it")
    return RequestRefused(f"the mediator at {mediator} refuses: {reason}")
