"""Connects a process of a Ray cluster to the manager, and reports to it which work has ended.

Its cache belongs to one connection, from `ray.init` to `ray.shutdown`: the next is another job.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..core.records import ProcessId, WorkId
from ..manager.rpc import hang_up
from .promises import KEEP_S, Promises
from .virtual_clusters import VirtualClusters

HEARTBEAT_S = 5.0
"""Seconds after which a process with work reports that it is alive."""

POLL_S = 0.05
"""How long a look waits for the end of the oldest tasks before it checks others."""

PAUSE_S = 0.2
"""The pause after a failed look: Ray is shutting down, or the manager is restarting."""

FAREWELL_S = 1.0
"""How long to wait for the manager to receive the last report of a connection to Ray."""

LEISURE, LEISURE_S = 4, 0.02
"""The pause after a look, in multiples of its CPU time and at most, to keep submission fast."""

WINDOW = 1000
"""How many tasks are checked together: checking a thousand costs Ray a millisecond."""

_forgets: list[Callable[[], None]] = []


class ReporterChannel(Protocol):
    """What a reporter needs from Ray and the manager."""

    def up(self) -> bool:
        """Whether this process is still connected to the same Ray."""

    def ended(self, refs: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """Wait until one of these results exists, or time is up; return those that exist."""

    def call(self, method: str, /, *args: Any, timeout_s: float = ...) -> Any:
        """Call the manager; raises if it does not answer."""


class Reporter:
    """Reports to the manager which of this process's work has ended, and forgets that work.

    Work mostly ends in submission order, so a look checks the oldest and a part of the rest.
    """

    def __init__(self, owner: ProcessId, line: ReporterChannel) -> None:
        self.owner = owner
        self._line = line
        self._open: dict[Any, WorkId] = {}
        self._over: list[WorkId] = []
        self._actors: list[tuple[WorkId, str]] = []
        """Actors that are not yet reported to the manager."""
        self.promises = Promises(time.monotonic)
        self._unused: list[WorkId] = []
        """Promised places to give back."""
        self._lasting = False
        self._behind = WINDOW
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._told = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fedpilot-work", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def close(self) -> None:
        """Stop, before Ray is shut down: work that has not ended ends with it."""
        self._closed = True
        self._changed.set()
        self._thread.join(FAREWELL_S)
        with self._lock:
            works = [*self._over, *self._open.values(), *self._unused, *self.promises.all()]
            self._over, self._open = [], {}
        if works and self._line.up():
            with contextlib.suppress(Exception, SystemExit):  # the manager also finds out later
                self._line.call("done", self.owner, works, timeout_s=FAREWELL_S)

    def follow(self, work: WorkId, made: Any) -> None:
        """Watch a task by its result."""
        ref = made[0] if isinstance(made, list) else made
        if hasattr(ref, "completed"):  # a generator: its last object
            ref = ref.completed()
        with self._lock:
            self._open[ref] = work
        self._changed.set()

    def follow_actor(self, work: WorkId, actor: str) -> None:
        """Report to the manager which actor the work is; Ray reports the actor's end to it."""
        with self._lock:
            self._actors.append((work, actor))
        self._lasting = True
        self._changed.set()

    def ended(self, works: Sequence[WorkId]) -> None:
        with self._lock:
            self._over.extend(works)
        self._changed.set()

    def look(self) -> None:
        """Check what has ended, and report it; a failed report is repeated next time."""
        self._changed.clear()
        for work, actor in list(self._actors):
            self._line.call("begun", work, actor)
            self._actors.pop(0)
        self._unused += self.promises.unused()
        if self._unused:
            self._line.call("unused", self.owner, self._unused)
            self._unused = []
        oldest, behind = self._parts()
        if oldest and not self._over:
            self._end(self._line.ended(oldest, POLL_S))
        if behind:
            self._end(self._line.ended(behind, 0.0))
        del oldest, behind
        self._tell()

    def _run(self) -> None:
        while not self._closed:
            try:
                if not self._line.up():
                    return
                began = time.thread_time()
                self.look()
                time.sleep(min(LEISURE_S, LEISURE * (time.thread_time() - began)))
            except SystemExit:  # how Ray signals that it has been shut down
                return
            except Exception:
                time.sleep(PAUSE_S)
                continue
            if not (self._open or self._over or self._actors):
                at_rest = HEARTBEAT_S if self._lasting else None
                self._changed.wait(KEEP_S if self.promises else at_rest)

    def _parts(self) -> tuple[list[Any], list[Any]]:
        with self._lock:
            if self._behind >= len(self._open):
                self._behind = WINDOW
            first, self._behind = self._behind, self._behind + WINDOW
            oldest = list(itertools.islice(self._open, WINDOW))
            return oldest, list(itertools.islice(self._open, first, first + WINDOW))

    def _end(self, refs: Sequence[Any]) -> None:
        with self._lock:
            self._over.extend(self._open.pop(ref) for ref in refs if ref in self._open)

    def _tell(self) -> None:
        with self._lock:
            works = list(self._over)
            here = bool(self._open) or self._lasting
        if not works and not (here and time.monotonic() > self._told + HEARTBEAT_S):
            return
        self._line.call("done", self.owner, works)
        self._told = time.monotonic()
        with self._lock:
            del self._over[: len(works)]


class _Ray:
    """The channel of a process that is connected to Ray."""

    def __init__(self, clusters: VirtualClusters) -> None:
        self.call = clusters.call
        self._connection = _connection()

    def up(self) -> bool:
        import ray

        return ray.is_initialized() and _connection() == self._connection

    def ended(self, refs: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        import ray

        asked = list(refs)
        ready, _ = ray.wait(asked, num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready:
            ready, _ = ray.wait(asked, num_returns=len(asked), timeout=0, fetch_local=False)
        return ready


class _Connection(NamedTuple):
    pid: int
    address: str
    job: str
    process: ProcessId


_reached: dict[_Connection, tuple[VirtualClusters, Reporter]] = {}
"""The current connection's client and reporter."""
_lock = threading.RLock()


def reporter() -> Reporter:
    return _reach()[1]


def clusters() -> VirtualClusters:
    """The virtual clusters of the Ray cluster that this process is connected to."""
    return _reach()[0]


def ask(method: str, *args: Any) -> Any:
    """Call the manager. FabricError, also if it does not answer."""
    return clusters().call(method, *args)


def on_forget(todo: Callable[[], None]) -> None:
    """Also call `todo` when Ray is about to be shut down."""
    _forgets.append(todo)


def forget() -> None:
    """Drop this connection's state: Ray is about to be shut down."""
    with _lock:
        known = list(_reached.items())
        _reached.clear()
    for connection, (_, reporter) in known:
        if connection.pid == os.getpid():
            reporter.close()
    hang_up()
    for todo in _forgets:
        todo()


def shut_down(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`ray.shutdown` of a process that may work inside virtual clusters."""
    forget()
    return original(*args, **kwargs)


def _reach() -> tuple[VirtualClusters, Reporter]:
    connection = _connection()
    found = _reached.get(connection)
    if found is not None:
        return found
    with _lock:
        if connection not in _reached:
            clusters = VirtualClusters()
            reporter = Reporter(connection.process, _Ray(clusters))
            reporter.start()
            _reached.clear()
            _reached[connection] = clusters, reporter
        return _reached[connection]


def _connection() -> _Connection:
    import ray

    context = ray.get_runtime_context()
    return _Connection(
        pid=os.getpid(),
        address=context.gcs_address,
        job=context.get_job_id(),
        process=ProcessId(context.get_worker_id()),
    )
