"""OwnIdentity: a mediator's authority and certificate, made at its first start and renewed later.

A new authority issues the first admin's credentials once; they should be moved elsewhere and are
not issued again. A start renews the mediator's certificate if due, for the same key. The log warns
long before a certificate that cannot be renewed expires.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.rules.roles import Role
from ...identity import Authority, Credentials, RenewalRefused, has_credentials
from ...identity.certificates import DAY_S, day
from ..settings import ServerSettings

NAME, ADMIN = "mediator", "admin"
DUE = 2 / 3
"""The part of the certificate's life after which a start renews it."""
WARNED_S = 30 * DAY_S
AUTHORITY_WARNED_S = 365 * DAY_S
"""How long before expiry the log warns; a new authority means work at every site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnIdentity:
    """The identity of one mediator."""

    authority: Authority
    credentials: Credentials
    made: tuple[str, ...]
    """What this start made or renewed, in words."""
    admin: Path | None
    """The folder of the admin's credentials, if this start made them."""

    def warnings(self, now: float) -> list[str]:
        """Describe the certificates that expire soon, and what to do."""
        found, own = [], self.credentials.identity
        if self.authority.expires_at - now < AUTHORITY_WARNED_S:
            found.append(
                f"the authority ends on {day(self.authority.expires_at)}, and with it every "
                "certificate: set up a mediator with a new one before, and have all join it"
            )
        if own.expires_at - now < WARNED_S:
            found.append(
                f"the mediator's certificate ends on {day(own.expires_at)}: start the mediator "
                "again, which renews it"
            )
        return found


def own_identity(settings: ServerSettings, hosts: Sequence[str], now: float) -> OwnIdentity:
    """Open a mediator's identity, making or renewing its parts as needed. IdentityError.

    `hosts` go into a new certificate; a renewed one keeps its own.
    """
    folder, made = settings.authority, []
    admin: Path | None = None
    if folder.exists():
        authority = Authority.open(folder)
    else:
        authority = Authority.create(folder, now=now)
        made.append(f"a certificate authority in {folder}")
        admin = settings.admin
        authority.issue(ADMIN, Role.ADMIN, now=now).write(admin)
        made.append(f"the credentials of its admin in {admin}")
    if not has_credentials(authority.server_folder):
        named = tuple(hosts) or names_of_this_machine(settings.host)
        issued = authority.issue(NAME, Role.MEDIATOR, named, now=now)
        issued.write(authority.server_folder)
        made.append(f"the mediator's certificate, good for {', '.join(named)}")
    credentials = Credentials.read(authority.server_folder)
    renewed = _renewed(authority, credentials, now)
    if renewed is not None:
        credentials = renewed
        credentials.write(authority.server_folder)
        until = day(credentials.identity.expires_at)
        made.append(f"a later certificate for the mediator, good until {until}")
    credentials.identity.check(now)
    return OwnIdentity(authority=authority, credentials=credentials, made=tuple(made), admin=admin)


def _renewed(authority: Authority, credentials: Credentials, now: float) -> Credentials | None:
    """Renew the mediator's credentials; None if not due, or refused."""
    own = credentials.identity
    if now < own.begins_at + DUE * (own.expires_at - own.begins_at):
        return None
    try:
        return credentials.renewed(authority.renew(own.serial, credentials.request(), now=now))
    except RenewalRefused:
        return None


def names_of_this_machine(listening: str) -> tuple[str, ...]:
    """The host names of a mediator on this machine."""
    names = ["localhost", "127.0.0.1"]
    if listening in ("0.0.0.0", "::"):
        names.insert(0, socket.gethostname())
    elif listening not in names:
        names.insert(0, listening)
    return tuple(dict.fromkeys(names))
