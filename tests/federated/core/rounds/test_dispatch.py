"""Every piece of work ends once, whoever dies when; nobody is idle while there is work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.rounds.dispatch import (
    AbandonWork,
    Action,
    Dispatcher,
    Send,
    StartWorker,
)


def up(workers: int, limit: int = 3) -> Dispatcher:
    dispatcher = Dispatcher(workers, limit)
    dispatcher.start()
    for number in range(workers):
        dispatcher.ready(number)
    return dispatcher


def sent(actions: Iterable[Action]) -> list[tuple[int, int]]:
    return [(a.worker, a.work) for a in actions if isinstance(a, Send)]


def given_up(actions: Iterable[Action]) -> list[int]:
    return [a.work for a in actions if isinstance(a, AbandonWork)]


# -- tables -----------------------------------------------------------------------------------


def test_it_begins_by_starting_every_worker() -> None:
    assert Dispatcher(3, 1).start() == [StartWorker(0), StartWorker(1), StartWorker(2)]


def test_work_waits_until_a_worker_is_up() -> None:
    dispatcher = Dispatcher(2, 1)
    assert dispatcher.submit([7, 8]) == []
    assert not dispatcher.idle
    assert sent(dispatcher.ready(1)) == [(1, 7)]
    assert sent(dispatcher.ready(0)) == [(0, 8)]


def test_work_that_is_first_goes_before_all_that_waits_in_its_order() -> None:
    dispatcher = up(1)
    dispatcher.submit(range(5))
    assert dispatcher.submit([10, 11], worker=0, first=True) == [], "the worker holds two"
    assert sent(dispatcher.done(0, 0)) == [(0, 10)]
    assert sent(dispatcher.done(0, 1)) == [(0, 11)]
    assert sent(dispatcher.done(0, 10)) == [(0, 2)]


@pytest.mark.parametrize(
    ("workers", "works", "expected"),
    [
        pytest.param(1, 1, [(0, 0)], id="one piece goes to the one worker"),
        pytest.param(1, 5, [(0, 0), (0, 1)], id="a worker holds two pieces at most"),
        pytest.param(3, 3, [(0, 0), (1, 1), (2, 2)], id="everybody gets one first"),
        pytest.param(3, 2, [(0, 0), (1, 1)], id="fewer pieces than workers"),
        pytest.param(
            2, 9, [(0, 0), (1, 1), (0, 2), (1, 3)], id="a second piece each while plenty wait"
        ),
        pytest.param(
            3, 4, [(0, 0), (1, 1), (2, 2)], id="no second piece when few are left for all"
        ),
        pytest.param(2, 0, [], id="no work"),
    ],
)
def test_work_goes_out_in_order_to_whoever_holds_least(
    workers: int, works: int, expected: list[tuple[int, int]]
) -> None:
    assert sent(up(workers).submit(range(works))) == expected


def test_a_lost_workers_pieces_go_back_to_the_head_of_the_line() -> None:
    dispatcher = up(1)
    dispatcher.submit(range(4))
    assert dispatcher.doing(0) == (0, 1)
    assert dispatcher.lost(0, "died") == [StartWorker(0)]
    assert sent(dispatcher.ready(0)) == [(0, 0), (0, 1)]


def test_only_the_piece_that_a_worker_was_on_counts_the_loss() -> None:
    dispatcher = up(2, limit=0)
    dispatcher.submit(range(5))
    assert dispatcher.doing(0) == (0, 2)
    assert given_up(dispatcher.lost(0, "died")) == [0]
    ended = set()
    while doing := dispatcher.doing(1):
        dispatcher.done(1, doing[0])
        ended.add(doing[0])
    assert ended == {1, 2, 3, 4}
    assert dispatcher.idle


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_piece_is_given_up_when_it_lost_more_workers_than_it_may(limit: int) -> None:
    dispatcher = up(limit + 3, limit)
    dispatcher.submit([9])
    losses = 0
    while not dispatcher.idle:
        holder = next(n for n in range(limit + 3) if dispatcher.doing(n))
        losses += 1
        actions = dispatcher.lost(holder, "it ate too much")
    assert losses == limit + 1
    assert [a for a in actions if isinstance(a, AbandonWork)] == [
        AbandonWork(9, losses, "it ate too much")
    ]


@pytest.mark.parametrize("limit", [0, 2])
def test_a_worker_that_never_comes_up_is_started_so_often_and_then_all_is_given_up(
    limit: int,
) -> None:
    dispatcher = Dispatcher(1, limit)
    dispatcher.start()
    dispatcher.submit([4, 5])
    for _ in range(limit):
        assert dispatcher.lost(0, "no") == [StartWorker(0)]
    actions = dispatcher.lost(0, "no")
    assert given_up(actions) == [4, 5]
    assert StartWorker(0) not in actions
    assert dispatcher.idle


def test_a_worker_that_finishes_something_may_die_as_often_again() -> None:
    dispatcher = up(1, limit=1)
    dispatcher.submit(range(6))
    for work in range(6):
        assert StartWorker(0) in dispatcher.lost(0, "died")
        dispatcher.ready(0)
        assert dispatcher.doing(0)[0] == work
        dispatcher.done(0, work)
    assert dispatcher.idle


def test_the_others_do_the_work_of_a_worker_that_is_gone_for_good() -> None:
    dispatcher = up(2, limit=0)
    dispatcher.ready(1)
    dispatcher.lost(0, "gone")
    actions = dispatcher.submit(range(3))
    assert {worker for worker, _ in sent(actions)} == {1}


def test_pinned_work_waits_for_its_worker_and_stops_nobody_else() -> None:
    dispatcher = Dispatcher(2, 3)
    dispatcher.start()
    dispatcher.ready(1)
    assert dispatcher.submit([1, 2, 3], worker=0) == []
    assert sent(dispatcher.submit([4])) == [(1, 4)]
    assert sent(dispatcher.ready(0)) == [(0, 1), (0, 2)]
    assert sent(dispatcher.done(0, 1)) == [(0, 3)]


def test_pinned_work_goes_to_the_same_worker_after_it_was_started_again() -> None:
    dispatcher = up(3)
    assert sent(dispatcher.submit([1], worker=2)) == [(2, 1)]
    assert sent(dispatcher.lost(2, "died")) == []
    assert sent(dispatcher.ready(2)) == [(2, 1)]


def test_pinned_work_is_given_up_with_its_worker_and_the_rest_goes_on() -> None:
    dispatcher = up(2, limit=0)
    dispatcher.submit([1, 2, 3], worker=0)
    dispatcher.submit([4])
    actions = dispatcher.lost(0, "gone")
    assert sorted(given_up(actions)) == [1, 2, 3]
    assert dispatcher.doing(1) == (4,)
    dispatcher.done(1, 4)
    assert dispatcher.idle


def test_work_for_a_worker_that_is_gone_for_good_is_given_up_at_once() -> None:
    dispatcher = up(2, limit=0)
    dispatcher.lost(0, "gone")
    assert given_up(dispatcher.submit([5], worker=0)) == [5]
    assert dispatcher.idle


def test_work_for_a_pool_that_is_gone_for_good_is_given_up_at_once() -> None:
    dispatcher = up(1, limit=0)
    dispatcher.lost(0, "gone")
    assert given_up(dispatcher.submit([5])) == [5]
    assert dispatcher.idle


# -- whatever happens -------------------------------------------------------------------------


Step = tuple[str, int, int]
"""What happens, how often or to how many, and a number that picks the worker or the pieces."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "submit first", "pin", "withdraw", "die", "die", "die of the same piece"]
            + 2 * ["come up", "finish"]
        ),
        st.integers(1, 6),
        st.integers(0, 59),
    ),
    min_size=30,
    max_size=60,
)
"""Not a stateful test of Hypothesis: that turns rules off at random, and reached few states."""


