"""An authority signs what it should, remembers it, and refuses what it no longer stands by."""

from __future__ import annotations

import fcntl
import json
import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpilot.mediator.identity import (
    Authority,
    CertificateExpired,
    Credentials,
    IdentityError,
    NoSuchCertificate,
    RenewalRefused,
    Role,
    has_credentials,
    index,
    new_request,
)
from fedpilot.mediator.identity.authority import AUTHORITY_VALID_S, MOST_RENEWALS, OVERLAP_S
from fedpilot.mediator.identity.certificates import certify_itself, identity_of, read_certificate

NOW = 1_800_000_000.0
DAY_S = 86_400.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "certs"


@pytest.fixture
def authority(folder: Path) -> Authority:
    return Authority.create(folder, now=NOW)


# -- what is signed -------------------------------------------------------------------------------


def test_a_users_certificate_says_who_it_is_and_serves_clients_only(authority: Authority) -> None:
    made = authority.issue("alice", Role.OPERATOR, now=NOW, valid_s=DAY_S)
    found = made.identity
    assert (found.name, found.role, found.hosts) == ("alice", Role.OPERATOR, ())
    assert (found.begins_at, found.expires_at) == (NOW - 300, NOW + DAY_S)
    certificate = x509.load_pem_x509_certificate(made.certificate.encode())
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert usage.critical
    assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not limits.ca


