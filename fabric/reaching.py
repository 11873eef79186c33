"""Reaches the manager from any process of a Ray cluster, and tells it which work has ended."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .core.ledger import WorkId
from .manager_actor import find_or_create
from .virtual_clusters import VirtualClusters

HEARTBEAT_S = 5.0
"""Seconds after which a process with work says that it is there."""

_reporters: dict[int, Reporter] = {}
_managers: dict[str, Any] = {}
_forgets: list[Callable[[], None]] = []


class Reporter:
    """Tells the manager which of this process's work has ended."""

    def __init__(self) -> None:
        self.owner = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._open: dict[Any, WorkId] = {}
        self._actors: set[WorkId] = set()
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._told = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fedpilot-work", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, before Ray is shut down."""
        self._closed = True
        self._changed.set()
        self._thread.join(1.0)

    def follow(self, work: WorkId, made: Any) -> None:
        """Watch a task by what it returns."""
        ref = made[0] if isinstance(made, list) else made
        if hasattr(ref, "completed"):  # a generator, which has a last object
            ref = ref.completed()
        if ref is None:
            self.ended([work])
            return
        with self._lock:
            self._open[ref] = work
        self._changed.set()

    def follow_actor(self, work: WorkId) -> None:
        """Keep saying that this process is there."""
        with self._lock:
            self._actors.add(work)
        self._changed.set()

    def ended(self, works: Sequence[WorkId]) -> None:
        """Say that work has ended."""
        self._told = time.monotonic()
        manager().done.remote(self.owner, list(works))

    def _run(self) -> None:
        import ray

        while True:
            if not self._open and not self._actors and not self._closed:
                self._changed.wait()
            self._changed.clear()
            try:
                if self._closed or not ray.is_initialized():
                    return
                with self._lock:
                    refs = list(self._open)
                if refs:
                    ready, _ = ray.wait(refs, num_returns=1, timeout=0.05, fetch_local=False)
                    if ready:
                        ready, _ = ray.wait(
                            refs, num_returns=len(refs), timeout=0, fetch_local=False
                        )
                    with self._lock:
                        done = [self._open.pop(ref) for ref in ready]
                    del ready, refs
                    if done:
                        self.ended(done)
                else:
                    self._changed.wait(HEARTBEAT_S)
                if time.monotonic() > self._told + HEARTBEAT_S:
                    self.ended([])
            except SystemExit:  # so Ray says that it has been shut down
                return
            except Exception:  # Ray is shutting down, or the manager is starting again
                time.sleep(0.2)


def reporter() -> Reporter:
    """The reporter of this process."""
    pid = os.getpid()
    if pid not in _reporters:
        _reporters.clear()
        _reporters[pid] = Reporter()
    return _reporters[pid]


def manager() -> Any:
    """The manager of the Ray cluster that this process is in."""
    import ray

    session = ray.get_runtime_context().gcs_address
    if session not in _managers:
        _managers.clear()
        _managers[session] = find_or_create()
    return _managers[session]


def ask(method: str, *args: Any) -> Any:
    """Have the manager do something. FabricError, also where it does not answer."""
    return VirtualClusters.asking(manager()).call(method, *args)


def on_forget(todo: Callable[[], None]) -> None:
    """Have something forgotten as well, by whoever keeps it."""
    _forgets.append(todo)


def forget() -> None:
    """Ray was shut down: what is known belongs to the past."""
    for reporter in _reporters.values():
        reporter.close()
    _managers.clear()
    _reporters.clear()
    for todo in _forgets:
        todo()
