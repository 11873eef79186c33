"""Profiles: what counts when several things say where to go, and a file that is read strictly."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedpilot.cli import main
from fedpilot.common.strict_yaml.errors import BadFile
from fedpilot.mediator.client import profile_file
from fedpilot.mediator.client.profiles import (
    ConnectionOptions,
    Profile,
    Profiles,
    check_address,
    choose,
)
from fedpilot.mediator.errors import ProfileError
from fedpilot.mediator.identity import Authority, Role


def made(name: str, address: str = "", credentials: str = "") -> Profile:
    return Profile(
        name=name, address=address or f"{name}:7461", credentials=Path(credentials or f"/{name}")
    )


TWO = Profiles().with_profile(made("one")).with_profile(made("two"))


@pytest.mark.parametrize(
    ("asked", "name", "address", "folder"),
    [
        pytest.param(ConnectionOptions(), "one", "one:7461", "/one", id="the default"),
        pytest.param(
            ConnectionOptions(variable="two"), "two", "two:7461", "/two", id="FEDPILOT_PROFILE"
        ),
        pytest.param(
            ConnectionOptions(profile="one", variable="two"),
            "one",
            "one:7461",
            "/one",
            id="--profile wins",
        ),
        pytest.param(
            ConnectionOptions(mediator="x:1", credentials="/me", variable="two"),
            "",
            "x:1",
            "/me",
            id="--mediator with --credentials wins over all",
        ),
        pytest.param(
            ConnectionOptions(mediator="two:7461"),
            "two",
            "two:7461",
            "/two",
            id="--mediator alone has the credentials of its profile",
        ),
        pytest.param(
            ConnectionOptions(profile="two", credentials="/bob"),
            "two",
            "two:7461",
            "/bob",
            id="--credentials instead of the profile's",
        ),
    ],
)
def test_what_is_said_most_clearly_counts(
    asked: ConnectionOptions, name: str, address: str, folder: str
) -> None:
    found = choose(TWO, asked)
    assert found == Profile(name=name, address=address, credentials=Path(folder))


@pytest.mark.parametrize(
    ("profiles", "asked", "said"),
    [
        pytest.param(
            TWO, ConnectionOptions(profile="tow"), "did you mean two", id="a misspelt profile"
        ),
        pytest.param(
            Profiles(), ConnectionOptions(profile="a"), "fedpilot profile add", id="no profile"
        ),
        pytest.param(TWO, ConnectionOptions(variable="nobody"), "'nobody'", id="a wrong variable"),
        pytest.param(
            TWO, ConnectionOptions(mediator="a:1", profile="one"), "not both", id="two ways"
        ),
        pytest.param(
            TWO, ConnectionOptions(mediator="else:1"), "--credentials DIR", id="nobody's address"
        ),
        pytest.param(
            TWO.with_profile(made("too", "two:7461", "/other")),
            ConnectionOptions(mediator="two:7461"),
            "too, two differ",
            id="an address with several credentials",
        ),
        pytest.param(
            Profiles(),
            ConnectionOptions(credentials="/me"),
            "--mediator too",
            id="who but not whom",
        ),
        pytest.param(
            TWO, ConnectionOptions(mediator="nowhere"), "HOST:PORT", id="an address without a port"
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_in_words(
    profiles: Profiles, asked: ConnectionOptions, said: str
) -> None:
    with pytest.raises(ProfileError, match=said) as caught:
        choose(profiles, asked)
    assert caught.value.exits_with == 2


def test_without_a_profile_nothing_is_chosen() -> None:
    assert choose(Profiles(), ConnectionOptions()) is None
    assert choose(TWO.without("one"), ConnectionOptions()) is None


@pytest.mark.parametrize(
    "address", ["mediator.example.org:7461", "10.0.0.5:1", "[::1]:65535", "localhost:7461"]
)
def test_an_address_is_host_and_port(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":1", "host:0", "host:65536", "a b:1", "http://host:1", "h:1\n"],
)
def test_anything_else_is_no_address(address: str) -> None:
    with pytest.raises(ProfileError, match="HOST:PORT"):
        check_address(address)


# -- the file -------------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "settings"
    assert profile_file.read(folder) == Profiles()
    profile_file.write(folder, TWO)
    assert profile_file.read(folder) == TWO
    profile_file.write(folder, TWO.without("one"))
    assert profile_file.read(folder).default == ""
    assert [path.name for path in folder.iterdir()] == ["profiles.yaml"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("format: 2\nprofiles: {}\n", "format", id="a newer format"),
        pytest.param("format: 1\nprofile: {}\n", "nearest: profiles", id="an unknown key"),
        pytest.param(
            "format: 1\nprofiles: {a: {address: 'x:1'}}\n", "credentials", id="a missing key"
        ),
        pytest.param(
            "format: 1\nprofiles: {a: {address: x, credentials: /c}}\n",
            "HOST:PORT",
            id="an address without a port",
        ),
        pytest.param(
            "format: 1\ndefault: b\nprofiles: {a: {address: 'x:1', credentials: /c}}\n",
            "'b'",
            id="a default that is none of them",
        ),
        pytest.param("format: [1\n", "profiles.yaml", id="no YAML"),
        pytest.param("- 1\n", "profiles.yaml", id="no mapping"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "profiles.yaml").write_text(text)
    with pytest.raises((ProfileError, BadFile), match=said) as caught:
        profile_file.read(tmp_path)
    assert "profiles.yaml" in str(caught.value)
    assert caught.value.exits_with == 2


def test_the_folder_is_the_variables_or_the_systems(tmp_path: Path) -> None:
    chosen = {"FEDPILOT_CONFIG_DIR": str(tmp_path)}
    assert profile_file.config_folder(chosen) == tmp_path
    assert profile_file.config_folder({}).name == "fedpilot"


# -- the commands ---------------------------------------------------------------------------------


@pytest.fixture
def alice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDPILOT_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.delenv("FEDPILOT_PROFILE", raising=False)
    authority = Authority.create(tmp_path / "authority", now=time.time())
    authority.issue("alice", Role.OPERATOR, now=time.time()).write(tmp_path / "alice")
    return tmp_path / "alice"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["profile", *arguments], prog_name="fedpilot")


def add(name: str, credentials: Path, *options: str) -> Result:
    return invoke("add", name, "--mediator", "h:7461", "--credentials", str(credentials), *options)


def test_profiles_are_added_listed_used_and_removed(alice: Path) -> None:
    assert "no profiles" in invoke("list").stdout
    assert "the default" in add("a", alice).stdout
    assert "default" not in add("b", alice).stdout
    assert invoke("use", "b").exit_code == 0
    listed = json.loads(invoke("list", "--json").stdout)["profiles"]
    assert [(each["name"], each["default"]) for each in listed] == [("a", False), ("b", True)]
    shown = json.loads(invoke("show", "a", "--json").stdout)
    assert (shown["user"], shown["role"]) == ("alice", "operator")
    assert "operator" in invoke("show", "a").stdout
    removed = invoke("remove", "b")
    assert "profile use" in removed.stdout
    assert [each["name"] for each in json.loads(invoke("list", "--json").stdout)["profiles"]] == [
        "a"
    ]


def test_a_profile_is_not_replaced_by_accident(alice: Path) -> None:
    add("a", alice)
    again = add("a", alice)
    assert again.exit_code == 2
    assert "--force" in again.stderr
    assert add("a", alice, "--force").exit_code == 0


def test_credentials_are_looked_at_before_anything_is_written(alice: Path, tmp_path: Path) -> None:
    result = add("a", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "ca.pem" in result.stderr
    assert json.loads(invoke("list", "--json").stdout) == {"profiles": []}


@pytest.mark.parametrize("command", ["show", "use", "remove"])
def test_an_unknown_profile_is_refused_with_those_there_are(alice: Path, command: str) -> None:
    add("hospitals", alice)
    result = invoke(command, "hospital")
    assert result.exit_code == 2
    assert "did you mean hospitals?" in result.stderr
