"""Patience: reports a long wait at intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

FIRST_S = 5.0
EVERY_S = 10.0
LOOK_S = 0.5


class Patience:
    """Calls `say`, in its own thread, with the seconds of a wait since its start or `began`.

    It calls first `first_s` after its start or the last `heard`, then every `every_s`.
    """

    def __init__(
        self,
        say: Callable[[float], None],
        *,
        first_s: float = FIRST_S,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._first_s, self._every_s = first_s, every_s
        self._clock = clock
        self._began = self._next = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="patience", daemon=True)

    def heard(self) -> None:
        """Other output has appeared: delay the next report by `first_s`."""
        self._next = self._clock() + self._first_s

    def began(self) -> None:
        """Count the wait from now on."""
        self._began = self._clock()

    def __enter__(self) -> Self:
        self._began = self._clock()
        self.heard()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(min(LOOK_S, max(0.01, self._next - self._clock()))):
            now = self._clock()
            if now >= self._next:
                self._next = now + self._every_s
                self._say(now - self._began)
