"""GlobalObjectStore: the model states at this site, by key and by digest.

Equal states are stored once, and a state is dropped with its last key. A key may be for counted
readers, and goes with the last of them. Beyond `limit_bytes`, the least recently used states go to
disk. A state read back is checked by its digest: a corrupt file is an error, never wrong tensors.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors import SafetensorError

from fedpilot.common.text.names import is_digest
from fedpilot.mediator import SiteLost

from ..core.state import Array, State, digest, nbytes
from ..engine.tensor_files import read_tensors, write_tensors
from ..errors import FederatedError, RunRefused
from .workers.lru import KEEP
from .workers.pool import SharedModel

INLINE_BYTES = 100_000
"""States up to this size travel as plain arguments; larger ones once through the fabric's store."""
STORE_BYTES = 1 << 30
"""Model states that a site keeps in memory by default; more go to disk."""


@dataclass(slots=True)
class _Entry:
    nbytes: int
    state: State | None = None
    """None while it is only on disk."""
    file: Path | None = None
    handle: Any = None
    """The fabric's handle, once requested."""


class GlobalObjectStore:
    """One site's states, read-only once stored; methods may be called from any thread."""

    def __init__(
        self, put: Callable[[Any], Any], *, limit_bytes: int, folder: Path | None = None
    ) -> None:
        """`put` makes the fabric's handle of a state; spilled files go into a new folder, made on
        first need inside `folder` (default: the system's temporary one).
        """
        self._put = put
        self._limit_bytes = limit_bytes
        self._folder = folder
        self._spilled: TemporaryDirectory[str] | None = None
        self._entries: dict[str, _Entry] = {}
        """By digest."""
        self._in_memory: OrderedDict[str, None] = OrderedDict()
        """Digests of the states in memory, the least recently used first."""
        self._memory_bytes = 0
        self._keys: dict[str, str] = {}
        """The digest of each key."""
        self._named: Counter[str] = Counter()
        """The number of keys of each digest."""
        self._waiting: dict[str, set[int]] = {}
        """By key: its readers that are still to come."""
        self._closed = False
        self._lock = threading.RLock()

    @property
    def memory_bytes(self) -> int:
        """Bytes of the states in memory."""
        return self._memory_bytes

    def keys(self) -> tuple[str, ...]:
        """All keys, in the order in which they were first put."""
        with self._lock:
            return tuple(self._keys)

    def size(self) -> int:
        """The number of keys."""
        return len(self._keys)

    def put(
        self,
        key: str,
        state: State,
        *,
        known: str | None = None,
        readers: Iterable[int] | None = None,
    ) -> str:
        """Point a key to a state, instead of its earlier one; returns the digest.

        `known` is the digest if the caller has it already. With `readers` the key stays until
        `finish` was called for all of them, otherwise until `delete`. Raises FederatedError if the
        key is the digest of another state, or if the disk has no room for spilled states.
        """
        name = known or digest(state)
        if is_digest(key) and key != name:
            raise FederatedError(
                f"a state with the digest {name[:12]} cannot be put under {key[:12]}, "
                "which is the digest of another"
            )
        with self._lock:
            if self._closed:
                raise FederatedError("the object store was closed and takes no more states")
            entry = self._entries.setdefault(name, _Entry(nbytes(state.values())))
            if entry.state is None:
                _remove_file(entry)  # it may be corrupt, and this state is not
                self._load(name, state)
            before, self._keys[key] = self._keys.get(key), name
            self._named[name] += 1
            self._drop_unwanted(before)
            self._waiting.pop(key, None)
            if readers is not None:
                self._waiting[key] = set(readers)
            self._use(name)
        return name

    def get(self, key_or_digest: str) -> State:
        """A state; FederatedError if it is missing or its file corrupt."""
        with self._lock:
            return self._read(self._resolve(key_or_digest))

    def digest_of(self, key: str) -> str | None:
        """The digest of a key's state; None if there is no such key."""
        return self._keys.get(key)

    def finish(self, key: str, readers: Iterable[int]) -> frozenset[int]:
        """Count off readers of a key, which is deleted with the last of all its readers.

        Returns those that were still to come.
        """
        with self._lock:
            waiting = self._waiting.get(key, set())
            found = waiting.intersection(readers)
            waiting -= found
            if found and not waiting:
                self.delete(key)
            return frozenset(found)

    def shared(self, key_or_digest: str) -> Any:
        """What to send a worker: a small state itself, a large one as the fabric's handle.

        A handle is made once and dropped with the state.
        """
        with self._lock:
            name = self._resolve(key_or_digest)
            entry = self._entries[name]
            if entry.nbytes <= INLINE_BYTES:
                return self._read(name)
            if entry.handle is None:
                entry.handle = self._put(self._read(name))
            return entry.handle

    def delete(self, key: str) -> None:
        """Remove a key; a missing key is no error."""
        with self._lock:
            self._waiting.pop(key, None)
            self._drop_unwanted(self._keys.pop(key, None))

    def __contains__(self, key_or_digest: str) -> bool:
        with self._lock:
            return key_or_digest in self._entries or key_or_digest in self._keys

    def close(self) -> None:
        """Drop everything and remove spilled files; may be called twice."""
        with self._lock:
            self._closed = True
            for each in (self._entries, self._in_memory, self._keys, self._named, self._waiting):
                each.clear()
            self._memory_bytes = 0
            if self._spilled is not None:
                self._spilled.cleanup()
                self._spilled = None

    # -- under the lock -----------------------------------------------------------------------

    def _resolve(self, key_or_digest: str) -> str:
        name = self._keys.get(key_or_digest, key_or_digest)
        if name not in self._entries:
            raise FederatedError(f"model {_label(name)} is not at this site")
        return name

    def _read(self, name: str) -> State:
        entry = self._entries[name]
        state = entry.state
        if state is None:
            assert entry.file is not None
            state = self._load(name, _checked(name, entry.file))
        self._use(name)
        return state

    def _load(self, name: str, state: State) -> State:
        entry = self._entries[name]
        entry.state = _unwritable(state)
        self._in_memory[name] = None
        self._memory_bytes += entry.nbytes
        return entry.state

    def _unload(self, name: str) -> None:
        if name in self._in_memory:
            entry = self._entries[name]
            del self._in_memory[name]
            self._memory_bytes -= entry.nbytes
            entry.state = None

    def _use(self, name: str) -> None:
        self._in_memory.move_to_end(name)
        while self._memory_bytes > self._limit_bytes and self._in_memory:
            oldest = next(iter(self._in_memory))
            entry = self._entries[oldest]
            if entry.state is not None and entry.file is None:
                entry.file = self._written(oldest, entry.state)
            self._unload(oldest)

    def _written(self, name: str, state: State) -> Path:
        try:
            if self._spilled is None:
                self._spilled = TemporaryDirectory(
                    prefix="fedpilot-states-", dir=self._folder, ignore_cleanup_errors=True
                )
            path = Path(self._spilled.name) / f"{name}.safetensors"
            write_tensors(path, state)
        except (OSError, SafetensorError) as error:
            raise FederatedError(
                f"model {_label(name)} must go to disk, since {self._limit_bytes} bytes may be in "
                f"memory, and cannot be written: {error}"
            ) from error
        return path

    def _drop_unwanted(self, name: str | None) -> None:
        """Forget one key of a state, and the state with its last one."""
        if name is None:
            return
        self._named[name] -= 1
        if not self._named[name]:
            del self._named[name]
            self._unload(name)
            _remove_file(self._entries.pop(name))


