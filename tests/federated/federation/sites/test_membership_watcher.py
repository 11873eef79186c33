"""The sites of a mediator's run are looked at when something about them has changed."""

from __future__ import annotations

import queue
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import closing

import pytest

from fedpilot.federated.federation.sites import membership_watcher
from fedpilot.federated.federation.sites.membership_watcher import MembershipWatcher

SOON_S = 60.0


class Sites:
    """One drain, then nothing to do."""

    def __init__(self) -> None:
        self.looks: queue.Queue[set[str]] = queue.Queue()
        self.drained: Future[None] = Future()

    def look(self, busy: Collection[str]) -> dict[str, Future[None]]:
        first = self.looks.empty() and not self.drained.done()
        self.looks.put(set(busy))
        return {"paris": self.drained} if first else {}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks again for no reason."""
    monkeypatch.setattr(membership_watcher, "LOOK_S", 10 * SOON_S)


@pytest.mark.usefixtures("patient")
def test_a_site_is_looked_at_again_once_its_drain_has_ended() -> None:
    """It may have been uncordoned meanwhile, and nobody would say that again."""
    sites = Sites()
    with closing(MembershipWatcher(sites.look)):
        assert sites.looks.get(timeout=SOON_S) == set()
        sites.drained.set_result(None)
        assert sites.looks.get(timeout=SOON_S) == set()


@pytest.mark.usefixtures("patient")
def test_a_look_that_fails_is_not_the_last() -> None:
    looks: queue.Queue[str] = queue.Queue()

    def look(busy: Collection[str]) -> dict[str, Future[None]]:
        looks.put("look")
        raise ZeroDivisionError("a mistake")

    with closing(MembershipWatcher(look)) as sites:
        looks.get(timeout=SOON_S)
        sites.wake()
        looks.get(timeout=SOON_S)