class Pool:
    """Workers that come up, finish and die as the steps say, and what must always hold."""

    WORKERS = 3

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.dispatcher = Dispatcher(self.WORKERS, limit)
        self.starting: set[int] = set()
        self.alive: set[int] = set()
        self.holding: dict[int, list[int]] = {n: [] for n in range(self.WORKERS)}
        self.pinned: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.ended: dict[int, str] = {}
        self.losses: Counter[int] = Counter()
        self.deaths: Counter[int] = Counter()
        self.next = 0
        self.reached: set[str] = set()
        self.perform(self.dispatcher.start())

    @property
    def gone(self) -> set[int]:
        return set(range(self.WORKERS)) - self.alive - self.starting

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartWorker(worker):
                    assert worker not in self.alive | self.starting
                    assert self.deaths[worker] <= self.limit
                    self.starting.add(worker)
                case Send(worker, work):
                    assert worker in self.alive, "work goes to workers that are up"
                    assert work in self.waiting, "a piece is at one worker at a time"
                    assert self.pinned.get(work, worker) == worker
                    self.waiting.remove(work)
                    self.holding[worker].append(work)
                case AbandonWork(work, _, _):
                    assert work in self.waiting, "a piece ends once"
                    self.waiting.remove(work)
                    self.ended[work] = "given up"
                    self.reached.add("pinned work given up" if work in self.pinned else "given up")

    def take(self, step: Step) -> None:
        what, count, pick = step
        match what:
            case "submit":
                self.submit(count)
            case "submit first":
                self.submit(count, first=True)
            case "pin":
                self.submit(count, worker=pick % self.WORKERS, first=count == 1)
            case "withdraw":
                self.withdraw({work for work in range(self.next) if work % 6 == pick % 6})
            case "come up" if self.starting:
                self.come_up(picked(self.starting, pick))
            case "finish" if busy := {n for n, held in self.holding.items() if held}:
                self.finish(picked(busy, pick))
            case "die" if there := self.alive | self.starting:
                self.die(picked(there, pick))
            case "die of the same piece" if killers := self.on_a_piece_that_kills():
                self.die(picked(killers, pick))
        self.check()

    def on_a_piece_that_kills(self) -> set[int]:
        return {n for n, held in self.holding.items() if held and self.losses[held[0]]}

    def submit(self, count: int, worker: int | None = None, *, first: bool = False) -> None:
        works = range(self.next, self.next + count)
        self.next += count
        self.waiting |= set(works)
        if worker is not None:
            self.pinned |= dict.fromkeys(works, worker)
        self.perform(self.dispatcher.submit(works, worker, first=first))

    def withdraw(self, works: set[int]) -> None:
        withdrawn = self.dispatcher.withdraw(works)
        assert len(withdrawn) == len(set(withdrawn))
        assert set(withdrawn) == self.waiting & works
        self.waiting -= works
        self.ended |= dict.fromkeys(withdrawn, "withdrawn")

    def come_up(self, worker: int) -> None:
        self.starting.remove(worker)
        self.alive.add(worker)
        self.perform(self.dispatcher.ready(worker))

    def finish(self, worker: int) -> None:
        work = self.holding[worker].pop(0)
        self.ended[work] = "done"
        self.deaths[worker] = 0
        self.perform(self.dispatcher.done(worker, work))

    def die(self, worker: int) -> None:
        self.alive.discard(worker)
        self.starting.discard(worker)
        self.deaths[worker] += 1
        held, self.holding[worker] = self.holding[worker], []
        self.waiting |= set(held)
        self.losses.update(held[:1])
        actions = self.dispatcher.lost(worker, "died")
        assert (StartWorker(worker) in actions) == (self.deaths[worker] <= self.limit)
        for action in actions:
            if isinstance(action, AbandonWork) and self.deaths[worker] <= self.limit:
                assert self.losses[action.work] == action.losses == self.limit + 1
                self.reached.add("given up, and its worker started again")
        self.perform(actions)
        if held and self.losses[held[0]] > self.limit:
            assert self.ended[held[0]] == "given up"

    def check(self) -> None:
        for worker, held in self.holding.items():
            assert self.dispatcher.doing(worker) == tuple(held)
            assert len(held) <= Dispatcher.DEPTH
        assert set(self.dispatcher.usable()) == self.alive | self.starting

        held = [work for works in self.holding.values() for work in works]
        assert sorted([*self.ended, *self.waiting, *held]) == list(range(self.next)), "none is lost"
        assert self.dispatcher.idle == (not self.waiting and not held)

        for worker in self.alive:
            if not self.holding[worker]:
                mine = [w for w in self.waiting if self.pinned.get(w, worker) == worker]
                assert not mine, f"worker {worker} is idle and could do {mine}"
        for work in self.waiting:
            able = {self.pinned[work]} if work in self.pinned else set(range(self.WORKERS))
            assert able - self.gone, f"piece {work} waits for workers that are gone for good"
        self.notice()

    def notice(self) -> None:
        pinned_waits = any(work in self.pinned for work in self.waiting)
        lost_and_held = {self.losses[work] for held in self.holding.values() for work in held[:1]}
        self.reached |= set(self.ended.values())
        self.reached |= {
            state
            for state, there in {
                "a worker gone for good, others busy": self.gone and any(self.holding.values()),
                "all workers gone for good": len(self.gone) == self.WORKERS,
                "all workers hold two": all(len(held) == 2 for held in self.holding.values()),
                "pinned and free work waits": pinned_waits and self.waiting - set(self.pinned),
                "a piece tried again": 1 in lost_and_held,
                "a piece tried a third time": 2 in lost_and_held,
            }.items()
            if there
        }


