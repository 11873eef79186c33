"""Authority: the certificate authority of one mediator, kept in a folder.

`ca.pem` is public, `ca.key` for its owner only. `issued.jsonl` is the index of issued and revoked
certificates, `acts.jsonl` logs manual acts, `server` holds the mediator's credentials. A
certificate is indexed before it is handed out; one that is not in the index is refused.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ..core.rules.roles import Role
from .acts import LocalAct, acts_of
from .certificates import (
    DAY_S,
    SKEW_S,
    Identity,
    certify,
    certify_itself,
    check_hosts,
    check_name,
    day,
    how_to_replace,
    key_of_request,
    key_text,
    new_key,
    new_serial,
    read_certificate,
    read_key,
)
from .credentials import Credentials
from .errors import IdentityError, NoSuchCertificate, RenewalRefused
from .files import PUBLIC, SECRET, read_secret, read_text, write_text
from .index import CertificateIndex, Issued

AUTHORITY, KEY, INDEX, SERVER = "ca.pem", "ca.key", "issued.jsonl", "server"
AUTHORITY_VALID_S = 3650 * DAY_S
VALID_S = 365 * DAY_S
OVERLAP_S = 7 * DAY_S
"""How long a rotated certificate stays valid beside its successor."""
MOST_RENEWALS = 8
"""Certificates of one name and role within `RENEWED_WITHIN`; lost replies do not explain more."""
RENEWED_WITHIN = 1 / 3
"""The part of a certificate's life in which renewals count; they fall into its last third."""


