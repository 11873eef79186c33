"""Makes and reads the certificates of a federation.

The subject's common name is the holder's name, its organizational unit the role. Keys are on the
curve P-256. A certificate is for a server or a client: no site can pose as the mediator.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..core.rules.roles import Role
from .errors import CertificateExpired, IdentityError

DAY_S = 86_400.0
SKEW_S = 300.0
"""A certificate becomes valid this long before it is issued, since clocks differ."""
LARGEST_PEM = 16 << 10
"""Characters; longer texts are refused."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a certificate says. Times are epoch seconds."""

    name: str
    role: Role
    serial: str
    """40 hexadecimal digits, lower case."""
    hosts: tuple[str, ...]
    """The DNS names and addresses that a server answers to."""
    begins_at: float
    expires_at: float

    def check(self, now: float) -> None:
        """Raise CertificateExpired unless it is valid now."""
        if now >= self.expires_at:
            raise CertificateExpired(
                f"the certificate of {self.name} ({self.role}) ended on {day(self.expires_at)}; "
                f"{how_to_replace(self.name, self.role)}"
            )
        if now < self.begins_at:
            raise CertificateExpired(
                f"the certificate of {self.name} ({self.role}) is valid from "
                f"{day(self.begins_at)} on, and here it is {day(now)}: is the clock right?"
            )


def how_to_replace(name: str, role: Role) -> str:
    """Say how to replace a certificate."""
    if role is Role.SITE:
        return (
            f"an admin makes a token by `fedpilot site token {name}`; "
            f"`fedpilot site join --name {name} --token-file FILE` gets a new one for it"
        )
    return f"`fedpilot certs rotate {name}` makes a new one"


def day(moment: float) -> str:
    """Format a time in epoch seconds, in UTC."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def check_name(name: str) -> str:
    """Return the name; IdentityError if no certificate may carry it."""
    if not _NAME.fullmatch(name):
        raise IdentityError(
            f"a name is 1 to 63 letters, digits, dots, dashes, underscores or @, "
            f"and begins with a letter or digit; found {name[:80]!r}"
        )
    return name


def check_hosts(hosts: Iterable[str], role: Role) -> tuple[str, ...]:
    """The hosts, each once; IdentityError if invalid. Only a mediator has hosts, and needs some."""
    found = tuple(dict.fromkeys(hosts))
    for host in found:
        _general_name(host)
    if bool(found) != (role is Role.MEDIATOR):
        raise IdentityError(
            "the mediator's certificate needs at least one host that it is reached at"
            if role is Role.MEDIATOR
            else f"only the mediator is reached at hosts; a {role} has none, found {found[0]}"
        )
    return found


# -- keys and requests ----------------------------------------------------------------------------


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def key_text(key: ec.EllipticCurvePrivateKey) -> str:
    """A private key in PEM, not encrypted: only its owner may read the file."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def read_key(text: str, name: str) -> ec.EllipticCurvePrivateKey:
    """Read a private key from PEM; IdentityError, which mentions `name`, for anything else."""
    try:
        key = serialization.load_pem_private_key(_bounded(text, name), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(f"{name} holds no private key in PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key.curve):
        raise IdentityError(f"{name} holds a key of another kind; one of the curve P-256 is wanted")
    return key


def new_request(name: str) -> tuple[str, str]:
    """Make a private key and a certificate request for it, both in PEM."""
    key = new_key()
    return key_text(key), request_for(key, name)


def request_for(key: ec.EllipticCurvePrivateKey, name: str) -> str:
    """A certificate request for a key, in PEM."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, check_name(name))])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = request.sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def key_of_request(text: str) -> ec.EllipticCurvePublicKey:
    """The key in a certificate request that is signed with it; other claims are ignored.

    IdentityError for anything else: the text is untrusted.
    """
    try:
        request = x509.load_pem_x509_csr(_bounded(text, "the request"))
        key = request.public_key()
        right = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise IdentityError("that is no request for a certificate in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not _is_p256(key.curve):
        raise IdentityError("the request has a key of another kind; the curve P-256 is wanted")
    if not right:
        raise IdentityError("the request is not signed with the key that it names")
    return key


# -- certificates ---------------------------------------------------------------------------------


def certify_itself(key: ec.EllipticCurvePrivateKey, name: str, now: float, valid_s: float) -> str:
    """An authority's self-signed certificate, in PEM; it cannot sign further authorities."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _begun(subject, subject, new_serial(), key.public_key(), now - SKEW_S, now + valid_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _signed(builder, key)


def certify(
    subject: Identity,
    key: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> str:
    """A certificate in PEM, signed by the authority."""
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, subject.name),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, subject.role),
        ]
    )
    serves = subject.role is Role.MEDIATOR
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = (
        _begun(name, authority.subject, subject.serial, key, subject.begins_at, subject.expires_at)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        .add_extension(signer, critical=False)
    )
    if subject.hosts:
        hosts = x509.SubjectAlternativeName([_general_name(host) for host in subject.hosts])
        builder = builder.add_extension(hosts, critical=False)
    return _signed(builder, authority_key)


def read_certificate(text: str, name: str) -> x509.Certificate:
    """Read a certificate from PEM; IdentityError, which mentions `name`, for anything else."""
    try:
        return x509.load_pem_x509_certificate(_bounded(text, name))
    except ValueError as error:
        raise IdentityError(f"{name} holds no certificate in PEM: {error}") from error


def identity_of(certificate: x509.Certificate) -> Identity:
    """Read the identity in a certificate; IdentityError unless it is a federation's."""
    try:
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        roles = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        if len(names) != 1 or len(roles) != 1 or str(roles[0].value) not in set(Role):
            raise IdentityError("the certificate names no holder with a role of the federation")
        return Identity(
            name=check_name(str(names[0].value)),
            role=Role(str(roles[0].value)),
            serial=serial_text(certificate.serial_number),
            hosts=_hosts_of(certificate),
            begins_at=certificate.not_valid_before_utc.timestamp(),
            expires_at=certificate.not_valid_after_utc.timestamp(),
        )
    except ValueError as error:
        raise IdentityError(f"the certificate cannot be read: {error}") from error


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority's key signed the certificate, which names it as issuer."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def new_serial() -> str:
    """A random serial number."""
    return serial_text(x509.random_serial_number())


def serial_text(serial: int) -> str:
    """A serial number as 40 hexadecimal digits."""
    return f"{serial:040x}"


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    serial: str,
    key: ec.EllipticCurvePublicKey,
    begins_at: float,
    expires_at: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(int(serial, 16))
        .not_valid_before(_moment(begins_at))
        .not_valid_after(_moment(expires_at))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> str:
    signed = builder.sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _moment(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(seconds))


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        labels = host.split(".")
        if len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels):
            return x509.DNSName(host)
    raise IdentityError(f"a host is a DNS name or an IP address, without a port; found {host!r}")


def _hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(each.value) for each in found)


def _is_p256(curve: ec.EllipticCurve) -> bool:
    return isinstance(curve, ec.SECP256R1)


def _bounded(text: str, name: str) -> bytes:
    if len(text) > LARGEST_PEM:
        raise IdentityError(f"{name} has {len(text)} characters; at most {LARGEST_PEM} are read")
    return text.encode()
