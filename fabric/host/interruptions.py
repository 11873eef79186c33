"""Interruptions: SIGINT, SIGTERM and SIGHUP end a command once, in order, and are never lost.

A signal's handler raises wherever the main thread is. In a callback of the garbage collector or of
an import, Python prints the error and goes on: so an interruption that dies inside the block is
raised again a moment later. C code that imports, such as NumPy's, puts another error in its place:
`is_interruption` recognizes these.
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
"""After one was lost: not within the same callback."""


_MADE_BY_C = (ImportError, SystemError)
"""What C code raises in the place of an error that came upon it as it imported something."""
_open: list[Interruptions] = []
"""The blocks that the process is in."""


def is_interruption(error: BaseException) -> bool:
    """Whether this is an interruption, or what one inside of a block has become."""
    if isinstance(error, KeyboardInterrupt):
        return True
    return isinstance(error, _MADE_BY_C) and any(each.interrupted for each in _open)


class Interruption(KeyboardInterrupt):
    """A signal asked this command to end."""


class Interruptions:
    """Within the block the first signal raises `Interruption`.

    Later signals are ignored, or with `again_after_s` only for that many seconds. A signal within
    `held` waits until its end. A signal that was ignored before (`nohup`) stays ignored.
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
        """Ignore all signals from now on, while everything is being closed."""
        self._over = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put an interruption off until the end of this block."""
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
            del interruption  # its traceback holds this frame, so it would never die

    def _lost(self, reference: weakref.ref[Interruption]) -> None:
        """One died inside the block: raise it again."""
        if not self._over and reference is self._raised:
            signal.setitimer(signal.ITIMER_REAL, RAISED_AGAIN_S)

    def _unraisable(self, unraisable: Any) -> None:
        """Print no interruption that will be raised again."""
        if not isinstance(unraisable.exc_value, Interruption):
            self._hook(unraisable)

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print no interruption for which C code raises another error."""
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
