"""Retaining: every hour removes runs and records that the mediator's retention drops."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...core.storage.retention import DAY_S, EndedRun, Retention, outlived
from ...errors import MediatorError
from ..store import RunState
from ..store.database import Database
from .run_states import ENDED
from .runs import Runs

log = logging.getLogger(__name__)

EVERY_S = 3_600.0
FOR_RETENTION = "the mediator's retention"
"""Named in place of a user in removals."""


@dataclass(frozen=True)
class Retaining:
    """The retention of one mediator."""

    _rules: Retention
    _runs: Runs
    _database: Database
    _clock: Callable[[], float] = time.time

    async def keep(self) -> None:
        """Apply the retention every hour, until cancelled."""
        while True:
            try:
                await self.look()
            except (MediatorError, OSError) as error:
                log.warning("what is kept no longer could not be removed: %s", error)
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Apply the retention once. MediatorError, OSError."""
        await asyncio.to_thread(self._runs.folders.sweep)
        if not self._rules:
            return
        now, store = self._clock(), self._database.store
        records = await self._database.ask(store.runs_in, ENDED)
        ended = [
            EndedRun(
                id=each.id,
                ended_at=each.ended_at or now,
                nbytes=await asyncio.to_thread(_bytes_below, self._runs.folders.of(each.id)),
                finished=each.state is RunState.FINISHED,
            )
            for each in records
        ]
        for run, reason in outlived(ended, now, self._rules):
            await self._runs.remove(run, who=FOR_RETENTION, reason=reason)
        if self._rules.days is not None:
            before = now - self._rules.days * DAY_S
            count = await self._database.ask(store.forget_before, before)
            if count:
                log.info("removed %d events and entries of the audit of long ago", count)


def _bytes_below(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(place, name)).st_size
        for place, _, names in os.walk(folder)
        for name in names
        if os.path.lexists(os.path.join(place, name))
    )
