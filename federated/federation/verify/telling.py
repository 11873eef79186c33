"""Says on standard error how far training again has come: a bar, or now and then a line."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINES_APART_S = 10.0


class ProgressLine:
    """A bar while something is done, gone when something is printed."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(file=stream, highlight=False)
        self._clock = clock
        self._told = clock()
        self._bar: Progress | None = None

    def __call__(self, what: str, done: int, of: int) -> None:
        """Take note of how far it is; `of` 0 means that nobody knows."""
        if self._console.is_interactive and not self._console.is_dumb_terminal:
            self._draw(what, done, of)
        elif self._clock() - self._told >= LINES_APART_S:
            self._told = self._clock()
            self._console.print(f"{what}: {done} of {of}" if of else what)

    def _draw(self, what: str, done: int, of: int) -> None:
        if self._bar is None:
            columns = (TextColumn("… {task.description}"), BarColumn(32), MofNCompleteColumn())
            self._bar = Progress(
                *columns, TimeElapsedColumn(), console=self._console, transient=True
            )
            self._bar.add_task(what)
            self._bar.start()
        task = self._bar.task_ids[0]
        self._bar.update(task, description=what, completed=done, total=of or None)

    def pause(self) -> None:
        """Take the bar away until there is more to tell."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()
