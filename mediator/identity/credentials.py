"""Credentials: a process's certificate and key, and the authority that it trusts; three files.

`ca.pem` is the authority's certificate, `cert.pem` the holder's, `key.pem` the holder's key, which
only its owner may read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .certificates import (
    Identity,
    day,
    identity_of,
    is_signed_by,
    read_certificate,
    read_key,
    request_for,
)
from .errors import IdentityError
from .files import PUBLIC, SECRET, read_secret, read_text, write_text

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """All in PEM. `checked` ensures that they belong together."""

    authority: str
    certificate: str
    key: str = field(repr=False)
    identity: Identity

    @classmethod
    def checked(
        cls, authority: str, certificate: str, key: str, where: str = "what was given"
    ) -> Credentials:
        """Check that the parts belong together, but no dates; IdentityError mentions `where`."""
        signer = read_certificate(authority, f"{AUTHORITY} of {where}")
        found = read_certificate(certificate, f"{CERTIFICATE} of {where}")
        held = read_key(key, f"{KEY} of {where}")
        if not is_signed_by(found, signer):
            raise IdentityError(f"{where}: {CERTIFICATE} was not signed by the {AUTHORITY} there")
        if found.public_key() != held.public_key():
            raise IdentityError(f"{where}: {KEY} is not the key of the {CERTIFICATE} there")
        return cls(
            authority=authority, certificate=certificate, key=key, identity=identity_of(found)
        )

    @classmethod
    def read(cls, folder: Path) -> Credentials:
        """Read a folder; IdentityError names what is missing, damaged, or readable by others."""
        missing = [name for name in (AUTHORITY, CERTIFICATE, KEY) if not (folder / name).is_file()]
        if missing:
            raise IdentityError(
                f"no credentials in {folder}: {' and '.join(missing)} not found there; "
                "`fedpilot certs issue` makes a user's, `fedpilot site join` a site's"
            )
        return cls.checked(
            read_text(folder / AUTHORITY),
            read_text(folder / CERTIFICATE),
            read_secret(folder / KEY),
            str(folder),
        )

    def request(self) -> str:
        """A request for another certificate of the same key."""
        return request_for(read_key(self.key, KEY), self.identity.name)

    def renewed(self, certificate: str) -> Credentials:
        """Take a new certificate; IdentityError unless name and role match and it ends later."""
        made = Credentials.checked(self.authority, certificate, self.key, "the renewal")
        before, now = self.identity, made.identity
        if (now.name, now.role) != (before.name, before.role):
            raise IdentityError(
                f"a certificate of {before.name} ({before.role}) was to be renewed, and one of "
                f"{now.name} ({now.role}) came"
            )
        if now.expires_at <= before.expires_at:
            raise IdentityError(
                f"the certificate of {before.name} is good until {day(before.expires_at)}, and "
                f"what came for it until {day(now.expires_at)} only"
            )
        return made

    def write(self, folder: Path) -> None:
        """Write or overwrite a folder, the certificate last."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(folder / AUTHORITY, self.authority, PUBLIC)
        write_text(folder / KEY, self.key, SECRET)
        write_text(folder / CERTIFICATE, self.certificate, PUBLIC)


def has_credentials(folder: Path) -> bool:
    """Whether the folder holds any of the three files."""
    return any((folder / name).exists() for name in (AUTHORITY, CERTIFICATE, KEY))
