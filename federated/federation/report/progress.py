"""Shows a run's progress: a live display on a terminal, plain lines elsewhere, or JSON events."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from abc import ABC, abstractmethod
from collections import deque
from datetime import datetime
from typing import Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedpilot.common.text.amounts import duration, number
from fedpilot.common.text.plain_text import plain_lines

from ..events import Event
from . import wording

PLAIN_LINES = 40
"""About how many rounds are printed without a terminal."""
QUIET_S = 7.0
"""Longest time without a line while events come."""
PHASES = {
    "run_started": "starting Ray",
    "cluster_ready": "reserving the gang",
    "gang_reserved": "starting workers",
    "workers_ready": "training the first round",
}
"""By event: the step after it, before the first round has ended."""


class Display(ABC):
    """Shows a run's events while it is open."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Show an event if it matters."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def display_for(stream: TextIO, *, as_json: bool) -> Display:
    """The display that suits the stream."""
    if as_json:
        return JsonLines(stream)
    console = Console(file=stream, highlight=False)
    return (
        LiveDisplay(console)
        if console.is_interactive and not console.is_dumb_terminal
        else PlainLines(stream)
    )


class JsonLines(Display):
    """One JSON object per event and line."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream

    def __call__(self, event: Event) -> None:
        """Print an event."""
        _write(self._stream, json.dumps(event.to_json()))


class PlainLines(Display):
    """Lines for logs and pipes: the start, some of the rounds, everything unusual, the end."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._printed: datetime | None = None
        self._rounds = 0

    def __call__(self, event: Event) -> None:
        """Print an event if it matters, or if nothing was printed for long."""
        fields = event.fields
        quiet = self._is_quiet(event.time)
        lines: list[str] = []
        match event.name:
            case "run_started":
                self._rounds = fields["rounds"]
                lines = wording.headline(fields)
            case "clients_done" if quiet:
                lines = [wording.clients_line(fields, self._rounds)]
            case "round_finished":
                every = max(1, fields["of"] // PLAIN_LINES)
                if quiet or fields["round"] % every == 0 or fields["round"] in (1, fields["of"]):
                    lines = [wording.round_line(fields)]
            case "run_finished":
                lines = wording.summary(fields)
            case name:
                if (line := wording.remark(name, fields)) is not None:
                    lines = [line]
        if lines:
            self._printed = event.time
            _write(self._stream, *lines)

    def _is_quiet(self, now: datetime) -> bool:
        return self._printed is not None and (now - self._printed).total_seconds() >= QUIET_S


def _write(stream: TextIO, *lines: str) -> None:
    """Print lines in one write, since an interruption in between would leave half of them.

    Clients and sites put text into them, so control characters are replaced.
    """
    stream.write("".join(f"{plain_lines(line)}\n" for line in lines))
    stream.flush()


class LiveDisplay(Display):
    """A bar, the accuracy so far, speed and time left, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._accuracies: list[float] = []
        self._last: dict[str, Any] = {}
        self._phase = "loading data and model"
        self._rounds = 0
        self._done = 0
        self._clients = (0, 0)
        self._ends: deque[datetime] = deque(maxlen=21)
        self._live = Live(
            console=console,
            refresh_per_second=8,
            transient=True,
            get_renderable=self._render,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Add an event to the picture."""
        fields = event.fields
        self._phase = PHASES.get(event.name, self._phase)
        match event.name:
            case "run_started":
                self._print(*wording.headline(fields))
                self._rounds = fields["rounds"]
            case "round_started":
                self._clients = (0, self._clients[1])
            case "clients_done":
                self._clients = (fields["done"], fields["of"])
            case "round_finished":
                if "accuracy" in fields:
                    self._accuracies.append(fields["accuracy"])
                self._last = dict(fields)
                self._done, self._rounds = fields["round"], fields["of"]
                self._ends.append(event.time)
            case "run_finished":
                self._live.stop()
                self._print(*wording.summary(fields))
        if (line := wording.remark(event.name, fields)) is not None:
            self._print(line)

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.print(Text(plain_lines(line)))

    def _render(self) -> RenderableType:
        if not self._last:
            return Text(f"… {self._phase} {self._clients_now()}", style="dim")
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            Text(f"round {self._done}/{self._rounds}", style="bold"),
            ProgressBar(total=self._rounds, completed=self._done, width=32),
            Text(self._clients_now()),
            Text(wording.rate(self._last["clients_per_second"]), style="cyan"),
            Text(f"{self._time_left()} left", style="dim"),
        )
        return Group(bar, self._metrics())

    def _clients_now(self) -> str:
        done, of = self._clients
        return f"{done}/{of} clients" if done else ""

    def _metrics(self) -> Text:
        line = Text()
        if self._accuracies:
            line.append(f"accuracy {self._accuracies[-1]:.4f} ", style="green")
            line.append(wording.sparkline(self._accuracies), style="green")
        if "best" in self._last:
            best = number(self._last["best"])
            line.append(f"  best {best} in round {self._last['best_round']}  ")
        line.append(f"train loss {number(self._last['train_loss'])}", style="dim")
        return line

    def _time_left(self) -> str:
        if len(self._ends) < 2:
            return "–"
        ends = list(self._ends)
        steps = [(b - a).total_seconds() for a, b in itertools.pairwise(ends)]
        return duration(statistics.median(steps) * (self._rounds - self._done))
