"""What can go wrong with certificates, credentials and tokens.

IdentityError               a folder, a certificate or a name is not what is wanted     (exit 2)
├── NoSuchCertificate       nothing was issued under that name or serial number         (exit 2)
├── CertificateExpired      its time is over, or has not come                           (exit 2)
├── TokenMalformed          the text is no join token                                   (exit 2)
├── TokenRefused            the token is unknown, used, or too old                      (exit 3)
├── RenewalRefused          a certificate is not renewed, and why                       (exit 3)
└── PeerRefused             the caller has shown no valid certificate                   (exit 3)
"""

from __future__ import annotations

from fedpilot.common.host.exit_codes import BAD_INPUT, REFUSED

from ..errors import MediatorError


class IdentityError(MediatorError):
    """A folder, a certificate, a name or a host is not what is wanted."""

    exits_with = BAD_INPUT


class NoSuchCertificate(IdentityError):
    """Nothing was issued under that name or serial number."""


class CertificateExpired(IdentityError):
    """The time of a certificate is over, or has not come yet."""


class TokenMalformed(IdentityError):
    """A text is no join token, or a part of one is missing."""


class TokenRefused(IdentityError):
    """A join token is unknown, used, or too old."""

    exits_with = REFUSED


class RenewalRefused(IdentityError):
    """A certificate is not renewed: it would gain nothing, or was renewed too often."""

    exits_with = REFUSED


class PeerRefused(IdentityError):
    """The caller has shown no certificate, or one that does not count."""

    exits_with = REFUSED
