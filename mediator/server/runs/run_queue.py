"""RunQueue: lets runs begin when it is their turn; `core/run_queue` decides.

It knows which runs wait and which are at work, asks the sites' entries what is held there, and
decides again whenever that may have changed. A restarted mediator fills it again from the store.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.scheduling.priority_classes import CLASSES, DEFAULT_CLASS
from fedpilot.fabric.core.scheduling.snapshot import Scale
from fedpilot.fabric.spec.queue_file import QueueFile
from fedpilot.fabric.spec.queue_table import QueueTable

from ...core.health import SiteState
from ...core.rules.roles import Role
from ...core.run_queue import (
    DEFAULT_PROJECT,
    POOL,
    BadAsk,
    ProjectQueues,
    RunAsk,
    RunAtWork,
    RunQueueSettings,
    RunWait,
    SiteRoom,
    WaitingRun,
    decide,
)
from ...errors import BadRequest, RequestRefused
from ...wire.messages import RunId
from ..orders.site_table import SiteEntry, SiteTable
from ..store import RunRecord

log = logging.getLogger(__name__)

COMING = (SiteState.JOINING, SiteState.SUSPECT)
"""States of sites that will soon be ready or lost."""
LARGEST_ASK = 1 << 16
"""Characters."""
Turn = tuple[str, ...]
"""The sites at which a run begins; empty if they are not known."""


@dataclass(slots=True)
class _Line:
    """One run that waits."""

    run: WaitingRun
    turn: asyncio.Future[Turn]
    tried: frozenset[str] = frozenset()
    """The sites of its last attempt."""


@dataclass(eq=False)
class RunQueue:
    """The queue of one mediator."""

    _settings: RunQueueSettings
    _clock: Callable[[], float]
    _sites: SiteTable
    _file: QueueFile | None = None
    """The projects that share the sites; None if runs name any."""
    _open: bool = False
    """Whether all runs of the previous mediator are in line again."""
    _waiting: dict[RunId, _Line] = field(default_factory=dict)
    _at_work: dict[RunId, RunAtWork] = field(default_factory=dict)
    """Also ended runs, until no site holds anything for them."""
    _refusals: dict[RunId, int] = field(default_factory=dict)
    """How often the sites of a run were full, in a row."""
    _began: dict[str, float] = field(default_factory=dict)
    """When each user's last run began."""
    _waits: dict[RunId, RunWait] = field(default_factory=dict)
    _seen: tuple[Any, ...] = ()
    """What the last decision was made of."""
    _data: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """By site, its data as it was told, and the names of its data sets."""

    def __post_init__(self) -> None:
        file = self._file or QueueFile.unlimited()
        scale = Scale.of(dict.fromkeys(sorted(file.resources), 1.0))
        self._table = QueueTable(file, scale, (POOL,))
        self._projects = ProjectQueues(scale=scale, queues=self._table.queues)

    def check(self, ask_json: str, priority_class: str, user: str, role: Role) -> None:
        """Raise BadRequest or RequestRefused for a run that may not wait here."""
        ask = _checked(ask_json)
        if self._file is None:
            if priority_class and priority_class not in CLASSES:
                raise BadRequest(
                    f"{priority_class[:80]!r} is no priority class; there are {', '.join(CLASSES)}"
                )
            return
        ask = ask or RunAsk()
        class_ = priority_class or ask.priority_class
        if why := self._file.refusal(ask.project, user, (str(role),), class_):
            raise RequestRefused(why)

    def open(self, began: Mapping[str, float]) -> None:
        """Begin to give turns; `began` is when each user's last run did."""
        self._open = True
        self._began = dict(began)
        self.look()

    def wait(self, record: RunRecord) -> asyncio.Future[Turn]:
        """Put a run in line; the future is done when it may begin."""
        run = RunId(record.id)
        priority, preemptible = self._level(record)
        waiting = WaitingRun(
            run=run,
            user=record.owner,
            priority=priority,
            submitted_at=record.submitted_at,
            ask=_ask_of(record),
            preemptible=preemptible,
        )
        line = _Line(waiting, asyncio.get_running_loop().create_future())
        if refusals := self._refusals.get(run, 0):
            pause_s = self._settings.pause_s(refusals)
            again_at = self._clock() + pause_s
            line.run = replace(waiting, refused=True, not_before=again_at)
            line.tried = self._at_work[run].sites if run in self._at_work else frozenset()
        self._at_work.pop(run, None)
        self._waiting[run] = line
        self.look()
        return line.turn

    def goes_on(self, record: RunRecord) -> None:
        """Count a run as at work that began before this mediator did."""
        run = RunId(record.id)
        _, preemptible = self._level(record)
        self._at_work[run] = RunAtWork(
            run=run, user=record.owner, ask=_ask_of(record), preemptible=preemptible
        )

    def complete(self, run: RunId) -> None:
        """Record that a run has its gang; until it ends, its sites count as taken.

        At its end, it releases them one after the other: they come free together.
        """
        self._refusals.pop(run, None)
        if (found := self._at_work.get(run)) is not None:
            held = frozenset(self._held(run))
            self._at_work[run] = replace(found, sites=held, reserving=False, alone=False)

    def refused(self, run: RunId) -> None:
        """Record that the sites of a run were full although they seemed to have room."""
        self._refusals[run] = self._refusals.get(run, 0) + 1
        if (found := self._at_work.get(run)) is not None:
            sites = found.sites or frozenset(map(str, self._held(run)))
            self._at_work[run] = replace(found, sites=sites)

    def end(self, run: RunId) -> None:
        """Take out a run that has ended; those that paused may ask again where it was."""
        self._waiting.pop(run, None)
        self._waits.pop(run, None)
        self._refusals.pop(run, None)
        found = self._at_work.get(run)
        if found is not None:
            freed = {*found.sites, *self._held(run)}
            self._at_work[run] = replace(found, sites=frozenset(), reserving=False, leaving=True)
            for line in self._waiting.values():
                if not line.tried or line.tried & freed:
                    line.run = replace(line.run, not_before=0.0)
        self.look()

    def wait_of(self, run: str) -> tuple[RunWait, int] | None:
        """A waiting run's place and what it waits for, and how many wait."""
        found = self._waits.get(RunId(run))
        return None if found is None else (found, len(self._waits))

    def look(self) -> None:
        """Decide, and give the turns."""
        self._forget()
        if not self._open or not self._waiting:
            return
        now = self._clock()
        waiting = [line.run for line in self._waiting.values()]
        at_work = [self._where(each) for each in self._at_work.values()]
        sites = [_room(entry, self._data_of(entry)) for entry in self._sites if _counts(entry)]
        starved = [now - run.submitted_at > self._settings.starvation_s for run in waiting]
        paused = [run.not_before > now for run in waiting]
        seen = (waiting, at_work, sites, starved, paused)
        if seen == self._seen and not any(paused):
            return
        self._seen = seen
        found = decide(waiting, at_work, sites, self._settings, now, self._began, self._projects)
        self._waits = {RunId(each.run): each for each in found.waits}
        if found.begins:
            self._seen = ()  # the same facts, seen again, are of another attempt
        for begin in found.begins:
            run = RunId(begin.run)
            line = self._waiting.pop(run)
            self._began[line.run.user] = now
            self._at_work[run] = RunAtWork(
                run=run,
                user=line.run.user,
                ask=line.run.ask,
                sites=frozenset(begin.sites),
                reserving=True,
                alone=line.run.refused,
                preemptible=line.run.preemptible,
            )
            log.info("run %s has its turn: %s", run, begin.reason)
            if not line.turn.done():
                line.turn.set_result(begin.sites)

    def _level(self, record: RunRecord) -> tuple[int, bool]:
        """A run's priority, and whether its project may use more than its quota for it."""
        name = class_of(record)
        if self._file is None:
            return CLASSES.get(name, CLASSES[DEFAULT_CLASS]), True
        if name not in self._file.class_names:  # of an earlier file
            name = DEFAULT_CLASS
        return self._table.priority_and_preemptible(name, 0, None)

    def _held(self, run: RunId) -> list[str]:
        """The sites that hold a run's part, or have yet to release it."""
        return [
            entry.name
            for entry in self._sites
            if _counts(entry) and (run in entry.holding or run in entry.owed)
        ]

    def _where(self, run: RunAtWork) -> RunAtWork:
        return replace(run, sites=run.sites | frozenset(self._held(RunId(run.run))))

    def _forget(self) -> None:
        """Drop ended runs for which no site holds anything."""
        over = [run for run, each in self._at_work.items() if each.leaving and not self._held(run)]
        for run in over:
            del self._at_work[run]

    def _data_of(self, entry: SiteEntry) -> frozenset[str]:
        told, names = self._data.get(entry.name, ("", frozenset()))
        if told != entry.data_json:
            names = _names_in(entry.data_json)
            self._data[entry.name] = entry.data_json, names
        return names


