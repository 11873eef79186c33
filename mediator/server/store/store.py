"""Store: a mediator's sites, tokens, runs, events, audit log and traffic, in SQLite or PostgreSQL.

Every method is one short transaction; times are epoch seconds from the caller. With SQLite a commit
survives the death of a process, but a power cut may lose the last ones. Certificates are kept
beside the authority's key, not here.
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
"""The default limit of `events_after`."""


class Store:
    """One database; use it from one thread at a time."""

    def __init__(self, url: str) -> None:
        """Open `sqlite:///FILE` or `postgresql://...`; make or migrate its tables. StoreError."""
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
        """Write a site's record over its old one, whose data stays unless `with_data`."""
        row = asdict(site)
        changed = row if with_data else {key: row[key] for key in row if key != "data_json"}
        with self._writing() as connection:
            added = self._insert(SITES).values(row)
            connection.execute(added.on_conflict_do_update(index_elements=["name"], set_=changed))

    def sites(self) -> tuple[SiteRecord, ...]:
        """All sites by name, removed ones included."""
        found = [
            SiteRecord(**{**row, "wish": Wish(row["wish"]), "state": SiteState(row["state"])})
            for row in self._rows(select(SITES))
        ]
        return tuple(sorted(found, key=lambda site: site.name))

    # -- tokens -----------------------------------------------------------------------------------

    def add_token(
        self, digest: str, site: str, *, made_by: str, now: float, expires_at: float
    ) -> None:
        """Let a site join once, until `expires_at`, with the secret that has this SHA-256."""
        row = {"digest": digest, "site": site, "made_by": made_by}
        times = {"made_at": now, "expires_at": expires_at}
        with self._writing() as connection:
            connection.execute(insert(TOKENS).values(row | times))

    def void_tokens(self, site: str, *, now: float) -> int:
        """Expire all unused tokens of a site; return their number."""
        unused = (TOKENS.c.site == site, TOKENS.c.used_at.is_(None), TOKENS.c.expires_at > now)
        with self._writing() as connection:
            done = connection.execute(update(TOKENS).where(*unused).values(expires_at=now))
            return done.rowcount

    def use_token(
        self, digest: str, site: str, *, now: float, made_after: float = -math.inf
    ) -> None:
        """Use up a token; TokenRefused if it is used, expired, or not newer than `made_after`.

        Of several concurrent uses, in any processes, one succeeds.
        """
        with self._writing() as connection:
            query = select(TOKENS).where(TOKENS.c.site == site)
            rows = connection.execute(query).mappings().all()
            # Compare all, each in constant time, so that timing reveals no digest.
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
        """Add a run unless its id is stored already; return the stored run.

        RunExists if that has another config or owner, or differs in `interactive`.
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
        """The newest runs, or those submitted before run `after`, and how many are older still.

        Newest first, without their configs and asks, which may be large. None if run `after` does
        not exist.
        """
        place = tuple_(RUNS.c.submitted_at, RUNS.c.id)
        large = (RUNS.c.config_yaml, RUNS.c.ask_json)
        columns = [each for each in RUNS.columns if each not in large]
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
        runs = tuple(_run({**row, "config_yaml": "", "ask_json": ""}) for row in rows)
        return runs, int(there) - len(runs)

    def runs_in(self, states: Iterable[RunState]) -> tuple[RunRecord, ...]:
        """The runs in one of these states, in order of submission."""
        rows = self._rows(select(RUNS).where(RUNS.c.state.in_(list(states))))
        return tuple(sorted(map(_run, rows), key=lambda run: (run.submitted_at, run.id)))

    def last_starts(self) -> dict[str, float]:
        """When the last run of each owner began."""
        last = func.max(RUNS.c.started_at)
        rows = self._rows(select(RUNS.c.owner, last.label("at")).group_by(RUNS.c.owner))
        return {str(row["owner"]): float(row["at"]) for row in rows if row["at"] is not None}

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
        """Change a run's state if it is one of `among`; return whether it was.

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
        """Add an event of a run, or the federation (""); return its number, above all earlier."""
        row = {"run": run, "event_json": event_json, "at": now}
        with self._writing() as connection:
            number = connection.execute(insert(EVENTS).values(row).returning(EVENTS.c.number))
            return int(number.scalar_one())

    def events_after(
        self, run: str, number: int = 0, limit: int = MOST_EVENTS
    ) -> tuple[EventRecord, ...]:
        """The events of a run, or of the federation, after a number."""
        of_run = (EVENTS.c.run == run, EVENTS.c.number > number)
        query = select(EVENTS).where(*of_run).order_by(EVENTS.c.number).limit(limit)
        return tuple(EventRecord(**row) for row in self._rows(query))

    def forget_before(self, at: float) -> int:
        """Delete the federation's events and audit entries before a time; return their number."""
        old = (
            delete(EVENTS).where(EVENTS.c.run == "", EVENTS.c.at < at),
            delete(AUDIT).where(AUDIT.c.at < at),
        )
        with self._writing() as connection:
            return sum(connection.execute(each).rowcount for each in old)

    def record_audit(self, entry: AuditEntry) -> None:
        """Add to the audit log, from which only `forget_before` deletes."""
        # A refused request may hold any text, and PostgreSQL rejects this character.
        row = {
            key: value.replace("\0", "\ufffd") if isinstance(value, str) else value
            for key, value in asdict(entry).items()
        }
        with self._writing() as connection:
            connection.execute(insert(AUDIT).values(row))

    def audit(self, last: int) -> tuple[AuditEntry, ...]:
        """The last entries of the audit log, oldest first."""
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
        """Keep the database's message, without the statement and its values."""
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
