"""Collects what a user's code prints, by the thread that runs it, and prints it all the same."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

MOST_PRINTED = 2_000
"""Characters of one client in one round that are kept."""


class Printed:
    """What was printed so far."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._kept = 0
        self._more = 0

    def write(self, text: str) -> None:
        """Keep some more, as far as there is room."""
        kept = text[: MOST_PRINTED - self._kept]
        self._parts.append(kept)
        self._kept += len(kept)
        self._more += len(text) - len(kept)

    @property
    def text(self) -> str:
        """All that was kept, and how much more there was."""
        kept = "".join(self._parts).rstrip("\n")
        return f"{kept}\n({self._more} more characters)" if self._more else kept


class _Routed:
    """Standard output, which also collects what a thread prints that asked for it."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath
        self.of_thread = threading.local()
        self.users = 0

    def write(self, text: str) -> int:
        printed: Printed | None = getattr(self.of_thread, "printed", None)
        if printed is not None:
            printed.write(text)
        return self.beneath.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


_changing = threading.Lock()


@contextmanager
def collected() -> Iterator[Printed]:
    """What this thread prints meanwhile; the last to end restores standard output."""
    printed = Printed()
    with _changing:
        out = sys.stdout
        routed = out if isinstance(out, _Routed) else _Routed(out)
        routed.users += 1
        sys.stdout = routed
    routed.of_thread.printed = printed
    try:
        yield printed
    finally:
        routed.of_thread.printed = None
        with _changing:
            routed.users -= 1
            if not routed.users and sys.stdout is routed:
                sys.stdout = routed.beneath
