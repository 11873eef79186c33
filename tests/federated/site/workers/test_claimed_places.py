"""A pool whose places others claim saves what it has and leaves, and goes on when it is back."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from fedpilot.fabric import Gang, Standing, VNodeId
from fedpilot.federated.site.workers import gang_watch
from fedpilot.federated.site.workers.pool import WorkerPool
from pools import SOON_S, Setting, answers, piece

pytestmark = pytest.mark.timeout(30)


class Claimed:
    """The places of a gang that others claim."""

    def __init__(self, gang: Gang) -> None:
        self.slots = gang.slots
        self.now = Standing()
        self.left = threading.Event()
        gang.shared, gang._shared = True, self

    def standing(self) -> Standing:
        return replace(self.now, slots=self.slots)

    def leave(self, node: VNodeId | None = None) -> None:
        self.left.set()


def claimed(setting: Setting, *args: Any, **options: Any) -> tuple[WorkerPool, Claimed]:
    gang = setting.gang(2)
    places = Claimed(gang)
    pool = setting.pool(2, *args, gang=gang, **options)
    pool.wait_up(SOON_S)
    return pool, places


def test_under_notice_nothing_new_begins_and_what_is_saved_comes_first(setting: Setting) -> None:
    gate = threading.Event()
    saved = piece("double", 21)
    pool, places = claimed(
        setting, gate, on_notice=lambda: pool.submit([saved], worker=0, first=True)
    )
    running = [piece("wait"), piece("wait")]
    pool.submit(running)
    places.now = Standing(leaves_in_s=9.0, reason="for other")
    assert setting.next_event("gang_notice") == {"seconds": 9.0, "reason": "for other"}
    later = piece("double", 1)
    pool.submit([later])
    assert not places.left.is_set()
    gate.set()
    assert answers([*running, saved]) == ["waited", "waited", 42]
    assert places.left.wait(SOON_S)
    assert not later.answer.done()


def test_a_pool_whose_places_are_gone_goes_on_when_it_has_them_again(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_watch, "LOOK_S", 1e6)  # it looks as soon as a worker dies
    gate = threading.Event()
    pool, places = claimed(setting, gate, restarts=0)
    running = [piece("wait"), piece("wait"), piece("double", 3)]
    pool.submit(running)
    places.now = Standing(held=False, reason="it left for other")
    setting.kill(0, 0)
    assert setting.next_event("gang_preempted") == {"reason": "it left for other"}
    assert not any(each.answer.done() for each in running)
    gate.set()
    places.now = Standing()
    assert pool._watcher is not None
    pool._watcher.look(gang_watch.WorkerDeath(0, 0, "an earlier worker died"))
    assert setting.next_event("gang_regained") == {"workers": 2}
    assert answers(running) == ["waited", "waited", 6]
    assert "worker_lost" not in [kind for kind, _ in list(setting.events.queue)]


def test_a_notice_that_is_withdrawn_lets_work_go_on(setting: Setting) -> None:
    gate = threading.Event()
    pool, places = claimed(setting, gate)
    running = piece("wait")
    pool.submit([running])
    places.now = Standing(leaves_in_s=9.0)
    setting.next_event("gang_notice")
    later = piece("double", 1)
    pool.submit([later])
    places.now = Standing()
    assert answers([later]) == [2]
    gate.set()
    assert answers([running]) == ["waited"]


def test_a_worker_that_dies_where_nothing_is_claimed_is_lost(setting: Setting) -> None:
    gate = threading.Event()
    pool, _ = claimed(setting, gate)
    running = piece("wait")
    pool.submit([running], worker=0)
    setting.kill(0, 0)
    assert setting.next_event("worker_lost")["worker"] == 0
    gate.set()
    assert answers([running]) == ["waited"]