def picked(workers: set[int], pick: int) -> int:
    return sorted(workers)[pick % len(workers)]


STATES = {
    "done",
    "withdrawn",
    "given up",
    "given up, and its worker started again",
    "pinned work given up",
    "a worker gone for good, others busy",
    "all workers gone for good",
    "all workers hold two",
    "pinned and free work waits",
    "a piece tried again",
    "a piece tried a third time",
}
NEVER_GONE = {
    "given up",
    "given up, and its worker started again",
    "pinned work given up",
    "a worker gone for good, others busy",
    "all workers gone for good",
}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param(1, STATES - {"a piece tried a third time"}, id="1", marks=pytest.mark.soak),
        pytest.param(2, STATES, id="2"),
        pytest.param(10**9, STATES - NEVER_GONE, id="no limit", marks=pytest.mark.soak),
    ],
)
def test_whatever_happens(limit: int, expected: set[str]) -> None:
    runs: Counter[str] = Counter()

    @given(steps=STEPS)
    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    def walk(steps: list[Step]) -> None:
        pool = Pool(limit)
        for step in steps:
            pool.take(step)
        runs.update(pool.reached)

    walk()
    assert set(runs) == expected, "the steps reach every state"


@given(workers=st.integers(1, 5), works=st.integers(0, 40), data=st.data())
@settings(deadline=None)
def test_everything_is_done_once_if_nobody_dies_too_often(
    workers: int, works: int, data: st.DataObject
) -> None:
    dispatcher = Dispatcher(workers, limit=1000)
    starting = set(range(workers))
    dispatcher.start()
    dispatcher.submit(range(works))
    done: list[int] = []
    deaths = 0
    while not dispatcher.idle:
        busy = [n for n in range(workers) if dispatcher.doing(n)]
        if starting and (not busy or data.draw(st.booleans())):
            worker = data.draw(st.sampled_from(sorted(starting)))
            starting.remove(worker)
            dispatcher.ready(worker)
        elif deaths < 20 and data.draw(st.booleans()):
            worker = data.draw(st.sampled_from(busy))
            deaths += 1
            starting.add(worker)
            assert StartWorker(worker) in dispatcher.lost(worker, "died")
        else:
            worker = data.draw(st.sampled_from(busy))
            work = dispatcher.doing(worker)[0]
            dispatcher.done(worker, work)
            done.append(work)
    assert sorted(done) == list(range(works))