class Authority:
    """Issues and revokes certificates. Several processes may have the same folder open."""

    def __init__(
        self,
        folder: Path,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
        text: str,
    ) -> None:
        """Internal; use `create` or `open`, which check their input."""
        self._folder = folder
        self._certificate = certificate
        self._key = key
        self._index = CertificateIndex(folder / INDEX)
        self.certificate = text
        """In PEM."""

    @classmethod
    def create(cls, folder: Path, *, now: float, valid_s: float = AUTHORITY_VALID_S) -> Authority:
        """Make an authority; IdentityError if the folder holds one, or parts of one."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [name for name in (AUTHORITY, KEY, INDEX) if (folder / name).exists()]
        if there:
            raise IdentityError(
                f"{folder} holds {' and '.join(there)} already; an authority is never overwritten: "
                "use it, or name another folder"
            )
        key = new_key()
        text = certify_itself(key, f"fedpilot authority {secrets.token_hex(4)}", now, valid_s)
        try:
            CertificateIndex.create(folder / INDEX)
        except FileExistsError:
            raise IdentityError(f"{folder} is made an authority by another process") from None
        write_text(folder / KEY, key_text(key), SECRET)
        write_text(folder / AUTHORITY, text, PUBLIC)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Open the authority in a folder; IdentityError says what is missing or does not match."""
        missing = [name for name in (AUTHORITY, KEY, INDEX) if not (folder / name).is_file()]
        if missing:
            raise IdentityError(
                f"no authority in {folder}: {' and '.join(missing)} not found there; "
                f"`fedpilot certs init --folder {folder}` makes one"
            )
        text = read_text(folder / AUTHORITY)
        certificate = read_certificate(text, str(folder / AUTHORITY))
        key = read_key(read_secret(folder / KEY), str(folder / KEY))
        if certificate.public_key() != key.public_key():
            raise IdentityError(f"{folder}: {KEY} is not the key of {AUTHORITY}")
        authority = cls(folder, certificate, key, text)
        authority._index.entries()
        return authority

    @property
    def server_folder(self) -> Path:
        """The folder of the mediator's own credentials."""
        return self._folder / SERVER

    @property
    def expires_at(self) -> float:
        """When its own certificate expires, and with it every certificate it signed."""
        return self._certificate.not_valid_after_utc.timestamp()

    def acts(self, last: int) -> tuple[LocalAct, ...]:
        """The last manual acts in its folder, oldest first."""
        return acts_of(self._folder, last)

    # -- issuing ----------------------------------------------------------------------------------

    def issue(
        self,
        name: str,
        role: Role,
        hosts: Iterable[str] = (),
        *,
        now: float,
        valid_s: float = VALID_S,
    ) -> Credentials:
        """Issue a new key and its certificate, which never outlives the authority's."""
        key = new_key()
        text = self._issue(name, role, hosts, key.public_key(), now, valid_s)
        return Credentials.checked(self.certificate, text, key_text(key))

    def sign(
        self, request: str, name: str, role: Role, *, now: float, valid_s: float = VALID_S
    ) -> str:
        """Issue a certificate in PEM for the key in a request, whose other claims are ignored."""
        return self._issue(name, role, (), key_of_request(request), now, valid_s)

    def renew(self, serial: str, request: str, *, now: float) -> str:
        """Issue a certificate like an old one, which stays valid, for the key in a request.

        RenewalRefused if it would not last longer, or after too many renewals.
        """
        key, last = key_of_request(request), self._index.entries().get(serial)
        if last is None:
            raise RenewalRefused(f"certificate {serial} is not among those that were issued")
        life_s = last.expires_at - last.issued_at
        if min(now + life_s, self.expires_at) <= last.expires_at:
            raise RenewalRefused(
                f"certificate {serial} of {last.name} cannot last longer: the authority itself "
                f"ends on {day(self.expires_at)}; make a new one, and issue all certificates anew"
            )
        span_s = RENEWED_WITHIN * life_s
        lately = [
            each
            for each in self.issued()
            if (each.name, each.role) == (last.name, last.role) and each.issued_at > now - span_s
        ]
        if len(lately) >= MOST_RENEWALS:
            raise RenewalRefused(
                f"{last.name} ({last.role}) has got {len(lately)} certificates in {span_s:g} s "
                f"already, of at most {MOST_RENEWALS}; {how_to_replace(last.name, last.role)}"
            )
        return self._issue(last.name, last.role, last.hosts, key, now, life_s)

    def rotate(
        self,
        which: str,
        *,
        now: float,
        overlap_s: float = OVERLAP_S,
        valid_s: float = VALID_S,
        hosts: Iterable[str] | None = None,
    ) -> Credentials:
        """Issue new credentials for a name or serial number; refuse the old after `overlap_s`.

        Name, role and, by default, hosts stay. Expired certificates can be rotated, revoked cannot.
        """
        found = [each for each in self._matching(which) if each.revoked_at is None]
        if not found:
            raise NoSuchCertificate(
                f"all certificates of {which} are revoked; `fedpilot certs issue` makes a new one"
            )
        if len({each.role for each in found}) > 1:
            told = ", ".join(f"{each.serial} ({each.role})" for each in found)
            raise IdentityError(f"{which} has several roles: name one serial number of {told}")
        last = found[-1]
        fresh = self.issue(
            last.name,
            last.role,
            last.hosts if hosts is None else hosts,
            now=now,
            valid_s=valid_s,
        )
        old = {each.serial for each in found}
        self._revoke(old, now + overlap_s)
        return fresh

    def _issue(
        self,
        name: str,
        role: Role,
        hosts: Iterable[str],
        key: ec.EllipticCurvePublicKey,
        now: float,
        valid_s: float,
    ) -> str:
        if not valid_s > 0:
            raise IdentityError(f"a certificate has to be valid for some time; found {valid_s:g} s")
        if now >= self.expires_at:
            raise IdentityError(
                f"the authority in {self._folder} ended on {day(self.expires_at)}; "
                "make a new one, and issue all certificates anew"
            )
        subject = Identity(
            name=check_name(name),
            role=role,
            serial=new_serial(),
            hosts=check_hosts(hosts, role),
            begins_at=max(now - SKEW_S, self._certificate.not_valid_before_utc.timestamp()),
            expires_at=float(int(min(now + valid_s, self.expires_at))),  # whole in certificates
        )
        text = certify(subject, key, self._certificate, self._key)
        entry = Issued(
            serial=subject.serial,
            name=name,
            role=role,
            hosts=subject.hosts,
            issued_at=now,
            expires_at=subject.expires_at,
        )
        self._index.change(lambda _: [entry])
        return text

    # -- what was issued, and what is refused -----------------------------------------------------

    def issued(self) -> tuple[Issued, ...]:
        """All certificates ever issued, oldest first."""
        return tuple(self._index.entries().values())

    def revoked(self, now: float) -> frozenset[str]:
        """The serial numbers that are revoked at `now`."""
        return frozenset(each.serial for each in self.issued() if each.state(now) == "revoked")

    def last_revoked_at(self, name: str, role: Role, now: float) -> float:
        """When a certificate of a name and role was last revoked; minus infinity if none was."""
        ends = [
            each.revoked_at
            for each in self.issued()
            if (each.name, each.role) == (name, role) and each.revoked_at is not None
        ]
        return max((end for end in ends if end <= now), default=-math.inf)

    def objection(self, serial: str, now: float) -> str:
        """Say why a certificate that the authority signed is not valid now; empty if it is."""
        entry = self._index.entries().get(serial)
        if entry is None:
            return f"certificate {serial} is not among those that were issued"
        match entry.state(now):
            case "revoked":
                return f"certificate {serial} of {entry.name} was revoked"
            case "expired":
                return (
                    f"certificate {serial} of {entry.name} ended on {day(entry.expires_at)}; "
                    f"{how_to_replace(entry.name, entry.role)}"
                )
        return ""

    def revoke(self, which: str, *, now: float) -> tuple[str, ...]:
        """Refuse a serial number, or all certificates of a name, from now on.

        Return the newly revoked serial numbers; NoSuchCertificate if nothing matches.
        """
        return self._revoke({each.serial for each in self._matching(which)}, now)

    def _revoke(self, serials: set[str], at: float) -> tuple[str, ...]:
        changed: list[Issued] = []

        def decide(entries: Mapping[str, Issued]) -> Iterable[Issued]:
            for each in entries.values():
                sooner = each.revoked_at is None or each.revoked_at > at
                if each.serial in serials and sooner:
                    changed.append(replace(each, revoked_at=at))
            return changed

        self._index.change(decide)
        return tuple(each.serial for each in changed)

    def _matching(self, which: str) -> list[Issued]:
        serial = which.replace(":", "").lower().rjust(40, "0")
        issued = self.issued()
        found = [each for each in issued if each.serial == serial]
        found = found or [each for each in issued if each.name == which]
        if not found:
            known = sorted({each.name for each in issued})
            shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
            raise NoSuchCertificate(
                f"no certificate of the name or serial number {which[:80]!r}; "
                f"there are certificates of {shown or 'nobody'}"
            )
        return found