def test_the_mediators_certificate_has_its_hosts_and_serves_servers_only(
    authority: Authority,
) -> None:
    hosts = ("mediator.example.org", "10.0.0.1", "::1")
    made = authority.issue("mediator", Role.MEDIATOR, hosts, now=NOW)
    certificate = x509.load_pem_x509_certificate(made.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["mediator.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert made.identity.hosts == hosts


def test_an_authority_signs_no_further_authorities(authority: Authority) -> None:
    certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
    limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert (limits.value.ca, limits.value.path_length) == (True, 0)


def test_serial_numbers_tell_nothing_and_never_repeat(authority: Authority) -> None:
    serials = [authority.issue("alice", Role.VIEWER, now=NOW).identity.serial for _ in range(5)]
    assert len(set(serials)) == 5
    assert {len(serial) for serial in serials} == {40}


def test_no_certificate_outlives_the_authority(authority: Authority) -> None:
    made = authority.issue("alice", Role.ADMIN, now=NOW + DAY_S, valid_s=2 * AUTHORITY_VALID_S)
    assert made.identity.expires_at == authority.expires_at == NOW + AUTHORITY_VALID_S
    with pytest.raises(IdentityError, match=r"the authority in .* ended on .* make a new one"):
        authority.issue("alice", Role.ADMIN, now=authority.expires_at)


@pytest.mark.parametrize(
    ("name", "role", "hosts", "valid_s", "reason"),
    [
        pytest.param("", Role.ADMIN, [], 1.0, "a name is 1 to 63", id="no name"),
        pytest.param("../x", Role.SITE, [], 1.0, "a name is 1 to 63", id="a path"),
        pytest.param("a/b", Role.SITE, [], 1.0, "a name is 1 to 63", id="a slash"),
        pytest.param("a\nb", Role.SITE, [], 1.0, "a name is 1 to 63", id="two lines"),
        pytest.param("a\n", Role.SITE, [], 1.0, "a name is 1 to 63", id="a line's end"),
        pytest.param("x" * 64, Role.SITE, [], 1.0, "a name is 1 to 63", id="a long name"),
        pytest.param("m", Role.MEDIATOR, [], 1.0, "at least one host", id="a mediator nowhere"),
        pytest.param("m", Role.MEDIATOR, ["a:1"], 1.0, "without a port", id="a port"),
        pytest.param("m", Role.MEDIATOR, ["*.org"], 1.0, "a host is a DNS name", id="a wildcard"),
        pytest.param("m", Role.MEDIATOR, [""], 1.0, "a host is a DNS name", id="an empty host"),
        pytest.param("a", Role.SITE, ["a.org"], 1.0, "only the mediator", id="a site with a host"),
        pytest.param("a", Role.SITE, [], 0.0, "valid for some time", id="no time"),
        pytest.param("a", Role.SITE, [], float("nan"), "for some time", id="not a time"),
    ],
)
def test_what_no_certificate_may_say_is_refused_and_not_remembered(
    authority: Authority, name: str, role: Role, hosts: list[str], valid_s: float, reason: str
) -> None:
    with pytest.raises(IdentityError, match=reason):
        authority.issue(name, role, hosts, now=NOW, valid_s=valid_s)
    assert authority.issued() == ()


# -- requests -------------------------------------------------------------------------------------


def test_a_request_gets_a_certificate_for_its_key_under_the_name_that_is_given(
    authority: Authority,
) -> None:
    key, request = new_request("rome")
    text = authority.sign(request, "paris", Role.SITE, now=NOW)
    made = Credentials.checked(authority.certificate, text, key)
    assert (made.identity.name, made.identity.role) == ("paris", Role.SITE)


def test_what_a_request_claims_besides_its_key_counts_for_nothing(authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    claims = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "mediator"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "admin"),
        ]
    )
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(claims)
        .add_extension(x509.BasicConstraints(ca=True, path_length=5), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("bank.org")]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )
    text = authority.sign(request, "paris", Role.SITE, now=NOW)
    certificate = x509.load_pem_x509_certificate(text.encode())
    said = identity_of(certificate)
    assert (said.name, said.role, said.hosts) == ("paris", Role.SITE, ())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def request_with(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "paris")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def forged() -> str:
    """A request whose signature is not one."""
    _, request = new_request("paris")
    csr = x509.load_pem_x509_csr(request.encode())
    der = bytearray(csr.public_bytes(serialization.Encoding.DER))
    der[der.index(b"paris")] ^= 1
    changed = x509.load_der_x509_csr(bytes(der))
    return changed.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize(
    ("request_text", "reason"),
    [
        pytest.param("", "no request", id="nothing"),
        pytest.param("fp1.abc", "no request", id="something else"),
        pytest.param("\ud800é", "no request", id="no text"),
        pytest.param("x" * 20_000, "at most 16384", id="too long"),
        pytest.param(forged(), "not signed with the key", id="a forged signature"),
        pytest.param(
            request_with(rsa.generate_private_key(65537, 1024)).decode(), "P-256 is wanted",
            id="a weak key",
        ),
        pytest.param(
            request_with(ec.generate_private_key(ec.SECP384R1())).decode(), "P-256 is wanted",
            id="another curve",
        ),
        pytest.param(new_request("a")[0], "no request", id="a private key"),
    ],
)  # fmt: skip
def test_a_request_that_is_none_is_refused(
    authority: Authority, request_text: str, reason: str
) -> None:
    with pytest.raises(IdentityError, match=reason):
        authority.sign(request_text, "paris", Role.SITE, now=NOW)
    assert authority.issued() == ()


# -- what is remembered ---------------------------------------------------------------------------


def test_another_process_sees_what_was_issued_and_revoked(
    authority: Authority, folder: Path
) -> None:
    other = Authority.open(folder)
    made = authority.issue("alice", Role.VIEWER, now=NOW)
    serial = made.identity.serial
    (entry,) = other.issued()
    assert (entry.serial, entry.name, entry.role, entry.issued_at) == (
        serial, "alice", Role.VIEWER, NOW,
    )  # fmt: skip
    assert other.objection(serial, NOW) == ""
    assert authority.revoke("alice", now=NOW + 1) == (serial,)
    assert other.revoked(NOW + 1) == {serial}
    assert other.objection(serial, NOW + 1) == f"certificate {serial} of alice was revoked"


def test_revoking_takes_a_serial_number_or_all_of_a_name(authority: Authority) -> None:
    first, second, other = (
        authority.issue(name, Role.SITE, now=NOW).identity.serial
        for name in ("paris", "paris", "rome")
    )
    shown = ":".join(first[i : i + 2] for i in range(0, 40, 2)).upper()
    assert authority.revoke(shown, now=NOW) == (first,)
    assert authority.revoke("paris", now=NOW) == (second,)
    assert authority.revoke("paris", now=NOW) == ()
    assert authority.revoked(NOW) == {first, second}
    assert authority.objection(other, NOW) == ""
    with pytest.raises(NoSuchCertificate, match=r"'berlin'; there are certificates of paris, rome"):
        authority.revoke("berlin", now=NOW)


