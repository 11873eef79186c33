"""RayClusterMetrics: reads a site's store from time to time, and gives its metrics away.

It only reads, so that it needs no lease. Its counters begin with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric, start_http_server, write_to_textfile

from ...core.ray_clusters.metering import ClusterMeter, MeteredCluster, MeteredEvent, metered
from ...errors import SpecError
from ..declarations.documents import is_managed, summary
from ..declarations.records import UNDECLARED, RayClusterUid, Revision
from ..declarations.store import RayClusterStore
from .families import ExposedCluster, families

LOOK_S = 1.0
"""How often the store is read."""
PATIENCE_S = 10.0
"""How long a caller may be silent."""
log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class RayClusterMetrics:
    """The metrics of a site's declared Ray clusters: a collector of prometheus_client."""

    store: RayClusterStore
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._meters: dict[RayClusterUid, ClusterMeter] = {}
        self._events: dict[RayClusterUid, Revision] = {}
        """The last event of each cluster that was counted."""
        self._families = families((), managed=False)
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(self)

    def collect(self) -> list[Metric]:
        """What the last look has found; any thread may ask."""
        return self._families

    async def run(self, file: Path | None, listen: tuple[str, int] | None) -> None:
        """Keep a file, and answer at an address, until cancelled. OSError; StoreUnusable."""
        with ExitStack() as undo:
            if listen is not None:
                undo.enter_context(_answering(*listen, self.registry))
                log.info("metrics are at http://%s:%d/metrics", *listen)
            while True:
                await asyncio.to_thread(self.look)
                if file is not None:
                    await asyncio.to_thread(self._write, file)
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
        self._families = families(found, managed=managed)

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

    def _write(self, file: Path) -> None:
        """Replace a file, for a collector that reads it whole; a full disk ends nothing."""
        try:
            write_to_textfile(str(file), self.registry)
        except OSError as error:
            log.warning("the metrics cannot be written: %s", error)


def check_outlets(file: Path | None, listen: tuple[str, int] | None) -> None:
    """SpecError if the file cannot be written, or the address cannot be listened at."""
    empty = CollectorRegistry()
    try:
        if file is not None:
            write_to_textfile(str(file), empty)
    except OSError as error:
        raise SpecError(f"--metrics-file {file}: it cannot be written: {error}") from error
    if listen is not None:
        try:
            with _answering(*listen, empty):
                pass
        except (OSError, UnicodeError) as error:
            where = f"{listen[0]}:{listen[1]}"
            raise SpecError(f"--metrics-listen {where}: it cannot be used: {error}") from error


@contextmanager
def _answering(host: str, port: int, registry: CollectorRegistry) -> Iterator[None]:
    """Answer with a registry's metrics while the block runs. OSError, or UnicodeError of a name."""
    server, _ = start_http_server(port, host, registry)
    handler: Any = server.RequestHandlerClass
    handler.timeout = PATIENCE_S  # without it, a caller that says nothing keeps a thread for good
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
