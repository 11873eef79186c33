"""Store: what a mediator remembers, in SQLite or PostgreSQL, written before anybody is told.

Sites with what is wished of them, tokens, runs, events, the audit log, traffic. Every method is
one short transaction; times are epoch seconds, which the caller passes in. Within SQLite nothing
committed is lost when a process dies; a power cut may cost the last moments. Certificates are not
here: they are remembered where the authority's key is.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self

from sqlalchemy import (
    Connection,
    RowMapping,
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
from ...core.traffic import Direction, Flow
from ...errors import RunExists
from ...identity.errors import TokenRefused
from .engines import engine_for, is_away, why_away
from .errors import StoreAway, StoreError
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
        """Write something that changes nothing. StoreAway while nothing can be written."""
        with self._writing() as connection:
            connection.execute(text("UPDATE format SET number = number"))

    # -- sites ------------------------------------------------------------------------------------

    def put_site(self, site: SiteRecord, *, with_data: bool = True) -> None:
        """Write a site, in the place of what was known of it.

        What it tells of its data stays as it was unless `with_data`, or the site is new.
        """
        row = asdict(site)
        changed = row if with_data else {key: row[key] for key in row if key != "data_json"}
        with self._writing() as connection:
            added = self._insert(SITES).values(row)
            connection.execute(added.on_conflict_do_update(index_elements=["name"], set_=changed))

    def site(self, name: str) -> SiteRecord | None:
        with self._reading() as connection:
            query = select(SITES).where(SITES.c.name == name)
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else _site(row)

    def sites(self) -> tuple[SiteRecord, ...]:
        """All sites by name, those that were removed too."""
        with self._reading() as connection:
            rows = connection.execute(select(SITES)).mappings().all()
        return tuple(sorted((_site(row) for row in rows), key=lambda site: site.name))

    # -- tokens -----------------------------------------------------------------------------------

    def add_token(
        self, digest: str, site: str, *, made_by: str, now: float, expires_at: float
    ) -> None:
        """Let a site join once with the secret of this SHA-256, until a moment."""
        row = {
            "digest": digest,
            "site": site,
            "made_by": made_by,
            "made_at": now,
            "expires_at": expires_at,
        }
        with self._writing() as connection:
            connection.execute(insert(TOKENS).values(row))

    def void_tokens(self, site: str, *, now: float) -> int:
        """Have all tokens of a site that were not used be good for nothing; how many they were."""
        unused = (TOKENS.c.site == site, TOKENS.c.used_at.is_(None), TOKENS.c.expires_at > now)
        with self._writing() as connection:
            done = connection.execute(update(TOKENS).where(*unused).values(expires_at=now))
            return done.rowcount

    def use_token(
        self, digest: str, site: str, *, now: float, made_after: float = -math.inf
    ) -> None:
        """Use up a token of a site; TokenRefused unless it is there, unused and in time.

        It was made after a moment, and did not end yet. Of several that come at once with one
        token, in whatever process, one succeeds.
        """
        with self._writing() as connection:
            query = select(TOKENS).where(TOKENS.c.site == site)
            rows = connection.execute(query).mappings().all()
            # All are compared, each in constant time, so that time tells nothing of the digests.
            found = [row for row in rows if _same(row["digest"], digest)]
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
        """Remember a run, once: asked again with its id, what is known of it comes back.

        RunExists if that is a run of another config or owner.
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
        with self._reading() as connection:
            query = select(RUNS).where(RUNS.c.id == id)
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else _run(row)

    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, the first submitted first."""
        return self.runs_in(RunState)

    def newest_runs(self, most: int, after: str = "") -> tuple[tuple[RunRecord, ...], int]:
        """The newest runs, or those submitted before run `after`; and how many there are beyond.

        The newest first, without their configs, which may be large. None where there is no such
        run.
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
        with self._reading() as connection:
            query = select(RUNS).where(RUNS.c.state.in_(list(states)))
            rows = connection.execute(query).mappings().all()
        return tuple(
            sorted((_run(row) for row in rows), key=lambda run: (run.submitted_at, run.id))
        )

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

        What belongs to a state (reason, end, digest) changes with it; the start stays unless given.
        `restarted` counts one more restart of its coordinator.
        """
        values: dict[str, Any] = {
            "state": state,
            "reason": reason,
            "ended_at": ended_at,
            "digest": digest,
        }
        if started_at is not None:
            values["started_at"] = started_at
        if restarted:
            values["restarts"] = RUNS.c.restarts + 1
        asked = update(RUNS).where(RUNS.c.id == id, RUNS.c.state.in_(list(among)))
        with self._writing() as connection:
            return connection.execute(asked.values(values)).rowcount == 1

    def remove_run(self, id: str, among: Collection[RunState]) -> bool:
        """Forget a run with its events and its traffic, if its state is one of `among`."""
        asked = delete(RUNS).where(RUNS.c.id == id, RUNS.c.state.in_(list(among)))
        with self._writing() as connection:
            if connection.execute(asked).rowcount != 1:
                return False
            connection.execute(delete(EVENTS).where(EVENTS.c.run == id))
            connection.execute(delete(TRAFFIC).where(TRAFFIC.c.run == id))
            return True

    # -- events and the audit log -----------------------------------------------------------------

    def append_event(self, run: str, event_json: str, *, now: float) -> int:
        """Remember an event of a run, or of the federation ("").

        Its number is higher than that of any before.
        """
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
        with self._reading() as connection:
            return tuple(EventRecord(**row) for row in connection.execute(query).mappings())

    def forget_before(self, at: float) -> int:
        """Forget the federation's events and the audit before a time; how many there were.

        A run's own events stay as long as the run.
        """
        old = (
            delete(EVENTS).where(EVENTS.c.run == "", EVENTS.c.at < at),
            delete(AUDIT).where(AUDIT.c.at < at),
        )
        with self._writing() as connection:
            return sum(connection.execute(each).rowcount for each in old)

    def record_audit(self, entry: AuditEntry) -> None:
        """Add to the audit log; only age takes from it, where the mediator's retention says so."""
        # What was refused may be anything, and PostgreSQL takes any character but this one.
        row = {
            key: value.replace("\0", "\ufffd") if isinstance(value, str) else value
            for key, value in asdict(entry).items()
        }
        with self._writing() as connection:
            connection.execute(insert(AUDIT).values(row))

    def audit(self, last: int) -> tuple[AuditEntry, ...]:
        """The last entries of the audit log, the oldest of them first."""
        query = select(AUDIT).order_by(AUDIT.c.number.desc()).limit(last)
        with self._reading() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(_audit(row) for row in reversed(rows))

    # -- traffic ----------------------------------------------------------------------------------

    def add_traffic(self, run: str, rows: Iterable[tuple[Flow, int]]) -> None:
        """Add bytes to what is known of a run's flows."""
        sums: Counter[Flow] = Counter()
        for flow, nbytes in rows:
            sums[flow] += nbytes
        if not sums:
            return
        added = self._insert(TRAFFIC)
        more = added.on_conflict_do_update(
            index_elements=list(TRAFFIC.primary_key.columns),
            set_={"bytes": TRAFFIC.c.bytes + added.excluded.bytes},
        )
        with self._writing() as connection:
            connection.execute(
                more,
                [
                    {
                        "run": run,
                        "round": flow.round_number,
                        "site": flow.site,
                        "direction": flow.direction,
                        "purpose": flow.purpose,
                        "bytes": nbytes,
                    }
                    for flow, nbytes in sorted(sums.items())
                ],
            )

    def traffic(self, run: str) -> list[tuple[Flow, int]]:
        """All flows of a run with their bytes, sorted."""
        with self._reading() as connection:
            query = select(TRAFFIC).where(TRAFFIC.c.run == run)
            rows = connection.execute(query).mappings().all()
        return sorted((_flow(row), int(row["bytes"])) for row in rows)

    # -- transactions -----------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that nobody else's comes between; all of it is kept, or nothing."""
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

    def _explained(self, error: SQLAlchemyError) -> StoreError:
        """In the words of the database, without the statement and what was to be written."""
        cause = str(getattr(error, "orig", None) or error) or type(error).__name__
        text_ = f"{self._name}: {' '.join(cause.split())}"
        return StoreAway(text_, why_away(error)) if is_away(error) else StoreError(text_)

    def _insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        if self._engine.dialect.name == "postgresql":
            return postgresql.insert(table)
        return sqlite.insert(table)


def _site(row: RowMapping) -> SiteRecord:
    return SiteRecord(**{**row, "wish": Wish(row["wish"]), "state": SiteState(row["state"])})


def _run(row: Mapping[Any, Any]) -> RunRecord:
    return RunRecord(**{**row, "state": RunState(row["state"])})


def _audit(row: RowMapping) -> AuditEntry:
    known: Mapping[str, Any] = {key: value for key, value in row.items() if key != "number"}
    return AuditEntry(**{**known, "role": Role(row["role"])})


def _flow(row: RowMapping) -> Flow:
    return Flow(row["round"], row["site"], Direction(row["direction"]), row["purpose"])


def _what_was_asked(run: RunRecord) -> tuple[str, str, bool]:
    return run.owner, run.config_yaml, run.interactive


def _same(known: str, shown: str) -> bool:
    return hmac.compare_digest(known.encode(), shown.encode(errors="replace"))
