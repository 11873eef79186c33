"""GlobalObjectStore: the model states that are at this site, by key and by digest.

The same digest is kept once, however many keys point to it. A state leaves when no key points to it
and nobody holds it. Beyond `limit_bytes`, what is unheld and was not used for longest goes to disk,
and is checked by its digest when it comes back: a spoilt file is an error, never wrong tensors.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError

from fedpilot.fabric.core.text.names import is_digest

from ..core.state import Array, State, digest, nbytes
from ..engine.tensor_files import read_tensors, write_tensors
from ..errors import FederatedError, RunRefused

INLINE_BYTES = 100_000
"""States up to this size travel as plain arguments; larger ones once through the fabric's store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCounts:
    """What a store holds now."""

    states: int
    memory_bytes: int
    """Bytes of the states that are in memory."""


class StateReference:
    """A counted reference: until it is released, its state is neither dropped nor spilled."""

    def __init__(self, digest: str, release: Callable[[StateReference], None]) -> None:
        self.digest = digest
        self.released = False
        self._release = release

    def release(self) -> None:
        """Let go; may be called twice."""
        self._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True)
class _Entry:
    """What is known of one digest."""

    nbytes: int
    state: State | None = None
    """None while it is on disk only."""
    file: Path | None = None
    handle: Any = None
    """The fabric's, once it was asked for."""
    keys: int = 0
    holds: int = 0


class GlobalObjectStore:
    """One site's states; all methods may be called from any thread.

    A state that was put must not be changed afterwards; those given out cannot be.
    """

    def __init__(
        self, put: Callable[[Any], Any], *, limit_bytes: int, folder: Path | None = None
    ) -> None:
        """`put` makes the fabric's handle of a state; spilled files go into a new folder inside
        `folder` (default: the system's temporary one), made when it is first needed."""
        self._put = put
        self._limit_bytes = limit_bytes
        self._folder = folder
        self._spilled: TemporaryDirectory[str] | None = None
        self._entries: dict[str, _Entry] = {}
        self._keys: dict[str, str] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Digests that are in memory and not held, the least recently used first."""
        self._memory_bytes = 0
        self._closed = False
        self._lock = threading.RLock()

    def put(self, key: str, state: State, *, known: str | None = None) -> str:
        """Let a key point to a state, instead of what it pointed to before; returns the digest.

        `known` is the digest where the caller has it already. FederatedError when the key is the
        digest of another state, or when there is no room on disk for what must go there.
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
                self._remove_file(entry)  # it may be spoilt, and what was put just now is not
                self._keep(entry, _unwritable(state))
            entry.keys += 1  # before the key lets go of what may be the same state
            self.delete(key)
            self._keys[key] = name
            self._use(name)
        return name

    def get(self, key_or_digest: str) -> State:
        """A state; FederatedError when it is not here, or its file is spoilt."""
        with self._lock:
            return self._read(self._resolve(key_or_digest))

    def shared(self, key_or_digest: str) -> Any:
        """What a worker is sent of a state: itself when it is small, or else the fabric's handle.

        A handle is made once, and forgotten when the state leaves.
        """
        with self._lock:
            name = self._resolve(key_or_digest)
            entry = self._entries[name]
            if entry.nbytes <= INLINE_BYTES:
                return self._read(name)
            if entry.handle is None:
                entry.handle = self._put(self._read(name))
            return entry.handle

    def hold(self, key_or_digest: str) -> StateReference:
        """Keep a state until the hold is released, whatever happens to its keys."""
        with self._lock:
            name = self._resolve(key_or_digest)
            self._entries[name].holds += 1
            self._idle.pop(name, None)
            return StateReference(name, self._release)

    def delete(self, key: str) -> None:
        """Let a key point to nothing; a key that does not exist is no error."""
        with self._lock:
            name = self._keys.pop(key, None)
            if name is not None:
                self._entries[name].keys -= 1
                self._drop_unwanted(name)

    def __contains__(self, key_or_digest: str) -> bool:
        with self._lock:
            return key_or_digest in self._entries or key_or_digest in self._keys

    def counts(self) -> StoreCounts:
        with self._lock:
            return StoreCounts(states=len(self._entries), memory_bytes=self._memory_bytes)

    def close(self) -> None:
        """Forget everything and remove the spilled files; may be called twice."""
        with self._lock:
            self._closed = True
            self._entries.clear()
            self._keys.clear()
            self._idle.clear()
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
            state = _unwritable(_checked(name, entry.file))
            self._keep(entry, state)
        self._use(name)
        return state

    def _keep(self, entry: _Entry, state: State) -> None:
        entry.state = state
        self._memory_bytes += entry.nbytes

    def _use(self, name: str) -> None:
        if self._entries[name].holds == 0:
            self._idle[name] = None
            self._idle.move_to_end(name)
        while self._memory_bytes > self._limit_bytes and self._idle:
            self._spill(next(iter(self._idle)))

    def _spill(self, name: str) -> None:
        entry = self._entries[name]
        if entry.state is not None and entry.file is None:
            entry.file = self._written(name, entry.state)
        self._forget(name, entry)

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

    def _release(self, hold: StateReference) -> None:
        with self._lock:
            entry = self._entries.get(hold.digest)
            if hold.released or entry is None:
                return
            hold.released = True
            entry.holds -= 1
            self._drop_unwanted(hold.digest)
            if hold.digest in self._entries and entry.state is not None:
                self._use(hold.digest)

    def _drop_unwanted(self, name: str) -> None:
        entry = self._entries[name]
        if entry.keys == 0 and entry.holds == 0:
            self._forget(name, entry)
            self._remove_file(entry)
            del self._entries[name]

    def _forget(self, name: str, entry: _Entry) -> None:
        self._idle.pop(name, None)
        if entry.state is not None:
            entry.state = None
            self._memory_bytes -= entry.nbytes

    def _remove_file(self, entry: _Entry) -> None:
        if entry.file is not None:
            entry.file.unlink(missing_ok=True)
            entry.file = None


def _checked(name: str, file: Path | None) -> State:
    try:
        if file is None:
            raise RunRefused("its file is not known")
        _, state = read_tensors(file)
        if digest(state) != name:
            raise RunRefused(f"{file} holds other tensors than were written")
    except RunRefused as error:
        raise FederatedError(
            f"model {_label(name)} was moved to disk and is spoilt there: {error}"
        ) from error
    return state


def _unwritable(state: State) -> dict[str, Array]:
    """The same memory, through views that refuse to be written."""
    views = {name: np.asarray(array).view() for name, array in state.items()}
    for view in views.values():
        view.setflags(write=False)
    return views


def _label(name: str) -> str:
    return name[:12] if is_digest(name) else name
