"""What an agent keeps in its folder: who it is, what was spent, and who works there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedpilot.mediator.agent import BadHome, HomeBusy, SiteHome
from fedpilot.mediator.agent.traffic import Spending
from fedpilot.mediator.core.policy import ByteCaps, Policy
from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.wire import BadMessage, OrderId, RunId, SiteName

PARIS = SiteName("paris")
DAILY = Policy(bytes_per_day=ByteCaps(to_site=100), bytes_per_round=ByteCaps(from_site=50))
IN, OUT = Direction.TO_SITE, Direction.FROM_SITE


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


def charge(
    books: Spending, way: Direction, nbytes: int, *, key: str, day: int = 0, round_: int = 1
) -> str:
    id = OrderId(RunId("r"), key)
    now = day * 86_400 + 5
    refused = books.charge(DAILY, way, id, round_number=round_, nbytes=nbytes, now=now)
    return "" if refused is None else refused.rule


def test_bytes_are_booked_by_day_and_round_and_survive_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    assert charge(Spending(path), IN, 60, key="a") == ""
    assert charge(Spending(path), IN, 60, key="b") == "bytes_per_day.to_site"
    assert charge(Spending(path), IN, 40, key="c") == ""
    assert charge(Spending(path), IN, 100, key="d", day=1) == ""
    assert charge(Spending(path), OUT, 50, key="e", day=1) == ""
    assert charge(Spending(path), OUT, 1, key="f", day=1) == "bytes_per_round.from_site"
    assert charge(Spending(path), OUT, 50, key="g", day=1, round_=2) == ""


def test_an_order_is_booked_once_whichever_agent_works_on_it(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    assert charge(Spending(path), OUT, 50, key="a") == ""
    assert charge(Spending(path), OUT, 50, key="a") == "", "its successor brings the same answer"
    assert charge(Spending(path), OUT, 51, key="a") == "bytes_per_round.from_site"
    assert charge(Spending(path), OUT, 1, key="b") == "bytes_per_round.from_site"


def test_the_round_of_an_order_is_known_to_the_next_agent(tmp_path: Path) -> None:
    path, id = tmp_path / "traffic.json", OrderId(RunId("r"), "a")
    Spending(path).take(DAILY, id, 7)
    books = Spending(path)
    assert books.round_of(id) == 7
    assert books.round_of(OrderId(RunId("r"), "b")) == 0
    assert charge(books, OUT, 50, key="a", round_=7) == ""
    assert charge(books, OUT, 1, key="b", round_=7) == "bytes_per_round.from_site"


def test_what_is_refused_is_not_spent(tmp_path: Path) -> None:
    books = Spending(tmp_path / "traffic.json")
    assert charge(books, IN, 101, key="a") == "bytes_per_day.to_site"
    assert charge(books, IN, 100, key="a") == ""


def test_damaged_books_are_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    path.write_text('{"day": "x"}')
    assert charge(Spending(path), IN, 100, key="a") == ""


def test_without_limits_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    books = Spending(path)
    id = OrderId(RunId("r"), "a")
    books.take(Policy(), id, 1)
    assert books.charge(Policy(), IN, id, round_number=1, nbytes=9, now=0.0) is None
    assert not path.exists()