def test_what_was_not_issued_or_is_over_is_objected_to(authority: Authority) -> None:
    assert "not among those that were issued" in authority.objection("0" * 40, NOW)
    serial = authority.issue("alice", Role.ADMIN, now=NOW, valid_s=DAY_S).identity.serial
    assert authority.objection(serial, NOW + DAY_S - 1) == ""
    assert "alice ended on 2027-01-16 08:00 UTC" in authority.objection(serial, NOW + DAY_S)
    assert authority.revoked(NOW + DAY_S) == frozenset()


def test_after_a_rotation_both_are_good_for_a_while(authority: Authority) -> None:
    hosts = ("localhost",)
    old = authority.issue("mediator", Role.MEDIATOR, hosts, now=NOW)
    new = authority.rotate("mediator", now=NOW + 10)
    assert replace(new.identity, serial="", begins_at=0, expires_at=0) == replace(
        old.identity, serial="", begins_at=0, expires_at=0
    )
    assert new.key != old.key
    until = NOW + 10 + OVERLAP_S
    assert authority.revoked(until - 1) == frozenset()
    assert authority.revoked(until) == {old.identity.serial}
    assert authority.objection(new.identity.serial, until) == ""


def test_a_revocation_comes_before_the_end_of_an_overlap(authority: Authority) -> None:
    old = authority.issue("alice", Role.ADMIN, now=NOW).identity.serial
    new = authority.rotate("alice", now=NOW).identity.serial
    assert authority.revoke("alice", now=NOW + 5) == (old, new)
    assert authority.revoked(NOW + 5) == {old, new}
    with pytest.raises(NoSuchCertificate, match="all certificates of alice are revoked"):
        authority.rotate("alice", now=NOW + 6)


def test_a_name_with_two_roles_is_rotated_by_serial_number(authority: Authority) -> None:
    user = authority.issue("paris", Role.VIEWER, now=NOW).identity.serial
    site = authority.issue("paris", Role.SITE, now=NOW).identity.serial
    with pytest.raises(IdentityError, match=f"{user} .viewer., {site} .site."):
        authority.rotate("paris", now=NOW)
    assert authority.rotate(user, now=NOW, overlap_s=0).identity.role is Role.VIEWER
    assert authority.revoked(NOW) == {user}


def issue_some(folder: Path, name: str) -> None:
    authority = Authority.open(folder)
    for _ in range(10):
        authority.issue(name, Role.SITE, now=NOW)


