"""Memory that a site shares with its workers, where they run on the same machine.

It has no name in any file system, so it ends with the processes that hold it, however they end.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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

    def __init__(self, layout: Layout, count: int) -> None:
        """Zeros."""
        self._file = -1
        if not sharers():
            self.stack = Stack.zeros(layout, count)
            return
        size = layout.length * count
        self._file = os.memfd_create("fedpilot-models")
        os.ftruncate(self._file, size)
        self.stack = Stack(layout, _rows(self._file, size).reshape(count, layout.length))
        self._memory = Memory(os.getpid(), self._file, _identity(self._file), size)

    def lend(self, part: slice) -> Lent:
        """A part of the states, for processes that can share memory with this one."""
        return Lent(self._memory, self.stack.layout, part.start, part.stop - part.start)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class Borrowed:
    """What other processes lent to this one."""

    def __init__(self) -> None:
        self._open: dict[Memory, Rows] = {}

    def stack(self, lent: Lent) -> Stack:
        """The states; raises FileNotFoundError if the process that lent them has ended."""
        rows = self._open.pop(lent.memory, None)
        self._open[lent.memory] = rows = _opened(lent.memory) if rows is None else rows
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        every = rows.reshape(-1, lent.layout.length)
        return Stack(lent.layout, every[lent.first : lent.first + lent.count])


def _opened(memory: Memory) -> Rows:
    file = os.open(f"/proc/{memory.process}/fd/{memory.file}", os.O_RDWR)
    try:
        if _identity(file) != memory.identity:
            raise FileNotFoundError(f"process {memory.process} no longer holds this memory")
        return _rows(file, memory.size)
    finally:
        os.close(file)


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def _rows(file: int, size: int) -> Rows:
    return np.frombuffer(mmap.mmap(file, size), dtype=np.uint8)
