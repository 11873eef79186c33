"""`fedpilot certs`: what it makes can be used, what it refuses says why, JSON is bare."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedpilot.mediator.cli.certs import certs
from fedpilot.mediator.identity import Authority, Credentials, IdentityError, Role
from fedpilot.mediator.identity.acts import ACTS, account, acts_of

DAY_S = 86_400.0
Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "certs"


@pytest.fixture
def run(folder: Path) -> Run:
    """Runs `fedpilot certs COMMAND --folder FOLDER ...`."""

    def one(command: str, *arguments: str) -> Result:
        return CliRunner().invoke(certs, [command, "--folder", str(folder), *arguments])

    return one


@pytest.fixture
def made(run: Run) -> None:
    """There is an authority."""
    assert run("init", "--host", "localhost").exit_code == 0


def asked(result: Result) -> Any:
    """The one document that a command has printed."""
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_init_makes_an_authority_and_the_mediators_credentials(run: Run, folder: Path) -> None:
    told = asked(run("init", "--host", "localhost", "--host", "10.0.0.1", "--days", "2", "--json"))
    server = Credentials.read(folder / "server")
    assert told == {
        "folder": str(folder),
        "name": "mediator",
        "role": "mediator",
        "serial": server.identity.serial,
        "hosts": ["localhost", "10.0.0.1"],
        "expires_at": server.identity.expires_at,
        "credentials": str(folder / "server"),
    }
    assert 1.9 * DAY_S < server.identity.expires_at - time.time() <= 2 * DAY_S
    assert Authority.open(folder).server_folder == folder / "server"


def test_init_tells_what_to_do_next(run: Run, folder: Path) -> None:
    result = run("init", "--host", "localhost")
    assert f"keep {folder / 'ca.key'} secret" in result.stdout
    assert f"fedpilot certs issue --folder {folder}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        pytest.param([], "give the host name", id="no host"),
        pytest.param(["--host", "a b"], "a host is a DNS name", id="no host's name"),
        pytest.param(["--host", "a", "--days", "0"], "0.0 is not in the range", id="no time"),
    ],
)
def test_init_with_bad_input_makes_nothing(
    run: Run, folder: Path, arguments: list[str], reason: str
) -> None:
    result = run("init", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert not folder.exists()


@pytest.mark.usefixtures("made")
def test_init_overwrites_nothing(run: Run, folder: Path) -> None:
    before = (folder / "ca.key").read_bytes()
    result = run("init", "--host", "localhost")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "an authority is never overwritten" in result.stderr
    assert (folder / "ca.key").read_bytes() == before


@pytest.mark.usefixtures("made")
def test_issue_writes_credentials_that_are_good(run: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "alice"
    told = asked(run("issue", "--name", "alice", "--role", "operator", "--out", str(out), "--json"))
    found = Credentials.read(out).identity
    assert (found.name, found.role, found.serial) == ("alice", Role.OPERATOR, told["serial"])
    assert told["credentials"] == str(out)
    assert Authority.open(folder).objection(found.serial, time.time()) == ""


@pytest.mark.usefixtures("made")
def test_issue_overwrites_nothing(run: Run, folder: Path, tmp_path: Path) -> None:
    arguments = ("--name", "alice", "--role", "viewer", "--out", str(tmp_path / "a"))
    assert run("issue", *arguments).exit_code == 0
    before = Credentials.read(tmp_path / "a")
    result = run("issue", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "holds credentials already" in result.stderr
    assert Credentials.read(tmp_path / "a") == before
    assert len(Authority.open(folder).issued()) == 2


def test_without_an_authority_nothing_is_issued_listed_or_revoked(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "alice"
    for arguments in (
        ("issue", "--name", "alice", "--role", "viewer", "--out", str(out)),
        ("list",),
        ("revoke", "alice"),
        ("rotate", "mediator"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert "no authority in" in result.stderr
    assert not out.exists()


@pytest.mark.usefixtures("made")
def test_list_shows_who_has_what_and_in_which_state(run: Run, tmp_path: Path) -> None:
    run("issue", "--name", "alice", "--role", "viewer", "--out", str(tmp_path / "a"))
    run("revoke", "alice")
    document = asked(run("list", "--json"))
    listed = document["certificates"]
    assert document["authority"]["expires_at"] > listed[0]["expires_at"]
    assert [(each["name"], each["role"], each["state"]) for each in listed] == [
        ("mediator", "mediator", "valid"),
        ("alice", "viewer", "revoked"),
    ]
    assert listed[0]["hosts"] == ["localhost"]
    assert listed[0]["revoked_at"] is None
    assert listed[1]["issued_at"] <= listed[1]["revoked_at"] < listed[1]["expires_at"]
    text = run("list").stdout
    assert "the authority itself is good until" in text
    assert all(each["serial"] in text and each["state"] in text for each in listed)


@pytest.mark.usefixtures("made")
def test_revoke_may_be_said_twice(run: Run, tmp_path: Path) -> None:
    run("issue", "--name", "alice", "--role", "viewer", "--out", str(tmp_path / "a"))
    serial = Credentials.read(tmp_path / "a").identity.serial
    assert asked(run("revoke", "alice", "--json")) == {"revoked": [serial]}
    assert asked(run("revoke", serial, "--json")) == {"revoked": []}
    assert run("revoke", "alice").stdout == "alice was revoked already\n"


@pytest.mark.usefixtures("made")
def test_revoke_names_those_whom_it_knows(run: Run) -> None:
    result = run("revoke", "bob")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'bob'; there are certificates of mediator" in result.stderr


@pytest.mark.usefixtures("made")
def test_rotate_puts_new_credentials_in_the_place_of_old_ones(run: Run, folder: Path) -> None:
    old = Credentials.read(folder / "server").identity
    told = asked(run("rotate", "mediator", "--overlap", "1", "--json"))
    new = Credentials.read(folder / "server").identity
    assert told["serial"] == new.serial != old.serial
    assert new.hosts == old.hosts
    authority, now = Authority.open(folder), time.time()
    assert authority.revoked(now) == frozenset()
    assert authority.revoked(now + DAY_S) == {old.serial}


@pytest.mark.usefixtures("made")
def test_rotate_needs_a_place_for_a_users_files(run: Run, folder: Path, tmp_path: Path) -> None:
    run("issue", "--name", "alice", "--role", "viewer", "--out", str(tmp_path / "a"))
    result = run("rotate", "alice")
    assert result.exit_code == 2
    assert "--out DIR" in result.stderr
    assert len(Authority.open(folder).issued()) == 2
    assert run("rotate", "alice", "--out", str(tmp_path / "a"), "--overlap", "0").exit_code == 0
    fresh = Credentials.read(tmp_path / "a").identity
    states = {each.serial: each.state(time.time()) for each in Authority.open(folder).issued()}
    assert states[fresh.serial] == "valid"
    assert sorted(states.values()) == ["revoked", "valid", "valid"]


@pytest.mark.usefixtures("made")
def test_a_folder_that_cannot_be_written_issues_nothing(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "alice")
    result = run("issue", "--name", "alice", "--role", "viewer", "--out", out)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Not a directory" in result.stderr
    assert len(Authority.open(folder).issued()) == 1


@pytest.mark.parametrize("command", [[], ["init"], ["issue"], ["list"], ["revoke"], ["rotate"]])
def test_every_command_explains_itself_with_examples(command: list[str]) -> None:
    result = CliRunner().invoke(certs, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples:\n" in result.stdout
    assert "fedpilot certs" in result.stdout


def test_who_did_what_is_written_down(run: Run, folder: Path, tmp_path: Path) -> None:
    run("init", "--host", "localhost")
    out = str(tmp_path / "alice")
    run("issue", "--name", "alice", "--role", "viewer", "--out", out)
    run("issue", "--name", "alice", "--role", "viewer", "--out", out)
    run("rotate", "alice", "--out", out)
    run("revoke", "alice")
    run("revoke", "bob")
    run("list")
    acts = acts_of(folder, 100)
    assert {each.who for each in acts} == {account()}
    assert [(each.act, each.what, each.outcome[:24]) for each in acts] == [
        ("certs init", "hosts=localhost", "done"),
        ("certs issue", "name=alice, role=viewer", "done"),
        ("certs issue", "name=alice, role=viewer", "refused with exit code 2"),
        ("certs rotate", "which=alice", "done"),
        ("certs revoke", "which=alice", "done"),
        ("certs revoke", "which=bob", "refused: no certificate "),
    ]
    assert acts_of(folder, 1) == acts[-1:]
    assert acts_of(folder, 0) == ()
    assert (folder / ACTS).stat().st_mode & 0o777 == 0o600


def test_where_no_authority_is_nothing_is_written_down(run: Run, folder: Path) -> None:
    assert run("revoke", "alice").exit_code == 2
    assert not folder.exists()


@pytest.mark.parametrize("line", [b"{}", b"nothing", b"[]", b'{"at": "x"}'])
def test_a_damaged_list_of_acts_is_named(folder: Path, line: bytes) -> None:
    folder.mkdir()
    (folder / ACTS).write_bytes(line)
    assert acts_of(folder, 9) == ()  # it has no end yet
    (folder / ACTS).write_bytes(line + b"\n")
    with pytest.raises(IdentityError, match="is damaged: one of its lines is"):
        acts_of(folder, 9)
