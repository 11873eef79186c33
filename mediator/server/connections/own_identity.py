"""OwnIdentity: what a mediator signs with and shows, made at its first start and kept good.

With an authority comes its first admin, once: credentials that were taken elsewhere, as they should
be, are not made again. The mediator's certificate is renewed at a start, for the same key; what
cannot be renewed is warned of long before it ends.
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
"""Of the server's own certificate, and of its first user's."""
DUE = 2 / 3
"""Of its life: then the mediator's certificate is renewed at the next start."""
WARNED_S = 30 * DAY_S
AUTHORITY_WARNED_S = 365 * DAY_S
"""So long before an end it is warned of; to replace an authority is work at every site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnIdentity:
    """Of one mediator."""

    authority: Authority
    credentials: Credentials
    made: tuple[str, ...]
    """What was made or renewed just now, in words."""
    admin: Path | None
    """Where the credentials of its admin lie, if they have just been made."""

    def warnings(self, now: float) -> list[str]:
        """What ends before long, and what to do about it."""
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
    """What a mediator is, made where there is nothing; IdentityError if it is of no use.

    `hosts` go into a certificate that has to be made; a renewed one has those of before.
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
    """The mediator's credentials with a later certificate; None if none is due, or to be had."""
    own = credentials.identity
    if now < own.begins_at + DUE * (own.expires_at - own.begins_at):
        return None
    try:
        return credentials.renewed(authority.renew(own.serial, credentials.request(), now=now))
    except RenewalRefused:
        return None


def names_of_this_machine(listening: str) -> tuple[str, ...]:
    """What a mediator on this machine may be called."""
    names = ["localhost", "127.0.0.1"]
    if listening in ("0.0.0.0", "::"):
        names.insert(0, socket.gethostname())
    elif listening not in names:
        names.insert(0, listening)
    return tuple(dict.fromkeys(names))
