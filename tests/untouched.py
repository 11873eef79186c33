"""What a test file must leave as it found it: environment, hooks, threads, the working folder."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedpilot.fabric import wrapping

PATIENCE_S = 60.0
"""How long threads that end may take to do so."""

MAY_CHANGE = {
    *("PYTEST_CURRENT_TEST", "MKL_CBWR", "PYTHONBREAKPOINT", "RAY_CLIENT_MODE"),
    *("TORCHINDUCTOR_CACHE_DIR", "CRC32C_SW_MODE"),
}
"""Set by pytest, by the first import of the training engine, by Ray when it is used, and by the
first use of PyTorch's optimizers and of tensorboardX."""


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """AssertionError, by name, for what is changed inside; environment and folder are put back."""
    variables, hooks, folder = _variables(), _hooks(), os.getcwd()
    threads = set(threading.enumerate())
    yield
    changed = [*_put_back(variables), *_unlike(hooks, _hooks())]
    if os.getcwd() != folder:
        os.chdir(folder)
        changed.append("the working folder")
    changed += [f"the thread {thread.name!r} still runs" for thread in _staying(threads)]
    assert not changed, f"left behind for the next file: {', '.join(sorted(changed))}"


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in MAY_CHANGE}


def _put_back(before: Mapping[str, str]) -> list[str]:
    now = _variables()
    for name in now.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    return [f"${name}" for name in now.keys() | before.keys() if now.get(name) != before.get(name)]


def _hooks() -> dict[str, Any]:
    found: dict[str, Any] = {
        "Thread.start": threading.Thread.start,
        "Thread.run": threading.Thread.run,
        "ThreadPoolExecutor.submit": ThreadPoolExecutor.submit,
    }
    return found | {f"the wrapped {name}": each for name, each in wrapping.originals.items()}


def _unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in before.keys() | now.keys() if before.get(name) is not now.get(name)]


def _staying(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that would keep this process from ending."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        new = [t for t in threading.enumerate() if t not in before and not t.daemon]
        if not new or time.monotonic() > deadline:
            return new
        new[0].join(0.1)
