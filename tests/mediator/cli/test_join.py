"""`fedpilot site join` joins once, is an agent until it is ended, and says what is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mediators
from fake_mediator import FakeMediator, fake_mediator
from fedpilot.mediator.cli.join import join, policy
from fedpilot.mediator.cli.profile import profile
from fedpilot.mediator.identity import Credentials, Token
from fedpilot.mediator.proto import federation_pb2 as pb

PROGRAM = "import sys; from fedpilot.mediator.cli.join import join; join(sys.argv[1:])"


class Office:
    """A fake mediator in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready, self._over = Event(), Event()
        self.loop = asyncio.new_event_loop()
        self.mediator: FakeMediator
        self._thread = Thread(target=lambda: self.loop.run_until_complete(self._live()))

    async def _live(self) -> None:
        async with fake_mediator(self._folder) as self.mediator:
            self._ready.set()
            await asyncio.to_thread(self._over.wait)

    def do(self, what: Any, within_s: float = 30.0) -> Any:
        """Have something done in its event loop."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(within_s)

    def token(self, site: str = "paris", secret: str = "open sesame") -> str:
        """An invitation."""
        return str(
            Token(
                site=site,
                address=self.mediator.join_address,
                authority=self.mediator.authority.certificate,
                secret=secret,
            )
        )

    def __enter__(self) -> Office:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with Office(tmp_path_factory.mktemp("mediator")) as made:
        yield made


@contextmanager
def agent(
    *arguments: str, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--ray-address", "private", "--json", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def events(process: subprocess.Popen[str], until: str) -> list[dict[str, Any]]:
    """What it says, up to an event."""
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(json.loads(line))
        if found[-1]["event"] == until:
            return found
    assert process.stderr is not None
    raise AssertionError(f"no {until}; {found}; {process.stderr.read()[-2000:]}")


def test_it_joins_once_and_comes_back_without_a_token(office: Office, tmp_path: Path) -> None:
    home = tmp_path / "home"
    where = ("--home", str(home), "--name", "paris")
    mediator = office.mediator
    with agent(*where, "--mediator", mediator.address, "--token", office.token()) as first:
        said = events(first, "connected")
        assert [each["event"] for each in said] == ["joined", "connected"]
        assert all("time" in each for each in said)
        session = office.do(mediator.next_session())
        assert session.hello.site == "paris"
        assert session.hello.capacity.total["CPU"] >= 1
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 130
    credentials = Credentials.read(home / "credentials")
    assert (credentials.identity.name, credentials.identity.role) == ("paris", "site")
    assert (home / "credentials" / "key.pem").stat().st_mode & 0o077 == 0
    with agent(*where) as second:
        events(second, "connected")
        session = office.do(mediator.next_session())
        with agent(*where) as third:
            assert third.wait(60) == 2
            assert third.stderr is not None
            assert f"pid {second.pid}" in third.stderr.read()
        farewell = pb.ToSite(farewell=pb.Farewell(reason="it was removed", final=True))
        office.do(session.send(farewell))
        assert second.wait(60) == 3
        assert second.stderr is not None
        assert "it was removed" in second.stderr.read()
    assert mediator.tokens.count("open sesame") == 1


def test_declared_data_is_told_as_far_as_it_may_be(office: Office, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("patient-1\npatient-2\n")
    whose = np.array(["patient-1", "patient-2", "patient-2", "patient-3"])
    labels = np.array([0, 1, 0, 1])
    np.savez(tmp_path / "scans.npz", x=np.zeros((4, 3)), y=labels, client_ids=whose)
    (tmp_path / "site.yaml").write_text(
        "datasets:\n"
        "  scans:\n"
        "    dataset_type: npz\n"
        "    path: scans.npz\n"
        "    schema: {input_shape: [3], num_classes: 2}\n"
        "    clients: {arise: id_list, file: ids.txt}\n"
    )
    given = ("--home", str(tmp_path / "home"), "--name", "paris", "--token", office.token())
    mediator = office.mediator
    files = ("--mediator", mediator.address, "--site-file", str(tmp_path / "site.yaml"))
    with agent(*given, *files) as process:
        events(process, "connected")
        hello = office.do(mediator.next_session()).hello
    told = json.loads(hello.data_json)["scans"]
    assert told["clients"] == 2
    assert "patient" not in hello.data_json
    assert str(tmp_path) not in hello.data_json


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(join, ["--name", "paris", *arguments])


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        pytest.param(lambda o: ["--mediator", "m:1"], 2, "get a token", id="no token"),
        pytest.param(lambda o: ["--token", o.token()], 2, "--mediator", id="no mediator"),
        pytest.param(lambda o: ["--mediator", "nowhere"], 2, "HOST:PORT", id="no address"),
        pytest.param(lambda o: ["--mediator", ""], 2, "found ''", id="an empty address"),
        pytest.param(
            lambda o: ["--mediator", "m:1", "--token", "fp1.x"], 2, "damaged", id="a damaged token"
        ),
        pytest.param(
            lambda o: ["--mediator", "m:1", "--token", o.token(secret="old")],
            3,
            "the token was used already",
            id="a used token",
        ),
        pytest.param(
            lambda o: ["--mediator", "m:1", "--token", o.token("rome")],
            2,
            "the token is for the site rome",
            id="another site's token",
        ),
    ],
)
def test_what_is_wrong_is_said(
    office: Office, tmp_path: Path, given: Callable[[Office], list[str]], code: int, said: str
) -> None:
    result = invoke("--home", str(tmp_path / "home"), *given(office))
    assert result.exit_code == code, result.output
    assert said in result.output


def test_a_token_is_not_used_up_by_a_site_whose_data_cannot_be_read(
    office: Office, tmp_path: Path
) -> None:
    (tmp_path / "site.yaml").write_text(
        "datasets:\n"
        "  scans:\n"
        "    dataset_type: npz\n"
        "    path: not-there.npz\n"
        "    schema: {input_shape: [3], num_classes: 2}\n"
        "    clients: {arise: column, column: client_ids}\n"
    )
    before = len(office.mediator.tokens)
    files = ["--home", str(tmp_path / "home"), "--site-file", str(tmp_path / "site.yaml")]
    given = ["--mediator", office.mediator.address, "--token", office.token()]
    result = invoke(*files, *given)
    assert result.exit_code == 2, result.output
    assert "not-there.npz" in result.output
    assert len(office.mediator.tokens) == before
    assert not (tmp_path / "home" / "credentials").exists()


@pytest.mark.parametrize("name", ["../x", "", "a b", "x" * 64])
def test_a_name_that_is_none(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(join, ["--name", name, "--home", str(tmp_path)])
    assert result.exit_code == 2
    assert "a site's name is" in result.output


def test_an_expired_certificate_is_said_before_anything_is_dialled(
    office: Office, tmp_path: Path
) -> None:
    from fedpilot.mediator.agent.home import SiteHome
    from fedpilot.mediator.core.rules.roles import Role
    from fedpilot.mediator.wire.messages import SiteName

    old = office.mediator.authority.issue("paris", Role.SITE, now=time.time() - 100, valid_s=10)
    home = SiteHome(tmp_path)
    with home.locked():
        old.write(home.credentials_folder)
        home.write_mediator(SiteName("paris"), "127.0.0.1:1")
    result = invoke("--home", str(tmp_path))
    assert result.exit_code == 2
    assert "ended on" in result.output
    assert "fedpilot site token paris" in result.output


def test_the_policy_is_checked_before_anything_is_dialled(tmp_path: Path) -> None:
    wrong = tmp_path / "policy.yaml"
    wrong.write_text("comands: read")
    result = invoke("--home", str(tmp_path / "home"), "--policy", str(wrong))
    assert result.exit_code == 2
    assert "nearest: commands" in result.output


def test_an_admin_of_both_joins_by_a_profile_and_comes_back_by_it(tmp_path: Path) -> None:
    with mediators.process(tmp_path / "m") as (_, (port, _)):
        add = ["add", "here", "--mediator", f"127.0.0.1:{port}"]
        settings = {"FEDPILOT_CONFIG_DIR": str(tmp_path / "settings")}
        credentials = ["--credentials", str(tmp_path / "m" / "admin")]
        assert CliRunner().invoke(profile, [*add, *credentials], env=settings).exit_code == 0
        where = ("--home", str(tmp_path / "home"), "--name", "paris", "--profile", "here")
        for said in (["joined", "connected"], ["connected"]):
            with agent(*where, env=settings) as process:
                assert [each["event"] for each in events(process, "connected")] == said


def test_a_profile_and_an_address_are_not_given_together() -> None:
    result = invoke("--profile", "here", "--mediator", "127.0.0.1:7461")
    assert result.exit_code == 2
    assert "not both" in result.output


def test_policy_check_says_what_the_files_allow(tmp_path: Path) -> None:
    rules, data = tmp_path / "policy.yaml", tmp_path / "site.yaml"
    rules.write_text("users: [alice]\nminimum_cohort: 5\ndatasets: {genes: {users: [bob]}}\n")
    data.write_text(
        "datasets:\n"
        "  scans:\n"
        "    dataset_type: npz\n"
        "    schema: {input_shape: [3]}\n"
        "    clients: {arise: column, column: id}\n"
    )
    files = ["check", "--policy", str(rules), "--site-file", str(data)]
    text = CliRunner().invoke(policy, files)
    assert text.exit_code == 0
    assert "users: alice" in text.output
    assert "at least 5" in text.output
    assert "data set scans has no rule: no user may train on it" in text.output
    assert "data set genes has a rule, but is not declared" in text.output
    document = json.loads(CliRunner().invoke(policy, [*files, "--json"]).output)
    assert document["without_rule"] == ["scans"]
    assert document["not_declared"] == ["genes"]
    assert document["policy"]["minimum_cohort"] == 5
    rules.write_text("minimum_cohort: none")
    wrong = CliRunner().invoke(policy, files)
    assert wrong.exit_code == 2
    assert f"{rules}:1: minimum_cohort" in wrong.output