def test_a_worker_under_notice_gets_no_more_work_but_what_is_bound_to_it() -> None:
    dispatcher = up(2)
    dispatcher.submit([0, 1])
    assert dispatcher.follow([0, 1], leaving=[1]) == []
    assert sent(dispatcher.submit([2])) == [(0, 2)]
    assert sent(dispatcher.submit([3], worker=1)) == [(1, 3)]
    assert dispatcher.usable() == (0,)
    dispatcher.done(1, 1)
    assert not dispatcher.rests(1)
    dispatcher.done(1, 3)
    assert dispatcher.rests(1)


def test_a_notice_that_is_withdrawn_lets_a_worker_go_on() -> None:
    dispatcher = up(2)
    dispatcher.follow([0, 1], leaving=[1])
    dispatcher.submit(range(5))
    assert sent(dispatcher.follow([0, 1])) == [(1, 2), (1, 3)]


def test_what_a_worker_had_that_left_goes_first_to_others_and_is_no_loss() -> None:
    dispatcher = up(2, limit=0)
    dispatcher.submit([0, 1, 2, 3, 4])
    assert dispatcher.follow([0]) == []
    assert sent(dispatcher.done(0, 0)) == [(0, 1)]
    assert sent(dispatcher.done(0, 2)) == [(0, 3)]


def test_nothing_goes_to_one_that_leaves_at_the_same_time_and_without_any_work_waits() -> None:
    dispatcher = up(3)
    dispatcher.submit([0, 1, 2])
    assert sent(dispatcher.follow([0])) == [(0, 1)], "and nothing to 1 or 2"
    assert dispatcher.follow([]) == []
    assert not dispatcher.idle
    assert dispatcher.follow([5]) == [StartWorker(5)]
    assert sent(dispatcher.ready(5)) == [(5, 0), (5, 1)]


@pytest.mark.parametrize(
    ("left", "moves", "then"),
    [
        pytest.param([0], True, ([(0, 7)], []), id="what may move goes to another worker"),
        pytest.param([0], False, ([], [7]), id="what may not is given up"),
    ],
)
def test_work_that_is_bound_to_a_worker_that_left(
    left: list[int], moves: bool, then: tuple[list[tuple[int, int]], list[int]]
) -> None:
    dispatcher = up(2)
    dispatcher.submit([7], worker=1, moves=moves)
    actions = dispatcher.follow(left)
    assert (sent(actions), given_up(actions)) == then
    late = dispatcher.submit([8], worker=1, moves=moves)
    assert (len(sent(late)), given_up(late)) == ((1, []) if moves else (0, [8]))


def test_work_that_may_move_goes_at_once_to_another_worker_than_one_under_notice() -> None:
    dispatcher = up(2)
    dispatcher.follow([0, 1], leaving=[1])
    assert sent(dispatcher.submit([7], worker=1, moves=True)) == [(0, 7)]
