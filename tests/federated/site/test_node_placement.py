"""A site knows of every node where it is and why, and remembers a bounded number of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fedpilot.fabric.testing.fake_cluster import ManualClock
from fedpilot.federated.site import node_placement as hosting_module
from fedpilot.federated.site.node_placement import Hosting


def clients(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def hosting(clock: ManualClock) -> Hosting:
    return Hosting(clock)


def state(hosting: Hosting, index: int) -> tuple[str, str]:
    shown = hosting.show(index)
    return shown["state"], shown["worker"]


def test_a_round_takes_its_clients_through_a_worker_and_lets_them_go(
    hosting: Hosting, clock: ManualClock
) -> None:
    visit = hosting.enter(clients(7, 3, 5), "in the cohort of round 1")
    assert state(hosting, 3) == ("pending", "")
    clock.advance(1)
    hosting.carry(visit, 2, "in a chunk of round 1")
    assert [state(hosting, index) for index in (3, 5, 7)] == [("materialized", "worker 2")] * 3
    clock.advance(1)
    hosting.leave(visit, "round 1 is done with it")
    clock.advance(1)
    shown = hosting.show(5)
    assert (shown["state"], shown["reason"], shown["seconds"]) == (
        "released", "round 1 is done with it", 1.0
    )  # fmt: skip
    assert [(ago, event) for ago, event, _ in shown["trail"]] == [
        (3.0, "request"), (2.0, "bind"), (1.0, "release")
    ]  # fmt: skip
    assert state(hosting, 4) == ("virtual", "")
    assert hosting.show(4)["seconds"] is None


def test_a_worker_that_dies_loses_what_it_carried_and_nothing_else(hosting: Hosting) -> None:
    here, there = hosting.enter(clients(1, 2), ""), hosting.enter(clients(3), "")
    hosting.carry(here, 0, "")
    hosting.carry(there, 1, "")
    done = hosting.enter(clients(4), "")
    hosting.carry(done, 0, "")
    hosting.leave(done, "")
    hosting.lose(0, "its process died")
    assert state(hosting, 1)[0] == "pending"
    assert "worker 0 was lost: its process died" in hosting.show(2)["reason"]
    assert state(hosting, 3) == ("materialized", "worker 1")
    assert state(hosting, 4)[0] == "released"
    hosting.carry(here, 1, "")
    assert state(hosting, 1) == ("materialized", "worker 1")


def test_a_piece_that_failed_fails_its_clients(hosting: Hosting) -> None:
    visit = hosting.enter(clients(1), "")
    hosting.carry(visit, 0, "")
    hosting.fail(visit, "it raised")
    assert state(hosting, 1)[0] == "failed"
    assert hosting.show(1)["reason"] == "it raised"
    hosting.leave(visit, "the round was given up")
    assert hosting.show(1)["reason"] == "it raised", "what came later does not apply"


def test_nodes_that_have_a_home_stay_what_they_are_while_a_round_passes(hosting: Hosting) -> None:
    assert hosting.home(5, (0, 1)) == 0
    hosting.begin(5, "train() was called")
    hosting.bind(5, 0)
    hosting.end(5, None)
    visit = hosting.enter(clients(4, 5, 6), "in the cohort of round 1")
    assert 5 not in visit
    assert 4 in visit
    hosting.carry(visit, 1, "")
    hosting.leave(visit, "")
    assert state(hosting, 5) == ("materialized", "worker 0")
    assert state(hosting, 6)[0] == "released"


def test_a_node_that_left_its_home_is_told_of_rounds_since_and_before(
    hosting: Hosting, clock: ManualClock
) -> None:
    hosting.leave(hosting.enter(clients(5), "round 1"), "round 1")
    clock.advance(1)
    hosting.home(5, (0,))
    hosting.begin(5, "train() was called")
    hosting.bind(5, 0)
    hosting.end(5, None)
    hosting.let_go(5, "release() was called")
    assert hosting.show(5)["reason"] == "release() was called"
    assert len(hosting.show(5)["trail"]) == 5
    clock.advance(1)
    hosting.carry(hosting.enter(clients(5), "round 2"), 1, "round 2")
    assert state(hosting, 5) == ("materialized", "worker 1")


def test_rounds_are_forgotten_but_for_the_latest_however_large(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting_module, "VISITED", 10)
    for number in range(50):
        indices = np.arange(number * 4, number * 4 + 4)
        hosting.leave(hosting.enter(indices, f"round {number}"), "")
    assert len(hosting._visits) <= 3
    assert state(hosting, 0)[0] == "virtual", "as if it had never been touched"
    assert state(hosting, 199)[0] == "released"
    large = hosting.enter(np.arange(1000), "a large round")
    assert len(hosting._visits) == 1
    hosting.carry(large, 0, "")
    assert state(hosting, 999) == ("materialized", "worker 0")


def test_it_can_be_looked_at_while_rounds_pass(hosting: Hosting) -> None:
    stop, wrong = threading.Event(), []

    def looking() -> None:
        try:
            while not stop.is_set():
                hosting.show(3)
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=looking)
    thread.start()
    for number in range(300):
        visit = hosting.enter(clients(1, 2, 3), f"round {number}")
        hosting.carry(visit, number % 3, "")
        hosting.lose(number % 3, "")
        hosting.leave(visit, "")
    stop.set()
    thread.join()
    assert wrong == []
