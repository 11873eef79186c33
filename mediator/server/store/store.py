"""Store: a mediator's sites, tokens, runs, events, audit log and traffic, in SQLite or PostgreSQL.

Every method is one short transaction; callers pass times in, as epoch seconds. SQLite loses nothing
committed when a process dies, but a power cut may cost the last moments. Certificates are not here:
they are kept beside the authority's key.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self

from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    Table,
    delete,
    func,
    insert,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from ...core.health import SiteState, Wish
from ...core.rules.roles import Role
from ...core.traffic import Flow
from ...errors import RunExists
from ...identity.errors import TokenRefused
from .engines import StoreAway, StoreError, engine_for, is_away, why_away
from .records import AuditEntry, EventRecord, RunRecord, RunState, SiteRecord
from .tables import AUDIT, EVENTS, RUNS, SITES, TOKENS, TRAFFIC, migrate

MOST_EVENTS = 1_000
"""Of `events_after`, unless told otherwise."""


class Store:
    """One database. A context manager; its methods may be called by any one thread at a time."""

    def __init__(self, url: str) -> None:
        """Open `sqlite:///FILE` or `postgresql://...`, making or migrating its tables.

        StoreError where that cannot be done.
        """
        self._engine, self._name = engine_for(url)
        try:
            with self._writing() as connection:
                migrate(connection)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; may be called twice."""
        self._engine.dispose()

    def check(self) -> None:
        """Make a write that changes nothing. StoreAway."""
        with self._writing() as connection:
            connection.execute(text("UPDATE format SET number = number"))

    # -- sites ------------------------------------------------------------------------------------

    def put_site(self, site: SiteRecord, *, with_data: bool = True) -> None:
        """Write a site in the place of its record before, whose data stays unless `with_data`."""
        row = asdict(site)
        changed = row if with_data else {key: row[key] for key in row if key != "data_json"}
        with self._writing() as connection:
            added = self._insert(SITES).values(row)
            connection.execute(added.on_conflict_do_update(index_elements=["name"], set_=changed))

    def sites(self) -> tuple[SiteRecord, ...]:
        """All sites by name, those that were removed too."""
        found = [
            SiteRecord(**{**row, "wish": Wish(row["wish"]), "state": SiteState(row["state"])})
            for row in self._rows(select(SITES))
        ]
        return tuple(sorted(found, key=lambda site: site.name))

    # -- tokens -----------------------------------------------------------------------------------

    def add_token(
        self, digest: str, site: str, *, made_by: str, now: float, expires_at: float
    ) -> None:
        """Let a site join once with the secret of this SHA-256, until `expires_at`."""
        row = {"digest": digest, "site": site, "made_by": made_by}
        times = {"made_at": now, "expires_at": expires_at}
        with self._writing() as connection:
            connection.execute(insert(TOKENS).values(row | times))

    def void_tokens(self, site: str, *, now: float) -> int:
        """Expire all unused tokens of a site; how many they were."""
        unused = (TOKENS.c.site == site, TOKENS.c.used_at.is_(None), TOKENS.c.expires_at > now)
        with self._writing() as connection:
            done = connection.execute(update(TOKENS).where(*unused).values(expires_at=now))
            return done.rowcount

    def use_token(
        self, digest: str, site: str, *, now: float, made_after: float = -math.inf
    ) -> None:
        """Use up a token that is unused, not expired, and made after `made_after`. TokenRefused.

        Of several uses at once, in any processes, one succeeds.
        """
        with self._writing() as connection:
            query = select(TOKENS).where(TOKENS.c.site == site)
            rows = connection.execute(query).mappings().all()
            # All are compared, each in constant time, so that timing reveals no digest.
            shown = digest.encode(errors="replace")
            found = [r for r in rows if hmac.compare_digest(r["digest"].encode(), shown)]
            if not found:
                raise TokenRefused(f"the join token is none that was made for site {site}")
            (token,) = found
            if token["expires_at"] <= now:
                raise TokenRefused(
                    f"the join token of site {site} ended {now - token['expires_at']:.0f} s ago; "
                    "`fedpilot site token` makes a new one"
                )
            if token["made_at"] <= made_after:
                raise TokenRefused(
                    f"the join token of site {site} was made before a certificate of that site was "
                    "revoked; `fedpilot site token` makes a new one"
                )
            mine = TOKENS.c.digest == token["digest"]
            used = update(TOKENS).where(mine, TOKENS.c.used_at.is_(None)).values(used_at=now)
            if connection.execute(used).rowcount != 1:
                raise TokenRefused(
                    f"the join token of site {site} was used already; "
                    "`fedpilot site token` makes a new one"
                )

    # -- runs -------------------------------------------------------------------------------------

    def add_run(self, run: RunRecord) -> RunRecord:
        """Add a run, once; the stored run, also if it was added before.

        RunExists if that has another config or owner.
        """
        with self._writing() as connection:
            added = self._insert(RUNS).values(asdict(run))
            connection.execute(added.on_conflict_do_nothing(index_elements=["id"]))
            query = select(RUNS).where(RUNS.c.id == run.id)
            found = _run(connection.execute(query).mappings().one())
        if _what_was_asked(found) != _what_was_asked(run):
            raise RunExists(
                f"there is another run called {run.id}, of another config or owner; "
                "a new run needs an id of its own"
            )
        return found

    def run(self, id: str) -> RunRecord | None:
        rows = self._rows(select(RUNS).where(RUNS.c.id == id))
        return _run(rows[0]) if rows else None

    def newest_runs(self, most: int, after: str = "") -> tuple[tuple[RunRecord, ...], int]:
        """The newest runs, or those submitted before run `after`; and how many are older still.

        The newest first, without their configs, which may be large. No run if there is no `after`.
        """
        place = tuple_(RUNS.c.submitted_at, RUNS.c.id)
        columns = [each for each in RUNS.columns if each is not RUNS.c.config_yaml]
        query, count = select(*columns), select(func.count()).select_from(RUNS)
        with self._reading() as connection:
            if after:
                last = select(*place.clauses).where(RUNS.c.id == after)
                found = connection.execute(last).one_or_none()
                if found is None:
                    return (), 0
                query, count = query.where(place < found), count.where(place < found)
            newest = query.order_by(RUNS.c.submitted_at.desc(), RUNS.c.id.desc()).limit(most)
            rows = connection.execute(newest).mappings().all()
            there = connection.execute(count).scalar_one()
        runs = tuple(_run({**row, "config_yaml": ""}) for row in rows)
        return runs, int(there) - len(runs)

    def runs_in(self, states: Iterable[RunState]) -> tuple[RunRecord, ...]:
        """The runs in one of these states, the first submitted first."""
        rows = self._rows(select(RUNS).where(RUNS.c.state.in_(list(states))))
        return tuple(sorted(map(_run, rows), key=lambda run: (run.submitted_at, run.id)))

    def set_run_state(
        self,
        id: str,
        state: RunState,
        *,
        among: Collection[RunState],
        reason: str = "",
        started_at: float | None = None,
        ended_at: float | None = None,
        digest: str = "",
        restarted: bool = False,
    ) -> bool:
        """Change a run's state if it is one of `among`; whether it was.

        `reason`, `ended_at` and `digest` belong to the state and change with it. `restarted` counts
        one more restart of the coordinator.
        """
        values: dict[str, Any] = {"state": state, "reason": reason, "digest": digest}
        values["ended_at"] = ended_at
        if started_at is not None:
            values["started_at"] = started_at
        if restarted:
            values["restarts"] = RUNS.c.restarts + 1
        asked = update(RUNS).where(RUNS.c.id == id, RUNS.c.state.in_(list(among)))
        with self._writing() as connection:
            return connection.execute(asked.values(values)).rowcount == 1

    def remove_run(self, id: str, among: Collection[RunState]) -> bool:
        """Delete a run with its events and traffic, if its state is one of `among`."""
        asked = delete(RUNS).where(RUNS.c.id == id, RUNS.c.state.in_(list(among)))
        with self._writing() as connection:
            if connection.execute(asked).rowcount != 1:
                return False
            connection.execute(delete(EVENTS).where(EVENTS.c.run == id))
            connection.execute(delete(TRAFFIC).where(TRAFFIC.c.run == id))
            return True

    # -- events and the audit log -----------------------------------------------------------------

    def append_event(self, run: str, event_json: str, *, now: float) -> int:
        """Add an event of a run, or of the federation (""); its number, higher than any before."""
        row = {"run": run, "event_json": event_json, "at": now}
        with self._writing() as connection:
            number = connection.execute(insert(EVENTS).values(row).returning(EVENTS.c.number))
            return int(number.scalar_one())

    def events_after(
        self, run: str, number: int = 0, limit: int = MOST_EVENTS
    ) -> tuple[EventRecord, ...]:
        """The next events of a run, or of the federation, after one of a number."""
        of_run = (EVENTS.c.run == run, EVENTS.c.number > number)
        query = select(EVENTS).where(*of_run).order_by(EVENTS.c.number).limit(limit)
        return tuple(EventRecord(**row) for row in self._rows(query))

    def forget_before(self, at: float) -> int:
        """Delete the federation's events and the audit before a time; how many there were."""
        old = (
            delete(EVENTS).where(EVENTS.c.run == "", EVENTS.c.at < at),
            delete(AUDIT).where(AUDIT.c.at < at),
        )
        with self._writing() as connection:
            return sum(connection.execute(each).rowcount for each in old)

    def record_audit(self, entry: AuditEntry) -> None:
        """Add to the audit log, from which only `forget_before` deletes."""
        # A refused request may hold any text, and PostgreSQL takes all characters but this one.
        row = {
            key: value.replace("\0", "\ufffd") if isinstance(value, str) else value
            for key, value in asdict(entry).items()
        }
        with self._writing() as connection:
            connection.execute(insert(AUDIT).values(row))

    def audit(self, last: int) -> tuple[AuditEntry, ...]:
        """The last entries of the audit log, the oldest of them first."""
        columns = [each for each in AUDIT.columns if each is not AUDIT.c.number]
        rows = self._rows(select(*columns).order_by(AUDIT.c.number.desc()).limit(last))
        return tuple(AuditEntry(**{**row, "role": Role(row["role"])}) for row in reversed(rows))

    # -- traffic ----------------------------------------------------------------------------------

    def add_traffic(self, run: str, rows: Iterable[tuple[Flow, int]]) -> None:
        """Add bytes to the flows of a run."""
        values = [
            {
                "run": run,
                "round": flow.round_number,
                "site": flow.site,
                "direction": flow.direction,
                "purpose": flow.purpose,
                "bytes": nbytes,
            }
            for flow, nbytes in sorted(rows)
        ]
        if not values:
            return
        added = self._insert(TRAFFIC)
        more = added.on_conflict_do_update(
            index_elements=list(TRAFFIC.primary_key.columns),
            set_={"bytes": TRAFFIC.c.bytes + added.excluded.bytes},
        )
        with self._writing() as connection:
            connection.execute(more, values)

    # -- transactions -----------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from its beginning."""
        engine = self._engine.execution_options(begin="BEGIN IMMEDIATE")
        try:
            with engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._explained(error) from error
        except StoreError as error:
            raise type(error)(f"{self._name}: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._explained(error) from error

    def _rows(self, query: Select[Any]) -> Sequence[RowMapping]:
        with self._reading() as connection:
            return connection.execute(query).mappings().all()

    def _explained(self, error: SQLAlchemyError) -> StoreError:
        """In the database's words, without the statement and its values."""
        cause = str(getattr(error, "orig", None) or error) or type(error).__name__
        text_ = f"{self._name}: {' '.join(cause.split())}"
        return StoreAway(text_, why_away(error)) if is_away(error) else StoreError(text_)

    def _insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        if self._engine.dialect.name == "postgresql":
            return postgresql.insert(table)
        return sqlite.insert(table)


def _run(row: Mapping[Any, Any]) -> RunRecord:
    return RunRecord(**{**row, "state": RunState(row["state"])})


def _what_was_asked(run: RunRecord) -> tuple[str, str, bool]:
    return run.owner, run.config_yaml, run.interactive
