"""A command and all that it started: it runs, is told to end, and is killed if it does not."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil  # Ray brings it

GRACE_S = 2.5
"""How long a command may take to end after a signal: Ray kills a whole job after three seconds."""
LOOK_S, LOOK_FOR_MORE_S = 0.05, 0.5
"""Seconds between two looks at the processes that should end, and for what they start meanwhile."""

FATED = """\
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"fedpilot: {sys.argv[2]}: {error.strerror}")
"""
"""Replaced by the command; the kernel kills it when the thread that started it ends, in any way."""


class RunningCommand:
    """A command that has been started, in this process's main thread."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        fated = [sys.executable, "-I", "-S", "-c", FATED, str(os.getpid()), *command]
        self._child = subprocess.Popen(fated, env=env)
        self._lock = threading.Lock()
        self._ending: threading.Thread | None = None
        self._kill_at = math.inf

    def end(self, within_s: float) -> None:
        """Tell it to end, and all that it started, once; kill what remains after `within_s`.

        Further calls may only bring forward when that is.
        """
        self._end(within_s, told=False)

    def wait(self, patience_s: float | None = None) -> int:
        """Wait until it ends; if it was told to, also until all that it started has ended.

        Returns its exit code, or 128 and the number of the signal that killed it. TimeoutError if
        it still runs after `patience_s`. An interruption ends it too: who interrupts this process
        has sent its command the same signal.
        """
        try:
            code = self._child.wait(patience_s)
            self._join()
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        except BaseException:
            self._end(GRACE_S, told=True)
            self._join()
            self._child.wait()
            raise
        return code if code >= 0 else 128 - code

    def _end(self, within_s: float, *, told: bool) -> None:
        with self._lock:
            self._kill_at = min(self._kill_at, time.monotonic() + within_s)
            if self._ending is None:
                self._ending = threading.Thread(
                    target=self._until_ended, args=(told,), name="fedpilot-end", daemon=True
                )
                self._ending.start()

    def _join(self) -> None:
        with self._lock:
            ending = self._ending
        if ending is not None:
            ending.join()

    def _until_ended(self, told: bool) -> None:
        import psutil

        tree = set[psutil.Process]()
        with contextlib.suppress(psutil.Error):
            if self._child.returncode is None:  # another process may have its id
                tree = _with_children({psutil.Process(self._child.pid)})
        for each in set() if told else tree:
            with contextlib.suppress(psutil.Error):
                each.terminate()
        looked = time.monotonic()
        while (now := time.monotonic()) < self._kill_at and any(map(_alive, tree)):
            if now >= looked + LOOK_FOR_MORE_S:
                tree, looked = _with_children(tree), now
            time.sleep(min(LOOK_S, max(0.0, self._kill_at - now)))
        for each in _with_children(tree):
            with contextlib.suppress(psutil.Error):
                each.kill()


def _with_children(tree: set[psutil.Process]) -> set[psutil.Process]:
    """These processes, and those that the living ones among them have started."""
    import psutil

    found, pids = set(tree), {each.pid for each in tree}
    for each in tree:
        with contextlib.suppress(psutil.Error):
            if len(tree) == 1 or each.ppid() not in pids:  # the others are below one of these
                found.update(each.children(recursive=True))
    return found


def _alive(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
