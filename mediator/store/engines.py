"""How SQLite and PostgreSQL are reached: transactions that hold, waits that have an end."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from .errors import StoreError

BUSY_S = 10
"""How long a transaction waits for that of another process, and a connection to be made."""
STATEMENT_S = 30
"""How long PostgreSQL may work on one statement, and a link to it may be silent."""
_WANTED = "a store is sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


def engine_for(url: str) -> tuple[Engine, str]:
    """The engine, and what to call the database without telling a password."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError(f"{_WANTED}; found something else") from None
    name = parsed.render_as_string(hide_password=True)
    match parsed.get_backend_name():
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


def _sqlite(url: URL) -> Engine:
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": BUSY_S, "isolation_level": None},
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # The driver's own way begins a transaction at its first write, after what it has read.
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    return engine


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
