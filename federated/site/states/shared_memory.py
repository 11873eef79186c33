"""Memory that a site shares with its workers, where they run on the same machine.

What is too much for memory lies in a file, which they all map. Neither has a name in any file
system, so both end with the processes that hold them, however they end. Pages of a file count as
memory of each process that has used them, until it lets them go: they stay in the file.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpilot.common.text.amounts import in_bytes

from ...core.population.sampling import Indices
from ...core.state import Array
from ...errors import FederatedError
from .layouts import Layout, Stack
from .row_file import Rows

MOST_OPEN = 4
"""Stacks of other processes that one keeps open: two are in use at a time."""


def sharers() -> str:
    """A text that is the same for processes which can share memory; empty if this one cannot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{boot} {processes} {os.getuid()}" if hasattr(os, "memfd_create") else ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Shared memory, as other processes name it."""

    process: int
    file: int
    identity: tuple[int, int]
    """The file's device and inode."""
    size: int
    is_file: bool = False
    """Whether it lies on disk."""


@dataclass(frozen=True, slots=True)
class Spill:
    """Where states lie that are too much for memory."""

    folder: Path
    at_once: int
    """Bytes of them that a process works on before it lets them go."""


@dataclass(frozen=True, slots=True)
class Lent:
    """Some states in shared memory, which another process may read or write."""

    memory: Memory
    layout: Layout
    first: int
    count: int


class SharedStack:
    """States in memory that other processes can open, where there is such memory.

    It ends with this object and with what others opened of it.
    """

    def __init__(self, layout: Layout, count: int, spill: Spill | None = None) -> None:
        """Zeros; in a file, if they are to be spilled. Raises FederatedError for a full disk."""
        self._file = -1
        self._spill = spill
        if spill is None and not sharers():
            self.stack = Stack.zeros(layout, count)
            return
        size = max(1, layout.length * count)
        if spill is None:
            self._file = os.memfd_create("fedpilot-models")
            os.ftruncate(self._file, size)
        else:
            self._file = _file_in(spill.folder, size)
        self._mapped = mmap.mmap(self._file, size)
        rows = np.frombuffer(self._mapped, np.uint8, layout.length * count)
        self.stack = Stack(layout, rows.reshape(count, layout.length))
        is_file = spill is not None
        self._memory = Memory(os.getpid(), self._file, _identity(self._file), size, is_file)

    @property
    def at_once(self) -> int | None:
        """Bytes that a process should work on at a time; None for all, as they lie in memory."""
        return None if self._spill is None else self._spill.at_once

    def room_for(self, layout: Layout, count: int) -> SharedStack:
        """Zeros of another layout, where these states lie."""
        return SharedStack(layout, count, self._spill)

    def blocks(self, places: slice | Indices) -> Iterator[slice | Indices]:
        """These places, in parts that a process should work on at a time; it lets each part go."""
        if self._spill is None:
            yield places
            return
        most = max(1, self._spill.at_once // self.stack.layout.length)
        if isinstance(places, slice):
            for first in range(places.start, places.stop, most):
                yield slice(first, min(first + most, places.stop))
                self.let_go()
            return
        for first in range(0, len(places), most):
            yield places[first : first + most]
            self.let_go()

    def parts(self, places: slice | Indices) -> Iterator[Stack]:
        """The states at these places, in such parts."""
        return map(self.stack.part, self.blocks(places))

    def read(self, kind: np.dtype[Any], places: Indices, words: slice, threads: Executor) -> Array:
        """A copy of some words of the states at these places, (k, words).

        It does not map them: the system maps far more than is used of a state.
        """
        if self._spill is None:
            return np.asarray(self.stack.rows.view(kind)[places, words])
        found, size = np.empty((len(places), words.stop - words.start), kind), kind.itemsize
        length, begin = self.stack.layout.length, words.start * size

        def read(at: int) -> None:
            row, done = found[at].view(np.uint8), 0
            while done < len(row):
                where = int(places[at]) * length + begin + done
                done += os.preadv(self._file, [row[done:].data], where)

        list(threads.map(read, range(len(places))))
        return found

    def write(self, rows: Array, first: int, words: slice, threads: Executor) -> None:
        """Write such a copy to the places from `first` on."""
        if self._spill is None:
            self.stack.rows.view(rows.dtype)[first : first + len(rows), words] = rows
            return
        length, begin = self.stack.layout.length, words.start * rows.itemsize

        def write(at: int) -> None:
            row, done = rows[at].view(np.uint8), 0
            while done < len(row):
                where = (first + at) * length + begin + done
                done += os.pwrite(self._file, row[done:].data, where)

        list(threads.map(write, range(len(rows))))

    def copy(self, other: SharedStack, places: slice) -> None:
        """Copy the states of another stack at these places."""
        for some in self.blocks(places):
            self.stack.rows[some] = other.stack.rows[some]
            other.let_go()

    def let_go(self) -> None:
        """Spilled states count as this process's memory no longer, until it uses them again."""
        if self._spill is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def lend(self, part: slice) -> Lent:
        """A part of the states, for processes that can share memory with this one."""
        return Lent(self._memory, self.stack.layout, part.start, part.stop - part.start)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class Borrowed:
    """What other processes lent to this one."""

    def __init__(self) -> None:
        self._open: dict[Memory, mmap.mmap] = {}

    def stack(self, lent: Lent) -> Stack:
        """The states; raises FileNotFoundError if the process that lent them has ended."""
        mapped = self._open.pop(lent.memory, None)
        self._open[lent.memory] = mapped = _opened(lent.memory) if mapped is None else mapped
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        begin, length = lent.first * lent.layout.length, lent.layout.length
        rows: Rows = np.frombuffer(mapped, np.uint8, lent.count * length, begin)
        return Stack(lent.layout, rows.reshape(-1, length))

    def let_go(self) -> None:
        """What lies in files counts as this process's memory no longer, until it is used again."""
        for memory, mapped in self._open.items():
            if memory.is_file:
                mapped.madvise(mmap.MADV_DONTNEED)


def _file_in(folder: Path, size: int) -> int:
    """A file without a name, and with room for so many bytes: mapped pages must have a place."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return os.dup(file.fileno())
    except OSError as error:
        raise FederatedError(
            f"{in_bytes(size)} of clients' models are too much for memory "
            f"(`resources.store_bytes`), and {folder} cannot hold them: {error.strerror}"
        ) from error


def _opened(memory: Memory) -> mmap.mmap:
    file = os.open(f"/proc/{memory.process}/fd/{memory.file}", os.O_RDWR)
    try:
        if _identity(file) != memory.identity:
            raise FileNotFoundError(f"process {memory.process} no longer holds this memory")
        return mmap.mmap(file, memory.size)
    finally:
        os.close(file)


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino
