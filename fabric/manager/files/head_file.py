"""HeadFile: a head's record in a folder that outlives Ray's session (decision 38).

A thread writes the file durably, so that a slow home folder does not delay answers. Without it
the manager works, but a new head knows nothing about this one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpilot.common.host.folders import state_home
from fedpilot.common.host.whole_files import replacing

from ...core.cluster_state import Entry
from ...core.ray_clusters.heads import HeadRecord, Remembered, gone_of, remembered, succeed, update
from ...core.records import ClusterId

FORMAT = 1
READ_S = 5.0
"""How long reading the record from the home folder may take."""
log = logging.getLogger(__name__)


def state_folder() -> Path:
    """The folder of the records."""
    return state_home() / "ray"


def file_of(folder: Path, hostname: str, address: str) -> Path:
    """The record's file for the heads of one machine at one address."""
    return folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', f'{hostname}-{address}')}.json"


def began(session: str, now: float) -> float:
    """The start of a session of Ray, from its name; `now` if the name has no time."""
    found = re.match(r"session_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)_", session)
    if found is None:
        return now
    return time.mktime(time.strptime(found[1], "%Y-%m-%d_%H-%M-%S"))


def read(path: Path) -> HeadRecord | None:
    """The stored record; None if there is none. OSError; ValueError for any other content."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    try:
        if (format := document.pop("format")) != FORMAT:
            raise ValueError(f"{path} is no record of format {FORMAT}, but of format {format!r}")
        many: dict[str, Any] = {
            key: tuple(Remembered(**each) for each in document.pop(key)) for key in _MANY
        }
        return HeadRecord(**document, **many)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of a head: {error!r}") from error


_MANY = ("clusters", "gone")


def write(path: Path, record: HeadRecord) -> None:
    """Write the record durably; an empty record has no file. OSError."""
    if record.empty:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(path, 0o600, durable=True) as aside:
        aside.write_text(json.dumps({"format": FORMAT, **asdict(record)}), encoding="utf-8")


class HeadFile:
    """The record of this manager's head."""

    def __init__(self, path: Path, record: HeadRecord, written: HeadRecord | None) -> None:
        self.record = record
        self._path = path
        self._written = written
        """The record on disk, or the last one whose writing failed."""
        self._kept: tuple[Entry, ...] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._failed = False

    @classmethod
    async def open(cls, path: Path, session: str, now: float) -> HeadFile | None:
        """Read the record; None, with a warning, if that fails: the file then stays as it is."""
        try:
            found = await asyncio.wait_for(asyncio.to_thread(read, path), READ_S)
        except (OSError, ValueError) as error:
            log.warning("what was on this Ray cluster before is not known: %s", error)
            return None
        return cls(path, succeed(found, session, began(session, now)), found)

    async def keep(
        self,
        entries: Mapping[ClusterId, Entry],
        now: float,
        *,
        drop: Collection[str] = (),
        wait_s: float = 0.0,
    ) -> None:
        """Record these virtual clusters if they have changed, and forget the lost ones in `drop`.

        Returns after at most `wait_s`; the writing continues.
        """
        kept = tuple(entries.values())
        if kept != self._kept or drop:
            self._kept = kept
            self.record = update(self.record, remembered(kept), now, drop)
        if self.record != self._written:
            if self._writing is None or self._writing.done():
                self._writing = asyncio.ensure_future(self._write())
            await asyncio.wait([self._writing], timeout=wait_s)

    async def _write(self) -> None:
        while (record := self.record) != self._written:
            try:
                await asyncio.to_thread(write, self._path, record)
                self._failed = False
            except OSError as error:
                if not self._failed:
                    log.warning("a new head will not know what is on this one: %s", error)
                self._failed = True
            self._written = record

    def document(self, there: Collection[str], now: float) -> dict[str, Any]:
        """The head's start and the lost virtual clusters, as JSON values."""
        gone = gone_of(self.record, there, now)
        return {
            "began": self.record.began,
            "gone": [{**asdict(each), "detached": each.owner is None} for each in gone],
        }
