"""What gRPC needs of credentials, and what it knows of who calls. The only part that knows gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc

from ..core.rules.roles import Role
from .certificates import identity_of, read_certificate
from .credentials import Credentials
from .errors import IdentityError, PeerRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who calls, as its certificate says, which the authority has signed."""

    name: str
    role: Role
    serial: str
    expires_at: float
    """Epoch seconds; gRPC looks at it only when a connection is made."""


class Context(Protocol):
    """What of a call's context is needed; those of `grpc` and of `grpc.aio` both have it."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What the transport knows of the peer."""


def peer_of(context: Context) -> Peer:
    """Who calls; PeerRefused where no certificate was shown that says so.

    Whether the certificate was revoked is not looked at: `Authority.objection` tells.
    """
    shown = list(context.auth_context().get("x509_pem_cert", ()))
    if len(shown) != 1:
        raise PeerRefused("no client certificate was shown; `fedpilot certs issue` makes one")
    try:
        found = identity_of(read_certificate(shown[0].decode(), "the client certificate"))
    except (IdentityError, UnicodeDecodeError) as error:
        raise PeerRefused(f"the client certificate is not of a federation: {error}") from error
    if found.role is Role.MEDIATOR:
        raise PeerRefused(f"the certificate of {found.name} is a mediator's, not a client's")
    return Peer(name=found.name, role=found.role, serial=found.serial, expires_at=found.expires_at)


def client_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """For a channel on which both sides show who they are."""
    return grpc.ssl_channel_credentials(
        root_certificates=credentials.authority.encode(),
        private_key=credentials.key.encode(),
        certificate_chain=credentials.certificate.encode(),
    )


def joining_credentials(authority: str) -> grpc.ChannelCredentials:
    """For a channel of who has only a token: the server alone shows who it is."""
    return grpc.ssl_channel_credentials(root_certificates=authority.encode())


def server_credentials(
    credentials: Credentials, *, require_clients: bool = True
) -> grpc.ServerCredentials:
    """For a port whose callers need a certificate of the authority, or, to join, none."""
    return grpc.ssl_server_credentials(
        [(credentials.key.encode(), credentials.certificate.encode())],
        root_certificates=credentials.authority.encode() if require_clients else None,
        require_client_auth=require_clients,
    )
