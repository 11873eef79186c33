"""StepWatch: reports what a silent run waits for.

It emits `waiting` after every `QUIET_S` seconds without any event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from fedpilot.common.host.machine import load
from fedpilot.common.host.patience import Patience

QUIET_S = 5.0
"""A third of the longest silence that a user may see, so that a busy machine may be late."""
BEGINS: Mapping[str, str | None] = {"round": "round_started", "mediator": None}
"""Steps that repeat under one name, and the event that begins each; None: any event."""
TOLD_BY_OTHERS = 1.5
"""Factor on the silence of a step that sites report themselves."""


class StepWatch:
    """The current steps of a federation; reports silent ones."""

    def __init__(
        self, emit: Callable[..., None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._open: list[tuple[str, Patience]] = []
        self._round = 0

    @contextmanager
    def step(
        self, name: str, within_s: float | None = None, *, told_by_others: bool = False
    ) -> Iterator[None]:
        """Watch this step while the context is open; `within_s` is its deadline."""
        quiet_s = QUIET_S * (TOLD_BY_OTHERS if told_by_others else 1)
        patience = Patience(
            lambda seconds: self._say(name, seconds, within_s),
            first_s=quiet_s,
            every_s=quiet_s,
            clock=self._clock,
        )
        with patience:
            self._open.append((name, patience))
            try:
                yield
            finally:
                self._open.remove((name, patience))

    def heard(self, event: str, **fields: Any) -> None:
        """Note an event, which shows that the run goes on."""
        if event == "round_started":
            self._round = fields["round"]
        for name, patience in tuple(self._open):
            if name in BEGINS and BEGINS[name] in (event, None):
                patience.began()
            patience.heard()

    def _say(self, name: str, seconds: float, within_s: float | None) -> None:
        busy = load()
        about = {"round": self._round} if name == "round" else {}
        with suppress(OSError):  # stdout is closed, which the run itself notices
            self._emit(
                "waiting",
                step=name,
                seconds=round(seconds, 1),
                within=within_s,
                load=busy.average,
                cpus=busy.cpus,
                **about,
            )
