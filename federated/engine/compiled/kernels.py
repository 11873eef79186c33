"""Records which kernels this machine has compiled, and lets one process compile at a time.

Numba keeps the machine code in the user's cache folder. A mark beside it names the version of the
code, the CPU type and the type of numbers. Without a writable folder nothing is kept.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import torch

from ...core.execution.kernel import cache_folder, cpu_kind
from . import dense

CHAINS = "the training of dense layers"


def are_ready(dtype: torch.dtype) -> bool:
    """Whether chains of this type train here without compilation."""
    return _mark(dtype).exists()


@contextmanager
def being_compiled(dtype: torch.dtype) -> Iterator[None]:
    """Compile in the block, unless compiled: one process per machine, the others wait for it."""
    if are_ready(dtype):
        yield
        return
    mark = _mark(dtype)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        lock = mark.with_suffix(".lock").open("w")
    except OSError:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        with suppress(OSError):
            mark.touch()


def _mark(dtype: torch.dtype) -> Path:
    source = Path(dense.__file__)
    stamp = source.stat()
    facts = (
        *(source, stamp.st_mtime_ns, stamp.st_size, str(dtype), cpu_kind()),
        *(metadata.version("numba"), metadata.version("llvmlite")),
    )
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return cache_folder() / f"chains-{name}"
