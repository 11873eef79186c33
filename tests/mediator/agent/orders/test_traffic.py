"""A site's own limits hold whatever the mediator orders again, and whichever agent is asked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fedpilot.mediator.agent.orders import traffic
from fedpilot.mediator.agent.orders.traffic import SiteTraffic
from fedpilot.mediator.core.rules.policy import ByteCaps, Policy
from fedpilot.mediator.core.rules.policy_decision import Refused
from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.messages import OrderId, RunId

RUN = RunId("r")
DAILY = Policy(bytes_per_day=ByteCaps(to_site=100), bytes_per_round=ByteCaps(from_site=50))
IN, OUT = Direction.TO_SITE, Direction.FROM_SITE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traffic.json"


def blob(name: str, size: int) -> Blob:
    return Blob(hashlib.sha256(name.encode()).hexdigest(), size)


def rule(refused: Refused | None) -> str:
    return "" if refused is None else refused.rule


def begin(
    books: SiteTraffic, way: Direction, nbytes: int, name: str, *, day: int = 0, round_: int = 1
) -> str:
    """The rule that is broken when a blob of that name is about to cross."""
    now = day * 86_400 + 5
    return rule(books.begin(DAILY, way, RUN, blob(name, nbytes), round_number=round_, now=now))


def cross(books: SiteTraffic, way: Direction, name: str, nbytes: int) -> str:
    """The rule that is broken once so many bytes more of it have crossed."""
    return rule(books.cross(lambda: DAILY, way, blob(name, 1).digest, nbytes, now=5.0))


def test_bytes_are_booked_by_day_and_round_and_survive_the_agent(path: Path) -> None:
    assert begin(SiteTraffic(path), IN, 60, "a") == ""
    assert begin(SiteTraffic(path), IN, 60, "b") == "bytes_per_day.to_site"
    assert begin(SiteTraffic(path), IN, 40, "c") == ""
    assert begin(SiteTraffic(path), IN, 100, "d", day=1) == ""
    assert begin(SiteTraffic(path), OUT, 50, "e", day=1) == ""
    assert begin(SiteTraffic(path), OUT, 1, "f", day=1) == "bytes_per_round.from_site"
    assert begin(SiteTraffic(path), OUT, 50, "g", day=1, round_=2) == ""


def test_a_blob_that_is_on_its_way_is_booked_once_whichever_agent_brings_it(path: Path) -> None:
    assert begin(SiteTraffic(path), OUT, 50, "a") == ""
    assert begin(SiteTraffic(path), OUT, 50, "a") == "", "the next agent goes on with it"
    assert begin(SiteTraffic(path), OUT, 51, "a") == "bytes_per_round.from_site"
    assert begin(SiteTraffic(path), OUT, 1, "b") == "bytes_per_round.from_site"


def test_orders_that_wait_for_one_model_book_it_once(path: Path) -> None:
    books = SiteTraffic(path)
    for _ in range(3):
        assert begin(books, IN, 100, "model") == ""
    for _ in range(2):
        books.end(IN, blob("model", 100).digest)
        assert begin(books, IN, 100, "model") == "", "somebody still waits for it"
        books.end(IN, blob("model", 100).digest)


@pytest.mark.parametrize("way", [IN, OUT])
def test_what_crosses_again_after_its_end_is_booked_again(path: Path, way: Direction) -> None:
    books = SiteTraffic(path)
    assert begin(books, way, 50, "a") == ""
    books.end(way, blob("a", 50).digest)
    again = begin(books, way, 50, "a")
    assert (again == "") is (way is IN)
    if way is IN:
        books.end(way, blob("a", 50).digest)
        assert begin(books, way, 50, "a") == "bytes_per_day.to_site"


def test_bytes_that_cross_again_meanwhile_are_booked_again(path: Path) -> None:
    books = SiteTraffic(path)
    assert begin(books, IN, 50, "a") == ""
    assert [cross(books, IN, "a", 25) for _ in range(4)] == [""] * 4, "twice in all"
    assert cross(books, IN, "a", 1) == "bytes_per_day.to_site"
    assert begin(SiteTraffic(path), IN, 1, "b") == "bytes_per_day.to_site", "it is in the file"


def test_bytes_that_nobody_booked_are_not_counted(path: Path) -> None:
    assert cross(SiteTraffic(path), IN, "a", 1_000) == ""


def test_the_round_of_an_order_is_known_to_the_next_agent_until_it_is_done(path: Path) -> None:
    id = OrderId(RUN, "a")
    SiteTraffic(path).take(DAILY, id, 7)
    books = SiteTraffic(path)
    assert books.round_of(id) == 7
    assert books.round_of(OrderId(RUN, "b")) == 0
    books.done(id)
    assert books.round_of(id) == 0
    books.take(DAILY, id, 8)
    assert books.round_of(id) == 8, "the same key is another order then"


def test_many_small_rounds_do_not_make_a_full_one_forgotten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "KEPT", 3)
    books = SiteTraffic(path)
    assert begin(books, OUT, 50, "full", round_=1) == ""
    for number in range(2, 9):
        assert begin(books, OUT, 1, f"small {number}", round_=number) == ""
    books = SiteTraffic(path)
    assert begin(books, OUT, 1, "more", round_=1) == "bytes_per_round.from_site"
    assert begin(books, OUT, 1, "more", round_=4) == "bytes_per_round.from_site", "they share"
    assert begin(books, OUT, 49, "more", round_=8) == "", "a late one has its own"
    assert begin(books, OUT, 50, "next", round_=9) == ""


def test_the_books_do_not_grow_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "KEPT", 3)
    books, size = SiteTraffic(path), 0
    for number in range(1, 40):
        books.take(DAILY, OrderId(RunId(f"r{number}"), "k"), number)
        model = blob(str(number), 0)
        run = RunId(f"r{number}")
        assert books.begin(DAILY, OUT, run, model, round_number=number, now=5.0) is None
        books.end(OUT, model.digest)
        size = size if number > 20 else path.stat().st_size
    assert path.stat().st_size <= size + 10


def test_what_is_refused_is_not_spent(path: Path) -> None:
    books = SiteTraffic(path)
    assert begin(books, IN, 101, "a") == "bytes_per_day.to_site"
    assert begin(books, IN, 100, "a") == ""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"day": "x"}', id="a day of nonsense"),
        pytest.param('{"day": 0, "today": {}, "rounds": {"r/x": {}}}', id="a round of nonsense"),
        pytest.param('{"day": 0, "today": {}, "rounds": {}, "crossings": {"a": 1}}', id="a number"),
        pytest.param("", id="nothing"),
    ],
)
def test_damaged_books_are_begun_anew(path: Path, text: str) -> None:
    path.write_text(text)
    books = SiteTraffic(path)
    assert begin(books, IN, 100, "a") == ""
    assert begin(books, IN, 1, "b") == "bytes_per_day.to_site"


def test_without_limits_nothing_is_written(path: Path) -> None:
    books = SiteTraffic(path)
    books.take(Policy(), OrderId(RUN, "a"), 1)
    assert books.begin(Policy(), IN, RUN, blob("a", 9), round_number=1, now=0.0) is None
    assert books.cross(Policy, IN, blob("a", 9).digest, 99, now=0.0) is None
    assert not path.exists()
