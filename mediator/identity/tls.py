"""Converts credentials for gRPC and identifies its callers; only this module imports gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import grpc

from ..core.rules.roles import Role
from .certificates import Identity, identity_of, read_certificate
from .credentials import Credentials
from .errors import IdentityError, PeerRefused

Peer = Identity
"""The identity in the caller's certificate, which the authority has signed.

gRPC checks `expires_at` only when a connection is made.
"""


class Context(Protocol):
    """The part of a call's context used here, common to `grpc` and `grpc.aio`."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The transport's facts about the peer."""


def peer_of(context: Context) -> Peer:
    """Identify the caller; PeerRefused unless it shows a client certificate of a federation.

    `Authority.objection` checks for revocation.
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
    return found


def client_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """Credentials for a channel on which both ends show certificates."""
    return grpc.ssl_channel_credentials(
        root_certificates=credentials.authority.encode(),
        private_key=credentials.key.encode(),
        certificate_chain=credentials.certificate.encode(),
    )


def joining_credentials(authority: str) -> grpc.ChannelCredentials:
    """Credentials for a site that has only a token: only the server shows a certificate."""
    return grpc.ssl_channel_credentials(root_certificates=authority.encode())


def server_credentials(
    credentials: Credentials, *, require_clients: bool = True
) -> grpc.ServerCredentials:
    """Credentials for a port whose callers show a certificate or, to join, none."""
    return grpc.ssl_server_credentials(
        [(credentials.key.encode(), credentials.certificate.encode())],
        root_certificates=credentials.authority.encode() if require_clients else None,
        require_client_auth=require_clients,
    )
