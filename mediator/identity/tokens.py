"""Token: lets a site's admin join the site to a mediator, once.

It carries a secret, which the mediator keeps only as a hash, and the authority's certificate, by
which the agent recognizes the mediator. As text it is `fp1.` and base64: a JSON array, a newline,
the certificate in DER, and a checksum of four bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import secrets
import zlib
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from .certificates import check_name, read_certificate
from .errors import IdentityError, TokenMalformed

PREFIX = "fp1."
LONGEST = 4096
"""Characters; longer texts are refused."""
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")
_HINT = "copy all of what `fedpilot site token` printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One invitation; `str` gives its text."""

    site: str
    address: str
    """HOST:PORT of the mediator's JoinService."""
    authority: str
    """PEM."""
    secret: str = field(repr=False)

    @property
    def digest(self) -> str:
        """The hash of the secret, which the mediator keeps."""
        return digest_of(self.secret)

    def __str__(self) -> str:
        certificate = read_certificate(self.authority, "the token")
        head = json.dumps([self.site, self.address, self.secret], separators=(",", ":"))
        body = head.encode() + b"\n" + certificate.public_bytes(serialization.Encoding.DER)
        whole = body + zlib.crc32(body).to_bytes(4, "big")
        return PREFIX + base64.urlsafe_b64encode(whole).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parse a token; TokenMalformed says what is wrong with the text."""
        text = text.strip()
        if len(text) > LONGEST:
            raise TokenMalformed(f"a join token has at most {LONGEST} characters, this {len(text)}")
        if not text.startswith(PREFIX):
            raise TokenMalformed(
                f"a join token begins with {PREFIX}, this with {text[:4]!r}; {_HINT}"
            )
        try:
            encoded = text[len(PREFIX) :].encode("ascii")
            whole = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise TokenMalformed(f"the join token is damaged: {error}; {_HINT}") from error
        body, check = whole[:-4], whole[-4:]
        if zlib.crc32(body).to_bytes(4, "big") != check:
            raise TokenMalformed(f"the join token is damaged or a part of it is missing; {_HINT}")
        return cls._of(body)

    @classmethod
    def _of(cls, body: bytes) -> Token:
        head, _, der = body.partition(b"\n")
        try:
            site, address, secret = json.loads(head)
            certificate = x509.load_der_x509_certificate(der)
            authority = certificate.public_bytes(serialization.Encoding.PEM).decode()
            token = cls(
                site=check_name(site),
                address=checked_address(address),
                secret=str(secret),
                authority=authority,
            )
        except (ValueError, TypeError, RecursionError, IdentityError) as error:
            raise TokenMalformed(f"the join token is not one of this version: {error}") from error
        return token


def new_secret() -> str:
    """Make a secret: 256 random bits."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """SHA-256 of a secret, in hexadecimal; no slow hash is needed for 256 random bits."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def checked_address(address: str) -> str:
    found = _ADDRESS.fullmatch(address)
    if not found or not 0 < int(found[1]) < 65536:
        raise IdentityError(f"wanted HOST:PORT of the mediator, found {address[:80]!r}")
    return address
