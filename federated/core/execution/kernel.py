"""Compiles kernels: exactly as written, or with faster arithmetic.

Numba compiles a kernel on its first call, for this machine's CPU type, and caches the code on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Kernel = Callable[..., Any]


def as_written(function: Kernel) -> Kernel:
    """Compile with every operation as written."""
    return _compiled(function)


def fast(function: Kernel) -> Kernel:
    """Compile with reordered sums for the vector unit and fused multiply-adds; NaN stays NaN.

    The order is fixed at compile time: the same numbers always give the same bits. Each becomes a
    part of its caller, which is optimized as a whole: in the process that compiles, a callee by
    itself would stand for the copy that the cache has in the caller, whose order may be another.
    """
    return _compiled(function, fastmath={"contract", "reassoc", "nsz"}, forceinline=True)


def cpu_kind() -> str:
    """The CPU type that kernels are compiled for, such as `znver4`."""
    from llvmlite import binding

    return os.environ.get("NUMBA_CPU_NAME") or str(binding.get_host_cpu_name())


def cache_folder() -> Path:
    """The folder of compiled code: NUMBA_CACHE_DIR, or below XDG_CACHE_HOME or `~/.cache`."""
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "fedpilot" / "kernels"


def _compiled(function: Kernel, **options: Any) -> Kernel:
    import numba

    config: Any = numba.config

    options |= {"nogil": True, "error_model": "numpy"}
    others, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder())
    try:
        with suppress(RuntimeError):  # no folder for the cache can be written
            kept: Kernel = numba.njit(cache=True, **options)(function)
            return kept
    finally:
        config.CACHE_DIR = others
    made: Kernel = numba.njit(**options)(function)
    return made
