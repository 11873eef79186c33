"""CoordinatorRegistry: the runs in progress, and the attached coordinators."""

from __future__ import annotations

import asyncio
import logging

from ...proto import federation_pb2 as pb
from ...wire.messages import RunId
from .outbox import Outbox

log = logging.getLogger(__name__)

Line = Outbox[pb.ToCoordinator]
STEP_S = 1.0
"""Seconds between two checks whether a coordinator has sent something."""


class CoordinatorRegistry:
    """Passes messages to coordinators."""

    def __init__(self) -> None:
        self._going_on: set[RunId] = set()
        self._in_line: set[RunId] = set()
        """The runs that wait for their turn: sites keep nothing for them."""
        self._lines: dict[RunId, Line] = {}
        self._heard: set[RunId] = set()
        """The runs whose coordinators have sent something since the last check."""
        self._changed = asyncio.Event()

    @property
    def going_on(self) -> frozenset[RunId]:
        """The runs that have a coordinator, or soon will again."""
        return frozenset(self._going_on)

    def wait(self, run: RunId) -> None:
        """Expect a run's coordinator at some time."""
        self._going_on.discard(run)
        self._in_line.add(run)

    def begin(self, run: RunId) -> None:
        self._in_line.discard(run)
        self._going_on.add(run)

    def end(self, run: RunId) -> None:
        self._going_on.discard(run)
        self._in_line.discard(run)
        self._tell_changed()

    def goes_on(self, run: RunId) -> bool:
        return run in self._going_on

    async def listens(self, run: RunId) -> bool:
        """Wait until the coordinator of a run is attached; False if the run does not go on."""
        while run not in self._lines:
            if run not in self._going_on and run not in self._in_line:
                return False
            await self._changed.wait()
        return True

    def _tell_changed(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def attach(self, run: RunId, line: Line) -> None:
        """Attach a run's coordinator; the previous one gets no more messages."""
        before = self._lines.pop(run, None)
        if before is not None:
            before.close()
        self._lines[run] = line
        self._tell_changed()

    def heard(self, run: RunId) -> None:
        """Record that the coordinator of a run has sent a message of any kind."""
        self._heard.add(run)

    async def falls_silent(self, run: RunId, *, attach_s: float, alive_s: float) -> str:
        """Wait until a coordinator is unattached or silent for too long; say which.

        Counts steps, not seconds: time in which this process stood still is not silence.
        """
        step_s, silent_s, attached = min(STEP_S, attach_s / 4, alive_s / 4), 0.0, False
        while silent_s < (alive_s if attached else attach_s):
            await asyncio.sleep(step_s)
            before, attached = attached, run in self._lines
            silent_s += step_s
            if run in self._heard or before is not attached:
                self._heard.discard(run)
                silent_s = 0.0
        if attached:
            return f"has sent nothing for {alive_s:g} s"
        return f"was not attached for {attach_s:g} s"

    def detach(self, run: RunId, line: Line) -> bool:
        """Remove a coordinator that has disconnected; return whether it was the attached one."""
        if self._lines.get(run) is not line:
            return False
        del self._lines[run]
        return True

    def tell(self, run: RunId, message: pb.ToCoordinator) -> bool:
        """Send a message to a run's coordinator; return whether it was queued."""
        line = self._lines.get(run)
        return line is not None and line.put(message)

    def tell_in_passing(self, run: RunId, message: pb.ToCoordinator) -> bool:
        """Send a dispensable message, unless many others wait; return whether it was queued."""
        line = self._lines.get(run)
        return line is not None and not line.crowded and line.put(message)

    def tell_all(self, message: pb.ToCoordinator) -> None:
        """Send a message to every attached coordinator."""
        for line in self._lines.values():
            line.put(message)

    def attached_runs(self) -> list[RunId]:
        return sorted(self._lines)
