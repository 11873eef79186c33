"""Lifetime: the state of a federation that starts on demand and closes once, from any thread.

    new -> starting -> started -> closed

A failed start leads back to `new`. If another thread closes it during the start, the starting
thread undoes the start, and `close` returns once nothing is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum

from ...errors import FederatedError


class State(StrEnum):
    """States of a federation."""

    NEW = "new"
    STARTING = "starting"
    STARTED = "started"
    CLOSED = "closed"


class Lifetime:
    """The lifetime of one federation."""

    def __init__(self, undo: ExitStack) -> None:
        """`undo` ends what exists before a start."""
        self._undo = undo
        self._changed = threading.Condition()
        self._state = State.NEW
        self._closing = False
        self._starter = 0

    @property
    def closing(self) -> bool:
        """Whether it is closed, or will be once its start ends."""
        return self._closing

    def start(self, begin: Callable[[ExitStack], None]) -> None:
        """Call `begin` unless it is started; wait for another thread's start.

        If it is closed, or closes meanwhile, undoes what `begin` began and raises FederatedError.
        """
        me = threading.get_ident()
        with self._changed:
            if self._state is State.STARTING and self._starter == me:
                raise FederatedError("the federation is just being started")
            self._changed.wait_for(lambda: self._state is not State.STARTING)
            self.check()
            if self._state is State.STARTED:
                return
            self._state, self._starter = State.STARTING, me
        state = State.NEW
        try:
            with ExitStack() as undo:
                begin(undo)
                with self._changed:
                    self.check()
                    self._undo.enter_context(undo.pop_all())
                    state = State.STARTED
        finally:
            with self._changed:
                self._state = state
                self._changed.notify_all()

    def check(self) -> None:
        """Raise FederatedError if it is closed or closing; a start must call this now and then."""
        if self._closing:
            raise FederatedError("the federation is closed; make another one")

    def close(self) -> None:
        """Undo everything; may be called again. From the starting thread, the start undoes it."""
        with self._changed:
            self._closing = True
            if self._state is State.STARTING and self._starter == threading.get_ident():
                return
            self._changed.wait_for(lambda: self._state is not State.STARTING)
            self._state = State.CLOSED
        self._undo.close()
