"""Collects the output of a user's code, by its thread, and still prints it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

MOST_PRINTED = 2_000
"""Characters kept of one client's output in one round."""


class Printed:
    """Collected output."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._kept = 0
        self._more = 0

    def write(self, text: str) -> None:
        """Add text, up to the limit."""
        kept = text[: MOST_PRINTED - self._kept]
        self._parts.append(kept)
        self._kept += len(kept)
        self._more += len(text) - len(kept)

    @property
    def text(self) -> str:
        """The kept text, and how much was dropped."""
        kept = "".join(self._parts).rstrip("\n")
        return f"{kept}\n({self._more} more characters)" if self._more else kept


class _Routed:
    """Standard output, which also collects the output of registered threads."""

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

    def close(self) -> None:
        """Flush: other threads print to the stream as well."""
        self.beneath.flush()

    def __getattr__(self, name: str) -> Any:
        if name in ("beneath", "detach"):  # `beneath` is not set yet while a copy is made
            raise AttributeError(name)
        return getattr(self.beneath, name)


_changing = threading.Lock()


@contextmanager
def collected() -> Iterator[Printed]:
    """Collect this thread's output; the last context to end restores standard output."""
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
