"""Identity: the mediator's authority, credentials and join tokens. `tls` connects them to gRPC."""

from ..core.rules.roles import Role
from .authority import Authority
from .certificates import Identity, check_name, new_request
from .credentials import Credentials, has_credentials
from .errors import (
    CertificateExpired,
    IdentityError,
    NoSuchCertificate,
    PeerRefused,
    RenewalRefused,
    TokenMalformed,
    TokenRefused,
)
from .index import Issued
from .tokens import Token, digest_of, new_secret

__all__ = [
    "Authority",
    "CertificateExpired",
    "Credentials",
    "Identity",
    "IdentityError",
    "Issued",
    "NoSuchCertificate",
    "PeerRefused",
    "RenewalRefused",
    "Role",
    "Token",
    "TokenMalformed",
    "TokenRefused",
    "check_name",
    "digest_of",
    "has_credentials",
    "new_request",
    "new_secret",
]
