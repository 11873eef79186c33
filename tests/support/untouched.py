"""What a test file must leave as it found it: environment, hooks, threads, the working folder."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, thread as pools
from typing import Any

from fedpilot.fabric.inside import patching

PATIENCE_S = 60.0
"""How long threads that end may take to do so."""

OURS = ("FEDPILOT_", "RAY_", "PYTHON", "TESTS_")
"""How new variables begin that would reach what later files start. Libraries set others as they are
imported."""
OF_OTHERS = {"PYTEST_CURRENT_TEST", "MKL_CBWR", "PYTHONBREAKPOINT", "RAY_CLIENT_MODE"}
"""Set by pytest, by the first import of the training engine, and by Ray when it is used."""


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
    return {name: value for name, value in os.environ.items() if name not in OF_OTHERS}


def _put_back(before: Mapping[str, str]) -> list[str]:
    now = _variables()
    new = {name for name in now.keys() - before.keys() if name.startswith(OURS)}
    for name in new:
        del os.environ[name]
    os.environ.update(before)
    return [f"${name}" for name in {*new, *before} if now.get(name) != before.get(name)]


def _hooks() -> dict[str, Any]:
    found: dict[str, Any] = {
        "Thread.start": threading.Thread.start,
        "Thread.run": threading.Thread.run,
        "ThreadPoolExecutor.submit": ThreadPoolExecutor.submit,
    }
    return found | {f"the wrapped {name}": each for name, each in patching.originals.items()}


def _unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in before.keys() | now.keys() if before.get(name) is not now.get(name)]


def _staying(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that would keep this process from ending; idle ones of a pool do not."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        new = [
            thread
            for thread in threading.enumerate()
            if thread not in before and not thread.daemon and thread not in pools._threads_queues
        ]
        if not new or time.monotonic() > deadline:
            return new
        new[0].join(0.1)
