"""Asks Ray's autoscaler for what the virtual clusters lack, beside the requests of others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from ...core.ray_clusters.demand import PublishedDemand, merged
from ...core.resources import Resources


class Requests(Protocol):
    """The single request of Ray's autoscaler, as a list of its parts."""

    def read(self) -> Sequence[str]:
        """The whole request, ours and others'."""

    def write(self, requests: Sequence[str]) -> None:
        """Replace the whole request."""

    def encode(self, amounts: Sequence[Mapping[str, float]]) -> Sequence[str]:
        """The parts of a request for these amounts."""


class Notes(Protocol):
    """Remembers our last request."""

    def note(self, name: str) -> Any: ...
    def write_note(self, name: str, what: Any) -> None: ...


class Autoscaler:
    """Our part of the request to Ray's autoscaler."""

    NOTE = "autoscaler"

    def __init__(self, requests: Requests, notes: Notes) -> None:
        self._requests = requests
        self._notes = notes
        told = notes.note(self.NOTE) or {}
        self._last = PublishedDemand(**{name: tuple(part) for name, part in told.items()})

    async def ask(self, ours: Sequence[Resources]) -> None:
        """Replace our part of the request; the others' part stays.

        The new part is noted before it is written, so that a manager's successor knows it.
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
