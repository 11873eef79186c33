"""A mediator makes its certificates once, renews its own at a start, and warns of what ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedpilot.mediator.cli.certs import certs
from fedpilot.mediator.identity import Authority, CertificateExpired, Credentials, Role
from fedpilot.mediator.server import ServerSettings
from fedpilot.mediator.server.connections.own_identity import own_identity

NOW = 1_800_000_000.0
DAY_S = 86_400.0
HOSTS = ("fl.example.org", "10.0.0.5")


def begun(folder: Path, now: float = NOW) -> ServerSettings:
    """A mediator that was started once."""
    settings = ServerSettings(folder=folder)
    made = own_identity(settings, HOSTS, now)
    assert len(made.made) == 3
    assert made.admin == folder / "admin"
    return settings


def shorten(settings: ServerSettings, valid_s: float) -> None:
    """Give it an authority that does not last."""
    folder = settings.authority
    authority = Authority.create(folder, now=NOW, valid_s=valid_s)
    authority.issue("mediator", Role.MEDIATOR, HOSTS, now=NOW).write(authority.server_folder)


@pytest.mark.parametrize(
    ("age_days", "renewed"),
    [
        pytest.param(0, False, id="a new one stays"),
        pytest.param(200, False, id="one that is good for long stays"),
        pytest.param(250, True, id="one that has lived for two thirds of its time is renewed"),
        pytest.param(400, True, id="so is one that has ended"),
    ],
)
def test_its_certificate_is_renewed_at_a_start(
    tmp_path: Path, age_days: int, renewed: bool
) -> None:
    settings = begun(tmp_path)
    before = Credentials.read(settings.authority / "server")
    found = own_identity(settings, (), NOW + age_days * DAY_S)
    after = Credentials.read(settings.authority / "server")
    assert found.admin is None
    assert bool(found.made) is renewed
    assert (after.identity.serial != before.identity.serial) is renewed
    assert (after.key, after.identity.hosts) == (before.key, HOSTS)
    assert found.warnings(NOW + age_days * DAY_S) == []


@pytest.mark.parametrize(
    ("days", "words"),
    [
        pytest.param(0, [], id="nothing ends soon"),
        pytest.param(340, ["start the mediator again"], id="its own certificate"),
        pytest.param(3_300, ["start the mediator again", "the authority ends"], id="both"),
    ],
)
def test_what_ends_before_long_is_warned_of_while_it_runs(
    tmp_path: Path, days: int, words: list[str]
) -> None:
    begun(tmp_path)
    found = own_identity(ServerSettings(folder=tmp_path), (), NOW).warnings(NOW + days * DAY_S)
    assert len(found) == len(words)
    assert all(any(word in each for each in found) for word in words)


def test_a_certificate_that_its_authority_cannot_make_last_is_used_to_its_end(
    tmp_path: Path,
) -> None:
    settings = ServerSettings(folder=tmp_path)
    tmp_path.mkdir(exist_ok=True)
    shorten(settings, 100 * DAY_S)
    late = own_identity(settings, (), NOW + 99 * DAY_S)
    assert late.made == ()
    assert "the authority ends" in late.warnings(NOW + 99 * DAY_S)[0]
    with pytest.raises(CertificateExpired):
        own_identity(settings, (), NOW + 101 * DAY_S)


def test_a_rotated_certificate_with_other_hosts_is_what_the_next_start_shows(
    tmp_path: Path,
) -> None:
    settings = begun(tmp_path, time.time())
    given = ["rotate", "mediator", "--folder", str(settings.authority)]
    hosts = ["--host", "new.example.org", "--host", "10.0.0.6"]
    result = CliRunner().invoke(certs, [*given, *hosts])
    assert result.exit_code == 0, result.output
    found = own_identity(settings, (), time.time())
    assert found.credentials.identity.hosts == ("new.example.org", "10.0.0.6")
    assert found.made == ()
