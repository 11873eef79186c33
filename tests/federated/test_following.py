"""The sites of a mediator's run are looked at when something about them has changed."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from fedpilot.federated import mediated
from fedpilot.federated.mediated import Following, MediatedFederation
from fedpilot.mediator.coordinator_link import MediatorConnection

SOON_S = 20.0


class Sites:
    """In the place of a federation and of its connection: one drain, then nothing to do."""

    def __init__(self) -> None:
        self.looks: queue.Queue[dict[str, float]] = queue.Queue()
        self.drained: Future[None] = Future()
        self.changed: Callable[[Any], None] = lambda standing: None

    def on_site_change(self, callback: Callable[[Any], None]) -> None:
        self.changed = callback

    def follow(self, among: Sequence[str], busy: Mapping[str, float]) -> dict[str, Future[None]]:
        first = self.looks.empty() and not self.drained.done()
        self.looks.put(dict(busy))
        return {"paris": self.drained} if first else {}


def test_a_site_is_looked_at_again_once_its_drain_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have been uncordoned meanwhile, and nobody would say that again."""
    monkeypatch.setattr(mediated, "LOOK_S", 10 * SOON_S)
    sites = Sites()
    following = Following(
        cast(MediatedFederation, sites), cast(MediatorConnection, sites), among=()
    )
    try:
        sites.changed(None)
        assert sites.looks.get(timeout=SOON_S) == {}
        sites.drained.set_result(None)
        assert sites.looks.get(timeout=SOON_S) == {}
    finally:
        following.close()
