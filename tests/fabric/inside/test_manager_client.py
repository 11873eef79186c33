"""What a process tells the manager of the work that it submitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedpilot.fabric.core.records import ProcessId, WorkId
from fedpilot.fabric.inside import manager_client
from fedpilot.fabric.inside.manager_client import WINDOW, Reporter

ME = ProcessId("me")


class Line:
    """A Ray in which tasks end when the test says so, and a manager that can fall silent."""

    def __init__(self) -> None:
        self.there: set[Any] = set()
        self.looked: list[list[object]] = []
        self.told: list[WorkId] = []
        self.actors: list[tuple[Any, ...]] = []
        self.given_back: list[WorkId] = []
        self.times = 0
        self.silent = False
        self.refuses = False

    def up(self) -> bool:
        return True

    def ended(self, refs: Sequence[object], timeout_s: float) -> Sequence[object]:
        self.looked.append(list(refs))
        return [ref for ref in refs if ref in self.there]

    def call(self, method: str, /, *args: Any, timeout_s: float = 60.0) -> None:
        if self.silent:
            raise ConnectionError("the manager is starting again")
        if method == "begun":
            self.actors.append(args)
        elif method == "unused":
            self.given_back += args[1]
        else:
            assert (method, args[0]) == ("done", ME)
            self.times += 1
            self.told += args[1]
        if self.refuses:
            raise TimeoutError


def following(line: Line, count: int) -> Reporter:
    """A reporter of so many tasks, whose work is named like what they return."""
    reporter = Reporter(ME, line)
    for number in range(count):
        reporter.follow(WorkId(f"w{number}"), f"w{number}")
    return reporter


def test_the_end_of_work_is_told_once() -> None:
    line = Line()
    reporter = following(line, 3)
    line.there = {"w1"}
    reporter.look()
    reporter.look()
    assert line.told == ["w1"]


def test_what_could_not_be_told_is_told_later() -> None:
    line = Line()
    reporter = following(line, 2)
    line.there, line.silent = {"w0"}, True
    for _ in range(2):
        try:
            reporter.look()
        except ConnectionError:
            continue
        raise AssertionError("it is not silent")
    line.silent = False
    reporter.look()
    assert line.told == ["w0"]


def test_a_look_costs_no_more_for_many_tasks_than_for_some() -> None:
    line = Line()
    reporter = following(line, 20 * WINDOW)
    for _ in range(25):
        reporter.look()
    assert max(len(refs) for refs in line.looked) == WINDOW
    assert len(line.looked) <= 50


def test_all_tasks_are_looked_at_in_turn() -> None:
    line = Line()
    reporter = following(line, 5 * WINDOW + 7)
    last = f"w{5 * WINDOW + 6}"
    line.there = {f"w{2 * WINDOW}", last}
    for _ in range(6):
        reporter.look()
    assert sorted(line.told) == sorted(line.there)


def test_actors_cost_one_word_in_a_while() -> None:
    line = Line()
    reporter = Reporter(ME, line)
    for number in range(3):
        reporter.follow_actor(WorkId(f"w{number}"), f"a{number}")
        reporter.look()
    assert (line.times, line.looked, line.told) == (1, [], [])


def test_a_manager_that_was_away_hears_of_actors_later() -> None:
    line = Line()
    reporter = Reporter(ME, line)
    line.silent = True
    reporter.follow_actor(WorkId("w0"), "a0")
    with pytest.raises(ConnectionError):
        reporter.look()
    line.silent = False
    for _ in range(2):
        reporter.look()
    assert line.actors == [("w0", "a0")]


def test_what_ends_with_the_connection_is_told() -> None:
    line = Line()
    reporter = following(line, 2)
    reporter.start()
    reporter.ended([WorkId("refused")])
    reporter.close()
    assert sorted(line.told) == ["refused", "w0", "w1"]


def test_a_manager_that_does_not_answer_holds_nobody_back_from_leaving() -> None:
    line = Line()
    reporter = following(line, 1)
    reporter.start()
    line.refuses = True
    reporter.close()
    assert line.told == ["w0"]


def test_forgetting_has_others_forget_as_well() -> None:
    heard: list[str] = []
    before = len(manager_client._forgets)
    manager_client.on_forget(lambda: heard.append("forgotten"))
    try:
        manager_client.forget()
    finally:
        del manager_client._forgets[before:]
    assert heard == ["forgotten"]
