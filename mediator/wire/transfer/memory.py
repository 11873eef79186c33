"""What a process that carries blobs does with the memory that it frees."""

from __future__ import annotations

import ctypes


def keep_freed_memory() -> None:
    """Let this process keep the memory of a piece for the next one; for its `main` to call once.

    glibc gives pages back to the kernel with nearly every piece that is freed, and gets them again
    cleared: a third of what a transfer takes of a processor. What is kept is 64 MiB at most in each
    of two arenas; threads would have many more of them.
    """
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # as M_TRIM_THRESHOLD of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        mallopt(trim_threshold, 64 << 20)
        mallopt(mmap_threshold, 32 << 20)
        mallopt(arena_max, 2)
