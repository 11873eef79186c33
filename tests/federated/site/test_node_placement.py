"""A site knows of every node where it is and why, and remembers a bounded number of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fedpilot.fabric.testing.fake_cluster import ManualClock
from fedpilot.federated.site import node_placement as hosting_module
from fedpilot.federated.site.node_placement import NodePlacement


def clients(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def placement(clock: ManualClock) -> NodePlacement:
    return NodePlacement(clock)


def state(placement: NodePlacement, index: int) -> tuple[str, str]:
    shown = placement.show(index)
    return shown["state"], shown["worker"]


def test_a_round_takes_its_clients_through_a_worker_and_lets_them_go(
    placement: NodePlacement, clock: ManualClock
) -> None:
    visit = placement.enter(clients(7, 3, 5), "in the cohort of round 1")
    assert state(placement, 3) == ("pending", "")
    clock.advance(1)
    placement.carry(visit, 2, "in a chunk of round 1")
    assert [state(placement, index) for index in (3, 5, 7)] == [("materialized", "worker 2")] * 3
    clock.advance(1)
    placement.leave(visit, "round 1 is done with it")
    clock.advance(1)
    shown = placement.show(5)
    assert (shown["state"], shown["reason"], shown["seconds"]) == (
        "released", "round 1 is done with it", 1.0
    )  # fmt: skip
    assert [(ago, event) for ago, event, _ in shown["trail"]] == [
        (3.0, "request"), (2.0, "bind"), (1.0, "release")
    ]  # fmt: skip
    assert state(placement, 4) == ("virtual", "")
    assert placement.show(4)["seconds"] is None


def test_a_worker_that_dies_loses_what_it_carried_and_nothing_else(
    placement: NodePlacement,
) -> None:
    here, there = placement.enter(clients(1, 2), ""), placement.enter(clients(3), "")
    placement.carry(here, 0, "")
    placement.carry(there, 1, "")
    done = placement.enter(clients(4), "")
    placement.carry(done, 0, "")
    placement.leave(done, "")
    placement.lose(0, "its process died")
    assert state(placement, 1)[0] == "pending"
    assert "worker 0 was lost: its process died" in placement.show(2)["reason"]
    assert state(placement, 3) == ("materialized", "worker 1")
    assert state(placement, 4)[0] == "released"
    placement.carry(here, 1, "")
    assert state(placement, 1) == ("materialized", "worker 1")


def test_a_piece_that_failed_fails_its_clients(placement: NodePlacement) -> None:
    visit = placement.enter(clients(1), "")
    placement.carry(visit, 0, "")
    placement.fail(visit, "it raised")
    assert state(placement, 1)[0] == "failed"
    assert placement.show(1)["reason"] == "it raised"
    placement.leave(visit, "the round was given up")
    assert placement.show(1)["reason"] == "it raised", "what came later does not apply"


def test_nodes_that_have_a_home_stay_what_they_are_while_a_round_passes(
    placement: NodePlacement,
) -> None:
    assert placement.home(5, (0, 1)) == 0
    placement.begin(5, "train() was called")
    placement.bind(5, 0)
    placement.end(5, None)
    visit = placement.enter(clients(4, 5, 6), "in the cohort of round 1")
    assert 5 not in visit
    assert 4 in visit
    placement.carry(visit, 1, "")
    placement.leave(visit, "")
    assert state(placement, 5) == ("materialized", "worker 0")
    assert state(placement, 6)[0] == "released"


def test_a_node_that_left_its_home_is_told_of_rounds_since_and_before(
    placement: NodePlacement, clock: ManualClock
) -> None:
    placement.leave(placement.enter(clients(5), "round 1"), "round 1")
    clock.advance(1)
    placement.home(5, (0,))
    placement.begin(5, "train() was called")
    placement.bind(5, 0)
    placement.end(5, None)
    placement.let_go(5, "release() was called")
    assert placement.show(5)["reason"] == "release() was called"
    assert len(placement.show(5)["trail"]) == 5
    clock.advance(1)
    placement.carry(placement.enter(clients(5), "round 2"), 1, "round 2")
    assert state(placement, 5) == ("materialized", "worker 1")


def test_rounds_are_forgotten_but_for_the_latest_however_large(
    placement: NodePlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting_module, "VISITED", 10)
    for number in range(50):
        indices = np.arange(number * 4, number * 4 + 4)
        placement.leave(placement.enter(indices, f"round {number}"), "")
    assert len(placement._visits) <= 3
    assert state(placement, 0)[0] == "virtual", "as if it had never been touched"
    assert state(placement, 199)[0] == "released"
    large = placement.enter(np.arange(1000), "a large round")
    assert len(placement._visits) == 1
    placement.carry(large, 0, "")
    assert state(placement, 999) == ("materialized", "worker 0")


def test_it_can_be_looked_at_while_rounds_pass(placement: NodePlacement) -> None:
    stop, wrong = threading.Event(), []

    def looking() -> None:
        try:
            while not stop.is_set():
                placement.show(3)
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=looking)
    thread.start()
    for number in range(300):
        visit = placement.enter(clients(1, 2, 3), f"round {number}")
        placement.carry(visit, number % 3, "")
        placement.lose(number % 3, "")
        placement.leave(visit, "")
    stop.set()
    thread.join()
    assert wrong == []
