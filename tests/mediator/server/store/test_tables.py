"""A store makes its tables, migrates those of an older format, and refuses what is not its own."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy

from fedpilot.mediator.server.store import RunState, Store, StoreError
from fedpilot.mediator.server.store.tables import STEPS, migrate
from stores import AT_ONCE, PARIS, RUN, engine_of, execute


def test_all_is_there_when_it_is_opened_again(url: str) -> None:
    with Store(url) as store:
        store.put_site(PARIS)
        store.add_run(RUN)
    store.close()
    with Store(url) as again:
        assert (again.sites(), again.runs_in(RunState)) == ((PARIS,), (RUN,))


def test_stores_that_open_an_empty_database_at_once_make_its_tables_once(url: str) -> None:
    begin = threading.Barrier(AT_ONCE)

    def one(_: int) -> int:
        begin.wait(60)
        with Store(url) as mine:
            return mine.append_event("", "{}", now=0.0)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert len(set(pool.map(one, range(AT_ONCE), timeout=60))) == AT_ONCE


def later_step(connection: sqlalchemy.Connection) -> None:
    connection.execute(sqlalchemy.text("ALTER TABLE sites ADD COLUMN colour TEXT DEFAULT 'blue'"))


def test_an_older_format_is_migrated_and_keeps_what_it_holds(url: str) -> None:
    with Store(url) as store:
        store.put_site(PARIS)
    engine = engine_of(url)
    for _ in range(2):  # the second time, there is nothing left to do
        with engine.begin() as connection:
            migrate(connection, (*STEPS, later_step))
    with engine.begin() as connection:
        rows = connection.execute(sqlalchemy.text("SELECT name, colour FROM sites")).all()
        found = connection.execute(sqlalchemy.text("SELECT number FROM format")).all()
    engine.dispose()
    assert [tuple(row) for row in rows] == [("paris", "blue")]
    assert [tuple(row) for row in found] == [(len(STEPS) + 1,)]


def test_a_migration_that_fails_leaves_the_older_format(url: str) -> None:
    def broken(connection: sqlalchemy.Connection) -> None:
        later_step(connection)
        connection.execute(sqlalchemy.text("ALTER TABLE no_such_table ADD COLUMN x TEXT"))

    with Store(url) as store:
        store.put_site(PARIS)
        with (
            pytest.raises(StoreError, match="no_such_table"),
            store._writing() as connection,
        ):
            migrate(connection, (*STEPS, broken))
        assert store.sites() == (PARIS,)
    with Store(url) as again:
        assert again.sites() == (PARIS,)


def test_runs_of_before_they_could_be_shared_are_their_owners(url: str) -> None:
    with Store(url) as store:
        store.add_run(replace(RUN, shared=True))
    execute(url, "ALTER TABLE runs DROP COLUMN shared", "UPDATE format SET number = 1")
    with Store(url) as store:
        assert store.run(RUN.id) == RUN
        shared = replace(RUN, id="r2", shared=True)
        assert store.add_run(shared) == shared


def test_runs_of_before_they_waited_in_line_have_the_default_class(url: str) -> None:
    with Store(url) as store:
        store.add_run(replace(RUN, priority_class="build", ask_json="{}"))
    dropped = [f"ALTER TABLE runs DROP COLUMN {name}" for name in ("priority_class", "ask_json")]
    execute(url, *dropped, "UPDATE format SET number = 2")
    with Store(url) as store:
        assert store.run(RUN.id) == RUN
        waits = replace(RUN, id="r2", priority_class="build", ask_json='{"workers": 2}')
        assert store.add_run(waits) == waits == store.run("r2")


def test_a_database_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It was written by commit 11fbf80."""
    path = tmp_path / "mediator.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript(Path(__file__).with_name("mediator-of-0.1.sql").read_text())
    with Store(f"sqlite:///{path}") as store:
        assert (store.sites(), store.runs_in(RunState)) == ((PARIS,), (RUN,))
        (event,), (audited,) = store.events_after("r1", 0), store.audit(10)
        assert (event.at, event.event_json) == (13.5, '{"event": "round_started"}')
        assert (audited.who, audited.act, audited.what) == ("alice", "submit", "r1")


def test_a_newer_format_is_refused_by_name(url: str) -> None:
    Store(url).close()
    newer = len(STEPS) + 1
    execute(url, f"UPDATE format SET number = {newer}")
    with pytest.raises(StoreError, match=f"has format {newer}.* knows formats up to {newer - 1}"):
        Store(url)


def test_tables_that_are_not_a_mediators_are_left_alone(url: str) -> None:
    execute(url, "CREATE TABLE runs (id TEXT)", "INSERT INTO runs VALUES ('theirs')")
    with pytest.raises(StoreError, match=r"tables called runs .* a database of its own"):
        Store(url)
    engine = engine_of(url)
    assert sqlalchemy.inspect(engine).get_table_names() == ["runs"]
    engine.dispose()


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("mysql://root@db/fedpilot", id="another database"),
        pytest.param("mediator.sqlite", id="a path"),
        pytest.param("sqlite://", id="memory, which would not last"),
        pytest.param("sqlite:///:memory:", id="memory by name"),
        pytest.param("", id="nothing"),
        pytest.param("postgresql://fedpilot:hunter2@db:port/fedpilot", id="a port that is none"),
        pytest.param("fedpilot:hunter2@db/fedpilot", id="no scheme"),
        pytest.param("sqlite:///mediator.sqlite?mode=ro", id="options of SQLite"),
    ],
)
def test_what_is_no_store_is_refused_by_its_url(url: str) -> None:
    with pytest.raises(StoreError, match=r"a store is sqlite:///FILE or postgresql://") as found:
        Store(url)
    assert url.rpartition("@")[2].partition(":memory:")[0] in str(found.value)
    assert "hunter2" not in str(found.value)


def test_options_of_a_file_are_refused_as_such() -> None:
    with pytest.raises(StoreError, match=r"takes no options, found sqlite:.*mode=ro"):
        Store("sqlite:///mediator.sqlite?mode=ro")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and long enough to be looked at\n" * 40)
    with pytest.raises(StoreError, match=r"notes.txt: file is not a database"):
        Store(f"sqlite:///{path}")


def test_a_server_that_is_not_there_is_named_in_a_line_and_without_its_password() -> None:
    with pytest.raises(StoreError, match=r"postgresql://fedpilot:\*\*\*@127.0.0.1:1/x: ") as found:
        Store("postgresql://fedpilot:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in str(found.value)
