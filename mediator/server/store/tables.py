"""The tables of a mediator's database, and the migrations of older formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    inspect,
    select,
    text,
)

from .engines import StoreError

_LARGE = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite auto-increments only INTEGER columns, which hold 64 bits there."""
METADATA = MetaData()

SITES = Table(
    "sites",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("wish", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("since", Float(53), nullable=False),
    Column("reason", Text, nullable=False),
    Column("first_joined", Float(53), nullable=False),
    Column("agent", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("data_json", Text, nullable=False),
    Column("removed", Boolean, nullable=False),
)
TOKENS = Table(
    "tokens",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("site", Text, nullable=False, index=True),
    Column("made_by", Text, nullable=False),
    Column("made_at", Float(53), nullable=False),
    Column("expires_at", Float(53), nullable=False),
    Column("used_at", Float(53)),
)
RUNS = Table(
    "runs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("config_yaml", Text, nullable=False),
    Column("interactive", Boolean, nullable=False),
    Column("state", Text, nullable=False, index=True),
    Column("restarts", Integer, nullable=False),
    Column("submitted_at", Float(53), nullable=False),
    Column("started_at", Float(53)),
    Column("ended_at", Float(53)),
    Column("digest", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("shared", Boolean, nullable=False),
    Column("priority_class", Text, nullable=False),
    Column("ask_json", Text, nullable=False),
)
EVENTS = Table(
    "events",
    METADATA,
    Column("number", _LARGE, primary_key=True, autoincrement=True),
    Column("at", Float(53), nullable=False),
    Column("run", Text, nullable=False),
    Column("event_json", Text, nullable=False),
    Index("events_of_run", "run", "number"),
    sqlite_autoincrement=True,
)
AUDIT = Table(
    "audit",
    METADATA,
    Column("number", _LARGE, primary_key=True, autoincrement=True),
    Column("at", Float(53), nullable=False),
    Column("who", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("act", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    sqlite_autoincrement=True,
)
TRAFFIC = Table(
    "traffic",
    METADATA,
    Column("run", Text, primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("site", Text, primary_key=True),
    Column("direction", Text, primary_key=True),
    Column("purpose", Text, primary_key=True),
    Column("bytes", _LARGE, nullable=False),
)

Step = Callable[[Connection], None]


def _share_runs(connection: Connection) -> None:
    """Format 2: only the owner and admins read results unless a run is shared."""
    if "shared" not in {each["name"] for each in inspect(connection).get_columns("runs")}:
        connection.execute(
            text("ALTER TABLE runs ADD COLUMN shared BOOLEAN NOT NULL DEFAULT FALSE")
        )


def _queue_runs(connection: Connection) -> None:
    """Format 3: runs wait in line, by what they ask for and their priority class."""
    there = {each["name"] for each in inspect(connection).get_columns("runs")}
    for name in ("priority_class", "ask_json"):
        if name not in there:
            connection.execute(text(f"ALTER TABLE runs ADD COLUMN {name} TEXT NOT NULL DEFAULT ''"))


STEPS: tuple[Step, ...] = (METADATA.create_all, _share_runs, _queue_runs)
"""Step n migrates format n to format n + 1; an empty database has format 0.

The first step makes today's tables, so later steps must check what there is to change.
"""

_MIGRATING = 0x66_65_64_70
"""PostgreSQL's advisory lock for making tables."""


def migrate(connection: Connection, steps: Sequence[Step] = STEPS) -> None:
    """Migrate a database to this version's format; StoreError if that is impossible."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_MIGRATING)))
    connection.execute(text("CREATE TABLE IF NOT EXISTS format (number INTEGER NOT NULL)"))
    found = connection.execute(text("SELECT number FROM format")).scalar()
    strangers = set(inspect(connection).get_table_names()) & set(METADATA.tables)
    if found is None and strangers:
        raise StoreError(
            f"it has tables called {', '.join(sorted(strangers))} and names no format, "
            "so they are not a mediator's; give the mediator a database of its own"
        )
    if found is not None and found > len(steps):
        raise StoreError(
            f"it has format {found}, and this fedpilot knows formats up to {len(steps)}; "
            "use the version that wrote it, or a later one"
        )
    for step in steps[found or 0 :]:
        step(connection)
    if found is None:
        connection.execute(text("INSERT INTO format VALUES (:number)"), {"number": len(steps)})
    else:
        connection.execute(text("UPDATE format SET number = :number"), {"number": len(steps)})