def _checked(ask_json: str) -> RunAsk | None:
    """What a run asks for. BadRequest."""
    if len(ask_json) > LARGEST_ASK:
        raise BadRequest(f"what a run asks for has at most {LARGEST_ASK} characters")
    try:
        return _parsed(ask_json)
    except (BadAsk, ValueError, RecursionError) as error:
        raise BadRequest(f"that is not what a run can ask for: {error!s:.200}") from None


def class_of(record: RunRecord) -> str:
    """The priority class of a run in line."""
    ask = _ask_of(record)
    return record.priority_class or ("" if ask is None else ask.priority_class) or DEFAULT_CLASS


def project_of(record: RunRecord) -> str:
    ask = _ask_of(record)
    return ("" if ask is None else ask.project) or DEFAULT_PROJECT


def queue_json(found: tuple[RunWait, int]) -> dict[str, Any]:
    """A run's place in line for users."""
    wait, of = found
    holders = [{"site": each.site, "run": each.run, "user": each.user} for each in wait.holders]
    return {"place": wait.place, "of": of, "waits_for": wait.reason, "holders": holders}


@lru_cache(1024)
def _parsed(ask_json: str) -> RunAsk | None:
    return RunAsk.from_json(json.loads(ask_json)) if ask_json else None


def _ask_of(record: RunRecord) -> RunAsk | None:
    try:
        return _parsed(record.ask_json)
    except ValueError:  # from a version with other checks
        return None


def _counts(entry: SiteEntry) -> bool:
    state = entry.standing.state
    return state is SiteState.READY or state in COMING


def _room(entry: SiteEntry, data: frozenset[str]) -> SiteRoom:
    return SiteRoom(
        name=entry.name,
        total=Resources.of(entry.capacity.total),
        ready=entry.standing.state is SiteState.READY,
        data=data,
    )


def _names_in(data_json: str) -> frozenset[str]:
    try:
        found = json.loads(data_json or "{}")
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(map(str, found)) if isinstance(found, dict) else frozenset()
