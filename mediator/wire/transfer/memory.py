"""Tunes the C allocator of processes that carry blobs."""

from __future__ import annotations

import ctypes


def keep_freed_memory() -> None:
    """Keep the memory of a piece for the next; a process's `main` calls it once.

    Otherwise glibc returns a freed piece's pages to the kernel and gets them again cleared: a third
    of a transfer's processor time. The process keeps at most 64 MiB in each of two arenas.
    """
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # as M_TRIM_THRESHOLD of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        mallopt(trim_threshold, 64 << 20)
        mallopt(mmap_threshold, 32 << 20)
        mallopt(arena_max, 2)
