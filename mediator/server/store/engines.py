"""Connects to SQLite and PostgreSQL, with timeouts, and decides which errors are transient.

StoreError             the database cannot be opened, read or written            (exit 2)
└── StoreAway          not now: it does not answer, is full or is busy           (exit 4)
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError as PoolTimeout,
)

from fedpilot.common.host.exit_codes import BAD_INPUT, UNREACHABLE

from ...errors import MediatorError

BUSY_S = 10
"""How long to wait for another process's transaction, and for a connection."""
STATEMENT_S = 30
"""How long PostgreSQL may work on a statement, and the link to it may be silent."""
SHOWN = 80
"""Characters of a malformed URL in an error."""
_AWAY_IN_SQLITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)
_AWAY_IN_POSTGRESQL = ("08", "25006", "40", "53", "55P03", "57", "58")
"""Prefixes of such codes: connections, read only, rollbacks, resources, locks, operators
(https://www.postgresql.org/docs/current/errcodes-appendix.html).
"""
_NO_SUCH = re.compile(r"authentication failed|does not exist|no pg_hba\.conf entry|role .* is not")
"""Refusals by a PostgreSQL server, which sends no code with them."""
_WANTED = "a store is sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


class StoreError(MediatorError):
    """The database cannot be opened, read or written."""

    exits_with = BAD_INPUT


class StoreAway(StoreError):
    """The database does not answer, is full or is busy: a retry may succeed."""

    exits_with = UNREACHABLE

    def __init__(self, message: str, why: str = "it does not answer") -> None:
        """`why` is the cause in words for users."""
        super().__init__(message)
        self.why = why


def engine_for(url: str) -> tuple[Engine, str]:
    """The engine, and the URL without its password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        raise StoreError(f"{_WANTED}; found {_without_password(url)!r}") from None
    name = parsed.render_as_string(hide_password=True)
    match parsed.get_backend_name():
        case "sqlite" if parsed.query:
            raise StoreError(f"{_WANTED}; a SQLite one takes no options, found {name}")
        case "sqlite" if parsed.database and parsed.database != ":memory:":
            return _sqlite(parsed), name
        case "postgresql" | "postgres":
            try:
                return _postgresql(parsed), name
            except ModuleNotFoundError as error:
                raise StoreError(
                    f"{name} needs psycopg: `pip install 'fedpilot[postgresql]'`"
                ) from error
    raise StoreError(f"{_WANTED}; found {name}")


def _without_password(url: str) -> str:
    """The parts of a malformed URL that cannot hold a password."""
    before, at, after = url.partition("?")[0].rpartition("@")
    scheme, colon, _ = before.partition("://")
    return f"{scheme if colon else ''}{colon}...@{after}"[:SHOWN] if at else after[:SHOWN]


def _sqlite(url: URL) -> Engine:
    if not Path(url.database or "").absolute().parent.is_dir():
        raise StoreError(f"{url}: unable to open it: it has no folder")
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": BUSY_S, "isolation_level": None},
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # The driver would begin a transaction only at its first write, after its reads.
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    return engine


def is_away(error: SQLAlchemyError) -> bool:
    """Whether a retry may succeed: the database is unreachable, full or busy."""
    if isinstance(error, PoolTimeout):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(cause, sqlite3.Error):
        code: int = getattr(cause, "sqlite_errorcode", 0)
        return code & 0xFF in _AWAY_IN_SQLITE
    if (code_ := getattr(cause, "sqlstate", None)) is not None:
        return str(code_).startswith(_AWAY_IN_POSTGRESQL)
    broken = isinstance(error, OperationalError | InterfaceError)
    return broken and not _NO_SUCH.search(str(cause))


def why_away(error: SQLAlchemyError) -> str:
    """Say why the database is away, in words for users."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", None) == "53100":
        return "its disk is full"
    return "others hold it" if code == sqlite3.SQLITE_BUSY else "it does not answer"


def patiently(act: Callable[[], object]) -> None:
    """Retry an act that SQLite refuses at once, despite its timeout, beside another connection.

    Changing the journal mode of a new file is one (https://www.sqlite.org/rescode.html#busy: no
    busy handler where waiting could deadlock).
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            act()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.001, 0.02))


def _postgresql(url: URL) -> Engine:
    defaults = {
        "connect_timeout": BUSY_S,
        "tcp_user_timeout": STATEMENT_S * 1000,
        "application_name": "fedpilot mediator",
        "options": f"-c statement_timeout={STATEMENT_S}s -c lock_timeout={BUSY_S}s",
    }
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args={key: value for key, value in defaults.items() if key not in url.query},
        hide_parameters=True,
        pool_pre_ping=True,
    )
