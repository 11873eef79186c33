"""RayClusterMetrics: reads a site's store from time to time, and has its metrics as text.

It only reads, so that it needs no lease. Its counters begin with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpilot.common.host.whole_files import replacing

from ...core.ray_clusters.metering import ClusterMeter, MeteredCluster, MeteredEvent, metered
from ...errors import SpecError
from ..declarations.documents import is_managed, summary
from ..declarations.records import UNDECLARED, RayClusterUid, Revision
from ..declarations.store import RayClusterStore
from .exposition import ExposedCluster, exposition
from .listener import listening

LOOK_S = 1.0
"""How often the store is read."""
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class RayClusterMetrics:
    """The metrics of a site's declared Ray clusters."""

    store: RayClusterStore
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._meters: dict[RayClusterUid, ClusterMeter] = {}
        self._events: dict[RayClusterUid, Revision] = {}
        """The last event of each cluster that was counted."""
        self.text = exposition((), managed=False)

    async def run(self, file: Path | None, listen: tuple[str, int] | None) -> None:
        """Keep a file, and answer at an address, until cancelled. OSError; StoreUnusable."""
        async with AsyncExitStack() as undo:
            if listen is not None:
                port = await undo.enter_async_context(listening(*listen, lambda: self.text))
                log.info("metrics are at http://%s:%d/metrics", listen[0], port)
            while True:
                await asyncio.to_thread(self.look)
                if file is not None:
                    await asyncio.to_thread(_write, file, self.text)
                await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Read the store once. StoreUnusable."""
        managed, found = is_managed(self.store), []
        stored = self.store.declarations()
        for each in stored:
            told = summary(self.store, each, managed)
            meter = metered(self._meters.get(each.uid), self._seen(told), self.clock())
            self._meters[each.uid] = meter
            state = "deleting" if each.deleted else told["state"]
            groups = told["groups"]
            found.append(ExposedCluster(name=each.name, state=state, groups=groups, meter=meter))
        there = {each.uid for each in stored}
        for uid in self._meters.keys() - there:
            del self._meters[uid]
            self._events.pop(uid, None)
        self.text = exposition(found, managed=managed)

    def _seen(self, told: dict[str, Any]) -> MeteredCluster:
        """What is seen of a cluster; the events are read after its status."""
        uid, groups = told["uid"], told["groups"]
        events = self.store.events(uid, self._events.get(uid, UNDECLARED))
        if events:
            self._events[uid] = events[-1].id
        return MeteredCluster(
            revision=told["revision"],
            written_s=told["at"],
            seen_revision=told["seen_revision"],
            state=told["state"],
            ready={name: each["ready"] for name, each in groups.items()},
            idle={name: each["idle"] for name, each in groups.items() if "idle" in each},
            events=tuple(MeteredEvent(at_s=each.at, kind=each.kind) for each in events),
        )


def check_outlets(file: Path | None, listen: tuple[str, int] | None) -> None:
    """SpecError if the file cannot be written, or the address cannot be listened at."""
    try:
        if file is not None:
            with replacing(file, 0o644) as new:
                new.write_text(exposition((), managed=False), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"--metrics-file {file}: it cannot be written: {error}") from error
    if listen is not None:
        try:
            asyncio.run(_try(*listen))
        except OSError as error:
            where = f"{listen[0]}:{listen[1]}"
            raise SpecError(f"--metrics-listen {where}: it cannot be used: {error}") from error


async def _try(host: str, port: int) -> None:
    async with listening(host, port, str):
        pass


def _write(file: Path, text: str) -> None:
    """Replace a file, for a collector that reads it whole; a full disk ends nothing."""
    try:
        with replacing(file, 0o644) as new:
            new.write_text(text, encoding="utf-8")
    except OSError as error:
        log.warning("the metrics cannot be written: %s", error)
