"""PublishedStates: the states that clients of a graph have published, by client and by digest."""

from __future__ import annotations

import threading
from typing import Any

from ..core.state import State, digest
from ..site.object_store import STORE_BYTES, GlobalObjectStore


class PublishedStates:
    """The latest state of each client; methods may be called from any thread."""

    def __init__(self) -> None:
        self._store = GlobalObjectStore(_as_it_is, limit_bytes=STORE_BYTES)
        self._digests: dict[int, str] = {}
        self._lock = threading.Lock()

    def publish(self, client: int, state: State) -> str:
        """Replace what a client has published; returns the digest."""
        with self._lock:
            copied = {name: array.copy() for name, array in state.items()}
            found = self._store.put(f"node/{client}", copied, known=digest(copied))
            self._digests[client] = found
        return found

    def digest_of(self, client: int) -> str | None:
        """The digest of what a client has published last; None if nothing."""
        return self._digests.get(client)

    def of(self, client: int) -> State:
        """What a client has published last; KeyError if nothing."""
        with self._lock:
            return self._store.get(self._digests[client])

    def close(self) -> None:
        """Drop everything; may be called twice."""
        self._store.close()


def _as_it_is(state: Any) -> Any:
    return state
