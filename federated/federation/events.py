"""Events of a run: named, with plain fields, in the order they happen.

docs/reference/events.md lists them and their fields.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .step_watch import StepWatch


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run."""

    name: str
    fields: Mapping[str, Any]
    """JSON values."""
    time: datetime

    def to_json(self) -> dict[str, Any]:
        """One flat object with `event` and `time` first."""
        return {"event": self.name, "time": self.time.isoformat(timespec="milliseconds")} | dict(
            self.fields
        )


Observer = Callable[[Event], None]
"""Called for every event, one at a time, in the emitting thread. The federation waits for it, so it
must not wait for the federation.
"""


Emit = Callable[..., None]


def event(name: str, **fields: Any) -> Event:
    return Event(name, fields, datetime.now(UTC))


class EventBus:
    """Hands every event to all observers, and reports what a silent run waits for."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.observers = list(observers)
        self._lock = threading.Lock()
        self._watch = StepWatch(self.emit)
        self.step = self._watch.step
        """Report this step while it lasts."""

    def emit(self, name: str, **fields: Any) -> None:
        """Report an event; from any thread."""
        happened = event(name, **fields)
        self._watch.heard(name, **fields)
        with self._lock:
            for observer in tuple(self.observers):
                observer(happened)

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Hand events to this observer too while the context is open."""
        self.observers.append(observer)
        try:
            yield
        finally:
            self.observers.remove(observer)
