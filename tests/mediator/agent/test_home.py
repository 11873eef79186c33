"""What an agent keeps in its folder: who it is, and who works there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedpilot.mediator.agent.errors import BadHome, HomeBusy
from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.wire.messages import BadMessage, RunId, SiteName

PARIS = SiteName("paris")


def test_one_agent_works_in_a_folder(tmp_path: Path) -> None:
    other = SiteHome(tmp_path).locked()
    with SiteHome(tmp_path).locked(), pytest.raises(HomeBusy, match=f"pid {os.getpid()}"):
        other.__enter__()
    with SiteHome(tmp_path).locked():
        assert SiteHome(tmp_path).joined() is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("{", "damaged", id="no JSON"),
        pytest.param("[]", "format", id="no object"),
        pytest.param('{"format": 2}', "format 2", id="a newer format"),
        pytest.param('{"format": 1, "site": "paris"}', "damaged", id="no mediator"),
        pytest.param('{"format": 1, "site": "../x", "mediator": "m:1"}', "damaged", id="a path"),
    ],
)
def test_a_damaged_folder_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "site.json").write_text(text)
    with pytest.raises(BadHome, match=said):
        SiteHome(tmp_path).joined()


def test_the_mediator_is_remembered(tmp_path: Path) -> None:
    SiteHome(tmp_path).write_mediator(PARIS, "m:7400")
    assert SiteHome(tmp_path).joined() == (PARIS, "m:7400")


def test_the_secret_stays_and_is_its_owners(tmp_path: Path) -> None:
    secret = SiteHome(tmp_path).secret()
    assert len(secret) == 32
    assert SiteHome(tmp_path).secret() == secret
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("run", ["../x", "/x", "", ".", "..", "a/b", "a\0b", "x" * 200])
def test_no_path_comes_from_a_name(tmp_path: Path, run: str) -> None:
    with pytest.raises(BadMessage):
        SiteHome(tmp_path).run_folder(run)


def test_runs_that_ended_long_ago_are_cleaned_up(tmp_path: Path) -> None:
    home = SiteHome(tmp_path)
    with home.locked():
        for name in ("old", "alive", "new"):
            home.run_folder(name).mkdir()
        (home.runs / ".hidden").mkdir()
        for name in ("old", "alive"):
            os.utime(home.run_folder(name), (0, 0))
        home.clean(now=time.time(), keep_s=3600, but=frozenset({RunId("alive")}))
        assert sorted(home.run_folders()) == ["alive", "new"]