def test_several_processes_issue_at_once_and_nothing_is_forgotten(
    authority: Authority, folder: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    names = ("a", "b")
    processes = [context.Process(target=issue_some, args=(folder, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    issued = Authority.open(folder).issued()
    assert sorted(each.name for each in issued) == sorted(names * 10)
    assert authority.issued() == issued


def test_a_line_whose_writer_died_in_the_middle_is_as_if_it_had_never_been(
    authority: Authority, folder: Path
) -> None:
    index = folder / "issued.jsonl"
    authority.issue("alice", Role.ADMIN, now=NOW)
    whole = index.read_bytes()
    index.write_bytes(whole + b'{"serial": "00ab", "name": "mall' + b"o" * 1000)
    other = Authority.open(folder)
    assert [each.name for each in other.issued()] == ["alice"]
    other.issue("bob", Role.ADMIN, now=NOW)
    assert [each.name for each in authority.issued()] == ["alice", "bob"]
    assert index.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in index.read_bytes().splitlines())


def test_who_cannot_write_alone_in_time_writes_nothing(
    authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "LOCK_S", 0.05)
    with (folder / "issued.jsonl").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(IdentityError, match="is locked by another process"):
            authority.issue("alice", Role.ADMIN, now=NOW)
        assert authority.issued() == ()
        fcntl.flock(other, fcntl.LOCK_SH)
        with pytest.raises(IdentityError, match="is locked by another process"):
            authority.issue("alice", Role.ADMIN, now=NOW)
    authority.issue("alice", Role.ADMIN, now=NOW)
    assert [each.name for each in authority.issued()] == ["alice"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "has format None", id="empty"),
        pytest.param('{"format": 2}\n', "has format 2; this fedpilot knows format 1", id="newer"),
        pytest.param("{]\n", r"is damaged: one of its lines is '\{\]'", id="no JSON"),
        pytest.param("[]\n", "is damaged", id="no object"),
        pytest.param('{"format": 1}\n{"serial": "1"}\n', "is damaged", id="half a record"),
    ],
)
def test_an_index_that_cannot_be_read_is_refused(
    authority: Authority, folder: Path, text: str, reason: str
) -> None:
    (folder / "issued.jsonl").write_text(text)
    with pytest.raises(IdentityError, match=reason):
        Authority.open(folder)


# -- folders --------------------------------------------------------------------------------------


def test_an_authority_is_never_overwritten(authority: Authority, folder: Path) -> None:
    before = (folder / "ca.key").read_bytes()
    with pytest.raises(IdentityError, match=r"ca.pem and ca.key and issued.jsonl already"):
        Authority.create(folder, now=NOW)
    assert (folder / "ca.key").read_bytes() == before


def test_keys_are_for_their_owner_only(authority: Authority, folder: Path, tmp_path: Path) -> None:
    authority.issue("alice", Role.ADMIN, now=NOW).write(tmp_path / "alice")
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "alice" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "alice").stat().st_mode & 0o777 == 0o700
    for key in (folder / "ca.key", tmp_path / "alice" / "key.pem"):
        key.chmod(0o640)
    with pytest.raises(IdentityError, match=r"can be read by others \(mode 0640\); `chmod 600 "):
        Authority.open(folder)
    with pytest.raises(IdentityError, match="can be read by others"):
        Credentials.read(tmp_path / "alice")


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "issued.jsonl"])
def test_what_an_authority_lacks_is_named(authority: Authority, folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(IdentityError, match=f"{name} not found there; `fedpilot certs init"):
        Authority.open(folder)


def test_credentials_are_read_as_they_were_written(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "some" / "alice"
    assert not has_credentials(folder)
    for _ in range(2):  # the second in the place of the first
        made = authority.issue("alice", Role.ADMIN, now=NOW)
        made.write(folder)
        assert Credentials.read(folder) == made
    assert has_credentials(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert made.key not in repr(made)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        pytest.param("cert.pem", None, "cert.pem not found there", id="no certificate"),
        pytest.param("key.pem", b"", "no private key in PEM", id="an empty key"),
        pytest.param("key.pem", "another", "not the key of the cert.pem", id="another key"),
        pytest.param("ca.pem", "another", "not signed by the ca.pem", id="another authority"),
        pytest.param("cert.pem", b"\xff", "not in PEM", id="bytes"),
        pytest.param("cert.pem", b"x" * (1 << 20), "larger than any", id="a large file"),
    ],
)
def test_credentials_that_do_not_belong_together_are_refused(
    authority: Authority,
    tmp_path: Path,
    name: str,
    content: bytes | str | None,
    reason: str,
) -> None:
    folder, other = tmp_path / "alice", tmp_path / "other"
    authority.issue("alice", Role.ADMIN, now=NOW).write(folder)
    Authority.create(tmp_path / "b", now=NOW).issue("alice", Role.ADMIN, now=NOW).write(other)
    match content:
        case None:
            (folder / name).unlink()
        case bytes():
            (folder / name).write_bytes(content)
        case _:
            (folder / name).write_bytes((other / name).read_bytes())
    with pytest.raises(IdentityError, match=reason):
        Credentials.read(folder)


def test_the_time_of_credentials_is_checked_when_asked(authority: Authority) -> None:
    found = authority.issue("alice", Role.ADMIN, now=NOW, valid_s=DAY_S).identity
    found.check(NOW - 300)
    found.check(NOW + DAY_S - 1)
    with pytest.raises(CertificateExpired, match=r"ended on 2027-01-16 08:00 UTC; .* rotate alice"):
        found.check(NOW + DAY_S)
    with pytest.raises(CertificateExpired, match="is the clock right"):
        found.check(NOW - 301)


def test_a_certificate_without_a_role_is_nobodys() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    text = certify_itself(key, "alice", NOW, DAY_S)
    with pytest.raises(IdentityError, match="no holder with a role"):
        identity_of(read_certificate(text, "it"))


# -- what is renewed ------------------------------------------------------------------------------


def test_a_renewed_certificate_says_what_the_one_before_said_and_both_are_good(
    authority: Authority,
) -> None:
    old = authority.issue("paris", Role.SITE, now=NOW, valid_s=30 * DAY_S)
    later = NOW + 20 * DAY_S
    made = old.renewed(authority.renew(old.identity.serial, old.request(), now=later))
    assert (made.identity.name, made.identity.role) == ("paris", Role.SITE)
    assert made.identity.expires_at == later + 30 * DAY_S
    assert made.key == old.key
    for each in (old, made):
        assert authority.objection(each.identity.serial, later) == ""
    gone = old.identity.expires_at
    assert "fedpilot site token paris" in authority.objection(old.identity.serial, gone)
    assert authority.objection(made.identity.serial, gone) == ""


def test_a_certificate_is_not_renewed_without_end(authority: Authority) -> None:
    old = authority.issue("paris", Role.SITE, now=NOW, valid_s=30 * DAY_S)
    later = NOW + 20 * DAY_S
    for number in range(MOST_RENEWALS):
        authority.renew(old.identity.serial, old.request(), now=later + number)
    with pytest.raises(RenewalRefused, match=f"has got {MOST_RENEWALS} certificates in 864000 s"):
        authority.renew(old.identity.serial, old.request(), now=later + DAY_S)
    rome = authority.issue("rome", Role.SITE, now=NOW, valid_s=30 * DAY_S)
    authority.renew(rome.identity.serial, rome.request(), now=later + DAY_S)
    authority.renew(old.identity.serial, old.request(), now=later + 10 * DAY_S)


def test_renewals_of_renewed_certificates_count_as_well(authority: Authority) -> None:
    last = authority.issue("paris", Role.SITE, now=NOW, valid_s=30 * DAY_S)
    for number in range(MOST_RENEWALS - 1):
        text = authority.renew(last.identity.serial, last.request(), now=NOW + number + 1)
        last = last.renewed(text)
    with pytest.raises(RenewalRefused, match=f"has got {MOST_RENEWALS} certificates in 864000 s"):
        authority.renew(last.identity.serial, last.request(), now=NOW + MOST_RENEWALS)


def test_when_somebody_was_shut_out_last(authority: Authority) -> None:
    assert authority.last_revoked_at("paris", Role.SITE, NOW) == -math.inf
    first, second = (authority.issue("paris", Role.SITE, now=NOW) for _ in range(2))
    authority.issue("paris", Role.VIEWER, now=NOW)
    authority.revoke(first.identity.serial, now=NOW + 10)
    authority.rotate(second.identity.serial, now=NOW + 20, overlap_s=100)
    told = [authority.last_revoked_at("paris", Role.SITE, NOW + at) for at in (5, 10, 50, 120)]
    assert told == [-math.inf, NOW + 10, NOW + 10, NOW + 120]
    assert authority.last_revoked_at("paris", Role.VIEWER, NOW + 120) == -math.inf


def test_a_renewal_that_gains_nothing_is_refused(authority: Authority) -> None:
    late = NOW + AUTHORITY_VALID_S - 10 * DAY_S
    old = authority.issue("paris", Role.SITE, now=late, valid_s=30 * DAY_S)
    with pytest.raises(RenewalRefused, match="the authority itself ends"):
        authority.renew(old.identity.serial, old.request(), now=late + DAY_S)


def test_what_was_never_issued_is_not_renewed(authority: Authority) -> None:
    old = authority.issue("paris", Role.SITE, now=NOW)
    with pytest.raises(RenewalRefused, match="not among those"):
        authority.renew("0" * 40, old.request(), now=NOW)