class SharedModels:
    """The models that a site's workers share: the latest of rounds, and those of single nodes."""

    def __init__(self, site: str, put: Callable[[Any], Any], store: GlobalObjectStore) -> None:
        self._site, self._put, self._store = site, put, store
        self._slots = itertools.cycle(f"model/{slot}" for slot in range(KEEP))

    def of_round(self, key: str, state: State) -> tuple[State, SharedModel]:
        """A round's model: from this order, or from an earlier one.

        Raises SiteLost if there is neither: the sender sends it again, or asks other sites.
        """
        if key not in self._store:
            if not state:
                raise SiteLost(self._site, f"model {key[:12]} has not arrived there")
            self._store.put(next(self._slots), state, known=key)
        return self._store.get(key), SharedModel(key, self._store.shared(key))

    def of_one(self, key: str, state: State) -> SharedModel:
        """A model for a single VirtualNode's work, dropped with its answer."""
        if key in self._store:
            return SharedModel(key, self._store.shared(key))
        inline = nbytes(state.values()) <= INLINE_BYTES
        return SharedModel(key, state if inline else self._put(state))


def _checked(name: str, file: Path) -> State:
    try:
        _, state = read_tensors(file)
        if digest(state) != name:
            raise RunRefused(f"{file} holds other tensors than were written")
    except RunRefused as error:
        raise FederatedError(
            f"model {_label(name)} was moved to disk and is spoilt there: {error}"
        ) from error
    return state


def _remove_file(entry: _Entry) -> None:
    if entry.file is not None:
        entry.file.unlink(missing_ok=True)
        entry.file = None


def _unwritable(state: State) -> dict[str, Array]:
    """Read-only views of the same memory."""
    views = {name: np.asarray(array).view() for name, array in state.items()}
    for view in views.values():
        view.setflags(write=False)
    return views


def _label(name: str) -> str:
    return name[:12] if is_digest(name) else name
