"""Interruptions: SIGINT, SIGTERM and SIGHUP end a command once, in order, and are never lost.

The signal handler raises in the main thread. In a callback of the garbage collector or an import,
Python prints that error and continues, so the interruption is raised again a moment later. C code
that imports, such as NumPy's, raises another error instead, which `is_interruption` recognizes.
"""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RAISED_AGAIN_S = 0.05
"""The delay after a lost interruption, so that it is not raised in the same callback again."""


_MADE_BY_C = (ImportError, SystemError)
"""What C code raises in place of an error that interrupted its import."""
_open: list[Interruptions] = []
"""The `Interruptions` blocks that are open in this process."""


def is_interruption(error: BaseException) -> bool:
    """Whether this is an interruption, or an error that C code raised in place of one."""
    if isinstance(error, KeyboardInterrupt):
        return True
    return isinstance(error, _MADE_BY_C) and any(each.interrupted for each in _open)


class Interruption(KeyboardInterrupt):
    """A signal told this command to end."""


class Interruptions:
    """Within the block the first signal raises `Interruption`.

    Later signals are ignored, or only for `again_after_s` seconds. A signal during `held` waits
    for its end. A signal that was ignored before the block (`nohup`) stays ignored.
    """

    def __init__(self, *, again_after_s: float | None = None) -> None:
        self._again_after_s = again_after_s
        self._deaf_until = 0.0
        self._holding = self._waiting = self._over = False
        self._raised: weakref.ref[Interruption] | None = None
        self._before: dict[int, Any] = {}
        self._hook, self._print = sys.unraisablehook, sys.excepthook

    @property
    def interrupted(self) -> bool:
        return self._raised is not None

    def shield(self) -> None:
        """Ignore all further signals, while resources are being closed."""
        self._over = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay an interruption until the end of this block."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            if self._waiting:
                self._waiting = False
                self._interrupt(signal.SIGINT, None)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._holding:
            self._waiting = True
        elif not self._over and time.monotonic() >= self._deaf_until:
            again = self._again_after_s
            self._deaf_until = time.monotonic() + again if again is not None else float("inf")
            self._raise()

    def _again(self, number: int, frame: FrameType | None) -> None:
        if not self._over:
            self._raise()

    def _raise(self) -> None:
        interruption = Interruption()
        self._raised = weakref.ref(interruption, self._lost)
        try:
            raise interruption
        finally:
            del interruption  # its traceback holds this frame, so it would never be collected

    def _lost(self, reference: weakref.ref[Interruption]) -> None:
        """Raise an interruption again that was lost inside the block."""
        if not self._over and reference is self._raised:
            signal.setitimer(signal.ITIMER_REAL, RAISED_AGAIN_S)

    def _unraisable(self, unraisable: Any) -> None:
        """Do not print an interruption that will be raised again."""
        if not isinstance(unraisable.exc_value, Interruption):
            self._hook(unraisable)

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Do not print an interruption that C code replaces by another error."""
        if not isinstance(error, Interruption):
            self._print(kind, error, trace)

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._interrupt)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._again)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._print, sys.excepthook = sys.excepthook, self._uncaught
        _open.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook, sys.excepthook = self._hook, self._print
        for number, handler in self._before.items():
            signal.signal(number, handler)
        became = error is not None and is_interruption(error)
        _open.remove(self)
        if became and not isinstance(error, KeyboardInterrupt):
            raise Interruption from error
