"""Tells Ray's autoscaler which machines the virtual clusters lack, beside what others ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from ...core.demand import PublishedDemand, merged
from ...core.resources import Resources


class Requests(Protocol):
    """The one request that Ray's autoscaler has, as a list of what it asks for."""

    def read(self) -> Sequence[str]:
        """All that is asked for, by us and by others."""

    def write(self, requests: Sequence[str]) -> None:
        """Ask for this, and for nothing else."""

    def encode(self, amounts: Sequence[Mapping[str, float]]) -> Sequence[str]:
        """Say how it is asked for these."""


class Notes(Protocol):
    """Where it is remembered what was asked for last."""

    def note(self, name: str) -> Any: ...
    def write_note(self, name: str, what: Any) -> None: ...


class Autoscaler:
    """Our part of what Ray's autoscaler is asked for."""

    NOTE = "autoscaler"

    def __init__(self, requests: Requests, notes: Notes) -> None:
        self._requests = requests
        self._notes = notes
        told = notes.note(self.NOTE) or {}
        self._last = PublishedDemand(**{name: tuple(part) for name, part in told.items()})

    async def ask(self, ours: Sequence[Resources]) -> None:
        """Replace our part of the request; what others have asked for stays.

        Our part is noted before it is written, so a manager that dies in between still knows it.
        """
        there = await asyncio.to_thread(self._requests.read)
        wanted = self._requests.encode([each.to_ray() for each in ours])
        now = merged(there, self._last, wanted)
        if sorted(there) == sorted(now.all) and now.all == self._last.all:
            return
        self._notes.write_note(self.NOTE, asdict(now))
        self._last = now
        if sorted(there) != sorted(now.all):
            await asyncio.to_thread(self._requests.write, now.all)
