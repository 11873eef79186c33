"""What a store has acknowledged stays, and it outlasts locks and lost connections."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
import sqlalchemy

from fedpilot.mediator.server.store import Store
from fedpilot.mediator.server.store.engines import patiently
from stores import PARIS, engine_of

_WRITER = """
import sys
from fedpilot.mediator.server.store import Store
store = Store(sys.argv[1])
while True:
    print(store.append_event("r1", "{}", now=0.0), flush=True)
"""


@pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)
def test_what_was_acknowledged_outlives_the_process(url: str, store: Store) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, url], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    with closing(writer.stdout):
        told = [int(writer.stdout.readline()) for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.stdout if line.endswith("\n")]
    writer.wait(60)
    assert {each.number for each in store.events_after("r1")} >= set(told)
    assert store.append_event("r1", "{}", now=1.0) > max(told)


def test_a_connection_that_the_server_has_ended_is_made_anew(postgresql_url: str) -> None:
    with Store(postgresql_url) as store:
        store.put_site(PARIS)
        end = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        engine = engine_of(postgresql_url)
        with engine.begin() as connection:
            assert connection.execute(sqlalchemy.text(end)).rowcount == 1
        engine.dispose()
        assert store.sites() == (PARIS,)


def test_sqlite_writes_ahead_so_that_readers_never_wait(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mediator.sqlite'}"
    with Store(url) as store, Store(url) as other, store._writing() as connection:
        connection.execute(sqlalchemy.text("DELETE FROM sites"))
        assert other.sites() == ()


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        pytest.param(sqlite3.SQLITE_BUSY, 3, id="another connection is there"),
        pytest.param(sqlite3.SQLITE_CORRUPT, 1, id="waiting does not help"),
    ],
)
def test_what_sqlite_refuses_at_once_is_tried_again(code: int, calls: int) -> None:
    tried = 0

    def act() -> None:
        nonlocal tried
        tried += 1
        if tried < 3:
            error = sqlite3.OperationalError("refused")
            error.sqlite_errorcode = code
            raise error

    with suppress(sqlite3.OperationalError):
        patiently(act)
    assert tried == calls
