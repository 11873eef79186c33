"""A pool follows which workers its gang has, and what the manager says of single ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from elastic_gangs import SharedCluster
from fedpilot.fabric import (
    FabricError,
    FixedSizeNode,
    FixedSizeNodes,
    Gang,
    VirtualCluster,
    VirtualClusterManager,
)
from fedpilot.federated.errors import WorkersExhausted
from fedpilot.federated.site.workers.pool import WorkerPool
from pools import SOON_S, Setting, answers, piece
from real_ray import eventually

pytestmark = pytest.mark.timeout(30)


class Elastic:
    """A pool on a gang of one to three nodes."""

    def __init__(self, setting: Setting, monkeypatch: pytest.MonkeyPatch, undo: ExitStack) -> None:
        self.manager = SharedCluster(monkeypatch).manager
        self.setting, self.gate = setting, threading.Event()
        undo.callback(self.gate.set)

    def gang(self) -> Gang:
        node = FixedSizeNode(resources={"CPU": 1.0})
        group = FixedSizeNodes(nodes=(node,), max_nodes=3)
        spec = VirtualCluster(fixed_size_nodes=(group,))
        return VirtualClusterManager(self.manager._cluster).reserve(spec, name="g")

    def pool(self) -> WorkerPool:
        pool = self.setting.pool(1, self.gate, gang=self.gang(), restarts=0)
        pool.wait_up(SOON_S)
        return pool

    def grows(self, *numbers: int) -> None:
        """Wait until more workers are up."""
        for number in numbers:
            self.manager.grow()
            while self.setting.next_event("worker_ready")["worker"] != number:
                pass


@pytest.fixture
def elastic(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> Elastic:
    return Elastic(setting, monkeypatch, setting._undo)


def test_workers_that_come_get_work(elastic: Elastic) -> None:
    pool = elastic.pool()
    elastic.grows(1, 2)
    assert pool.size == 3
    pieces = [piece("wait") for _ in range(3)]
    pool.submit(pieces)
    elastic.gate.set()
    assert answers(pieces) == ["waited"] * 3


def test_the_arguments_of_a_call_may_depend_on_its_worker(elastic: Elastic) -> None:
    pool = elastic.pool()
    elastic.grows(1)
    pieces = [piece("double", args_at=lambda worker: (worker,)) for _ in range(2)]
    for worker, each in enumerate(pieces):
        pool.submit([each], worker=worker)
    assert answers(pieces) == [0, 2]
    assert [pool.may_leave(worker) for worker in range(2)] == [False, True]


def test_what_a_worker_had_that_left_is_done_by_others_and_told(elastic: Elastic) -> None:
    pool = elastic.pool()
    elastic.grows(1)
    running = [piece("wait"), piece("wait")]
    pool.submit(running)
    elastic.manager.take("g/1")
    left = elastic.setting.next_event("worker_left")
    assert left == {"worker": 1, "reason": "its place is gone", "held": ["doing wait"]}
    elastic.gate.set()
    assert answers(running) == ["waited", "waited"]
    assert pool.size == 1


def test_a_worker_under_notice_leaves_once_it_has_ended(elastic: Elastic) -> None:
    pool = elastic.pool()
    elastic.grows(1)
    running = [piece("wait"), piece("wait")]
    pool.submit(running)
    elastic.manager.notice("g/1")
    told = elastic.setting.next_event("worker_notice")
    assert told == {"worker": 1, "reason": "for other: over its quota"}
    assert pool.size == 1
    assert elastic.manager.left == []
    elastic.gate.set()
    left = elastic.setting.next_event("worker_left")
    assert left == {"worker": 1, "reason": "for other: over its quota", "held": []}
    assert elastic.manager.left == ["g/1"]
    assert answers(running) == ["waited", "waited"]


def test_a_worker_whose_notice_is_withdrawn_gets_work_again(elastic: Elastic) -> None:
    elastic.manager.leaves_when_ended = False
    pool = elastic.pool()
    elastic.grows(1)
    elastic.manager.notice("g/1", 10.0)
    assert elastic.setting.next_event("worker_notice")["worker"] == 1
    elastic.manager.withdraw("g/1")
    pieces = [piece("wait"), piece("wait")]
    sent = [threading.Event() for _ in pieces]
    for each, event in zip(pieces, sent, strict=True):
        each.on_sent = lambda _, event=event: event.set()  # type: ignore[misc]
    pool.submit(pieces)
    assert all(event.wait(SOON_S) for event in sent)
    elastic.gate.set()
    assert answers(pieces) == ["waited", "waited"]


def test_a_sum_whose_worker_has_left_is_gone(elastic: Elastic) -> None:
    pool = elastic.pool()
    elastic.grows(1)
    elastic.manager.take("g/1")
    elastic.setting.next_event("worker_left")
    bound = piece("double", 1)
    pool.submit([bound], worker=1)
    with pytest.raises(WorkersExhausted):
        bound.answer.result(SOON_S)


def test_work_that_may_move_goes_to_another_worker(elastic: Elastic) -> None:
    pool = elastic.pool()
    elastic.grows(1)
    elastic.manager.take("g/1")
    elastic.setting.next_event("worker_left")
    hosted = piece("double", 4)
    pool.submit([hosted], worker=1, moves=True)
    assert answers([hosted]) == [8]


def test_a_worker_that_died_after_the_manager_was_asked_is_asked_about_again(
    elastic: Elastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the manager said before does not show that the worker still has its place."""
    pool = elastic.pool()
    elastic.grows(1)
    manager, watcher = elastic.manager, pool._watcher
    assert watcher is not None
    show, late = manager.show, threading.Event()

    def slow(name: str) -> Mapping[str, Any]:
        found = show(name)
        if not late.is_set():
            late.set()
            manager.take("g/1")
            eventually(lambda: bool(watcher._deaths), SOON_S, "the death is reported")
            return {**found, "leaves": {"at": 1e12, "claimant": "other", "reason": "it is"}}
        return found

    running = [piece("wait"), piece("wait")]
    pool.submit(running)
    monkeypatch.setattr(manager, "show", slow)
    assert elastic.setting.next_event("worker_left")["worker"] == 1
    elastic.gate.set()
    assert answers(running) == ["waited", "waited"]


def test_a_manager_that_is_away_costs_no_worker(
    elastic: Elastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def away(_: str) -> None:
        asked.set()
        raise FabricError("it is started again")

    pool = elastic.pool()
    elastic.grows(1)
    monkeypatch.setattr(elastic.manager, "show", away)
    assert asked.wait(SOON_S)
    pieces = [piece("double", n) for n in range(4)]
    pool.submit(pieces)
    assert answers(pieces) == [0, 2, 4, 6]
    assert pool.size == 2


def test_a_gang_that_comes_back_smaller_has_fewer_workers(elastic: Elastic) -> None:
    pool = elastic.pool()
    elastic.grows(1, 2)
    running = [piece("wait") for _ in range(3)]
    pool.submit(running)
    elastic.manager.preempt()
    elastic.setting.next_event("gang_preempted")
    elastic.manager.give_back()
    assert elastic.setting.next_event("gang_regained") == {"workers": 1}
    elastic.gate.set()
    assert answers(running) == ["waited"] * 3
    assert pool.size == 1
