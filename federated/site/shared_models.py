"""The models that a site's workers share: those of rounds, and those of single pieces of work."""

from __future__ import annotations

import itertools

from fedpilot.fabric import Gang
from fedpilot.mediator import SiteLost

from ..core.state import State, nbytes
from .object_store import GlobalObjectStore
from .workers.lru import KEEP
from .workers.pool import SharedModel, WorkerPool

STORE_BYTES = 1 << 30
"""Model states that a site keeps in memory; more go to disk."""


class SharedModels:
    """Keeps the latest models of rounds, by their keys, and hands them to workers."""

    def __init__(self, site: str, gang: Gang, pool: WorkerPool) -> None:
        self._site, self._pool = site, pool
        self._slots = itertools.cycle(f"model/{slot}" for slot in range(KEEP))
        self._store = GlobalObjectStore(gang.put, limit_bytes=STORE_BYTES)

    def of_round(self, key: str, state: State) -> tuple[State, SharedModel]:
        """A round's model: the one that came along, or one that came before.

        SiteLost where neither is so: whoever sent it is to send it again, or have others do it.
        """
        if key not in self._store:
            if not state:
                raise SiteLost(self._site, f"model {key[:12]} has not arrived there")
            self._store.put(next(self._slots), state, known=key)
        return self._store.get(key), SharedModel(key, self._store.shared(key))

    def of_one(self, key: str, state: State) -> SharedModel:
        """A model that came along with a single VirtualNode's work, and goes with its answer."""
        if key in self._store:
            return SharedModel(key, self._store.shared(key))
        return self._pool.share(key, state, nbytes(state.values()))

    def close(self) -> None:
        """Remove what was written to disk."""
        self._store.close()
