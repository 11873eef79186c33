"""What becomes of what is asked of a store, and written to it, while that is away."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fedpilot.mediator.server.store import StoreAway, StoreError, database as module
from fedpilot.mediator.server.store.database import Database


class ShakyStore:
    """A store that remembers texts in order, and is away when it is told so."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.is_away = False
        self.tried = threading.Semaphore(0)

    def check(self) -> None:
        self.tried.release()
        if self.is_away:
            raise StoreAway("connection refused")

    def add(self, text: str) -> int:
        self.check()
        if text == "wrong":
            raise StoreError("no such column")
        self.texts.append(text)
        return len(self.texts)

    def close(self) -> None:
        pass


def using(test: Callable[[Database, ShakyStore], Any]) -> ShakyStore:
    """Run a test; the store is there at its end, or not."""
    store = ShakyStore()

    async def main() -> None:
        made: Any = store
        database = Database(made, again_s=0.01)
        try:
            await asyncio.wait_for(test(database, store), 60)
        finally:
            database.close()

    asyncio.run(main())
    return store


async def back(database: Database) -> None:
    while database.away:
        await asyncio.sleep(0.005)


def test_what_is_asked_while_it_is_away_fails_at_once_and_is_never_done() -> None:
    async def test(database: Database, store: ShakyStore) -> None:
        assert await database.ask(store.add, "before") == 1
        store.is_away = True
        for _ in range(2):
            with pytest.raises(StoreAway, match=r"its database has been away for \d+ s"):
                await database.ask(store.add, "meanwhile")
        store.is_away = False
        await back(database)
        assert await database.ask(store.add, "after") == 2

    assert using(test).texts == ["before", "after"]


def test_what_is_to_be_written_is_written_in_its_order_before_anything_else() -> None:
    async def test(database: Database, store: ShakyStore) -> None:
        store.is_away = True
        await database.accept(store.add, "a")
        insisting = asyncio.create_task(database.insist(store.add, "b"))
        await asyncio.sleep(0)
        database.write(store.add, "c")
        await database.keep(store.add, "d")
        assert not insisting.done()
        assert store.texts == []
        store.is_away = False
        assert await insisting == 2
        await back(database)
        await database.ask(store.add, "e")
        (absence,) = database.absences()
        assert (absence.kept, absence.dropped, absence.reason) == (4, 0, "connection refused")
        assert database.absences() == []

    assert using(test).texts == ["a", "b", "c", "d", "e"]


def test_what_somebody_insisted_on_is_written_though_nobody_waits_any_more() -> None:
    async def test(database: Database, store: ShakyStore) -> None:
        store.is_away = True
        insisting = asyncio.create_task(database.insist(store.add, "the end of a run"))
        await asyncio.sleep(0.02)
        insisting.cancel()
        store.is_away = False
        await asyncio.to_thread(store.tried.acquire)
        await back(database)

    assert using(test).texts == ["the end of a run"]


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param({"MOST_KEPT": 2}, id="so many writes"),
        pytest.param({"MOST_KEPT_CHARACTERS": 3}, id="so many characters"),
    ],
)
def test_more_than_is_kept_is_dropped_and_counted_but_no_state(
    bound: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bound.items():
        monkeypatch.setattr(module, name, value)

    async def test(database: Database, store: ShakyStore) -> None:
        store.is_away = True
        for text in ("a", "b", "cc", "dd"):
            await database.accept(store.add, text)
        await database.keep(store.add, "state")
        store.is_away = False
        await back(database)
        (absence,) = database.absences()
        assert (absence.kept, absence.dropped) == (3, 2)

    assert using(test).texts == ["a", "b", "state"]


def test_what_the_store_refuses_for_good_does_not_hold_up_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(database: Database, store: ShakyStore) -> None:
        with pytest.raises(StoreError, match="no such column"):
            await database.accept(store.add, "wrong")
        store.is_away = True
        database.write(store.add, "wrong")
        database.write(store.add, "right")
        await database.keep(store.add, "state")
        store.is_away = False
        await back(database)

    assert using(test).texts == ["right", "state"]
    assert "no such column" in caplog.text


def test_an_absence_is_one_line_of_the_log_and_its_end_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(database: Database, store: ShakyStore) -> None:
        store.is_away = True
        for number in range(50):
            database.write(store.add, str(number))
        await database.keep(store.add, "state")
        for _ in range(3):
            await asyncio.to_thread(store.tried.acquire)
        store.is_away = False
        await back(database)

    with caplog.at_level(logging.INFO):
        using(test)
    said = [each.getMessage() for each in caplog.records if "database" in each.getMessage()]
    assert len(said) == 2, said
    assert said[0].startswith("the database is away")
    assert "51 writes were made up for, 0 are lost" in said[1]


@pytest.mark.parametrize("returns", [True, False])
def test_at_the_end_a_store_that_is_away_is_tried_once_more(
    returns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(database: Database, store: ShakyStore) -> None:
        store.is_away = True
        await database.keep(store.add, "state")
        store.is_away = not returns

    texts = using(test).texts
    assert texts == (["state"] if returns else [])
    assert ("1 writes are lost" in caplog.text) is not returns
