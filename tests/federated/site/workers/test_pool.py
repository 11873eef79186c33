"""A pool answers every piece of work, whatever happens to its workers or to itself."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fedpilot.fabric import (
    FabricError,
    WorkerFailed,
)
from fedpilot.federated.errors import ClientFailed, FederatedError, WorkersExhausted
from fedpilot.federated.site.workers import pool as pool_module
from fedpilot.federated.site.workers.pool import SharedModel, WorkerCall, WorkerPool
from pools import SOON_S, Node, Setting, answers, piece

pytestmark = pytest.mark.timeout(30)


def test_every_piece_is_answered(setting: Setting) -> None:
    pool = setting.pool(3)
    pool.wait_up(SOON_S)
    assert pool.size == 3
    pieces = [piece("double", n) for n in range(50)]
    pool.submit(pieces)
    assert answers(pieces) == [2 * n for n in range(50)]


def test_work_may_be_handed_out_before_anybody_is_up(setting: Setting) -> None:
    pool = setting.pool(1)
    first = piece("double", 4)
    pool.submit([first])
    assert first.answer.result(SOON_S) == 8


def test_who_got_a_piece_is_said_when_it_is_sent(setting: Setting) -> None:
    pool = setting.pool(3)
    sent: list[int] = []
    pieces = [piece("double", n, on_sent=sent.append) for n in range(4)]
    pool.submit(pieces, worker=2)
    answers(pieces)
    assert sent == [2, 2, 2, 2]


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_worker_that_dies_costs_no_work(nth: int, setting: Setting) -> None:
    setting.cluster.faults.kill_at("double", nth)
    pool = setting.pool(2)
    pieces = [piece("double", n) for n in range(9)]
    pool.submit(pieces)
    assert answers(pieces) == [2 * n for n in range(9)]
    lost = setting.next_event("worker_lost")
    assert lost["held"][0] == "doing double"


def test_work_that_kills_every_worker_is_given_up_and_the_rest_is_done(setting: Setting) -> None:
    for nth in range(1, 10):
        setting.cluster.faults.kill_at("wait", nth)
    pool = setting.pool(2, restarts=2)
    deadly, harmless = piece("wait"), [piece("double", n) for n in range(20)]
    pool.submit([deadly, *harmless])
    assert answers(harmless) == [2 * n for n in range(20)]
    with pytest.raises(WorkersExhausted, match=r"doing wait: the worker died 3 times"):
        deadly.answer.result(SOON_S)


def test_an_error_of_ours_comes_back_as_it_was_raised(setting: Setting) -> None:
    pool = setting.pool(1)
    failing = piece("fail", ClientFailed("client_3", "training", "no"))
    after = piece("double", 1)
    pool.submit([failing, after])
    with pytest.raises(ClientFailed, match="client_3"):
        failing.answer.result(SOON_S)
    assert after.answer.result(SOON_S) == 2, "and its worker goes on"


def test_another_error_comes_back_as_the_fabrics_account_of_it(setting: Setting) -> None:
    failing = piece("fail", KeyError("x"))
    setting.pool(1).submit([failing])
    with pytest.raises(WorkerFailed, match="KeyError"):
        failing.answer.result(SOON_S)


def test_workers_that_cannot_be_made_are_said_so(setting: Setting) -> None:
    pool = setting.pool(1, None, "no such library", restarts=1)
    with pytest.raises(FederatedError, match="no such library"):
        pool.wait_up(SOON_S)
    refused(lambda late: pool.submit([late]))


def test_workers_that_start_slowly_are_told_of_while_they_do(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Event()

    def slow(self: Node) -> dict[str, Any]:
        assert begin.wait(SOON_S)
        return {"pid": 1}

    monkeypatch.setattr(Node, "hello", slow)
    pool = setting.pool(workers=2)
    with pytest.raises(TimeoutError):
        pool.wait_up(0.0)
    setting.clock.advance(pool_module.SLOW_S)
    assert setting.next_event("workers_starting") == {"up": 0, "of": 2, "seconds": 7}
    setting.clock.advance(pool_module.SLOW_S)
    assert setting.next_event("workers_starting")["seconds"] == 14
    begin.set()
    pool.wait_up(SOON_S)
    assert pool.up == 2


def test_several_workers_that_cannot_be_made_at_once_are_said_so(setting: Setting) -> None:
    starts = itertools.count()

    def clock() -> float:
        """Is read before each start: by the third, the first two have failed."""
        if next(starts) == 2:
            for thread in threading.enumerate():
                if thread.name in ("g/0/0", "g/1/0"):
                    thread.join(SOON_S)
        return 0.0

    setting.clock = clock  # type: ignore[assignment]
    pool = setting.pool(3, None, "no such library")
    with pytest.raises(FederatedError, match="no such library"):
        pool.wait_up(3)
    refused(lambda late: pool.submit([late]))


@pytest.mark.parametrize("killer", ["hello", "double"])
def test_a_worker_may_die_as_soon_as_it_is_up(killer: str, setting: Setting) -> None:
    setting.cluster.faults.kill_at(killer, 1)
    pool = setting.pool(1)
    one = piece("double", 1)
    pool.submit([one])
    assert one.answer.result(SOON_S) == 2


# -- models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_a_model_goes_to_a_worker_once(stored: bool, setting: Setting) -> None:
    pool = setting.pool(1)
    model = SharedModel("k", setting.cluster.put({"w": 1}) if stored else {"w": 1})
    pieces = [WorkerCall(method="model", args=(), what="x", model=model) for _ in range(3)]
    pool.submit(pieces)
    assert answers(pieces) == [(True, {"w": 1}), (False, {"w": 1}), (False, {"w": 1})]


def test_a_worker_that_was_started_again_gets_its_model_again(setting: Setting) -> None:
    pool = setting.pool(1)
    model = SharedModel("k", "state")
    first = WorkerCall(method="model", args=(), what="x", model=model)
    pool.submit([first])
    answers([first])
    setting.kill(0, 0)
    again = WorkerCall(method="model", args=(), what="x", model=model)
    pool.submit([again])
    assert again.answer.result(SOON_S) == (True, "state")


def test_a_pool_and_its_worker_forget_the_same_models(setting: Setting) -> None:
    pool = setting.pool(1)
    models = {key: SharedModel(key, key) for key in "abc"}
    order = "abacabcbacab" * 3
    pieces = [WorkerCall(method="model", args=(), what="x", model=models[key]) for key in order]
    pool.submit(pieces)
    assert [state for _, state in answers(pieces)] == list(order)


# -- deadlines --------------------------------------------------------------------------------


def test_a_worker_that_does_not_answer_is_taken_for_dead_and_its_work_goes_on(
    setting: Setting,
) -> None:
    gate = threading.Event()
    pool = setting.pool(2, gate, timeout_s=60)
    pool.wait_up(SOON_S)
    started = threading.Event()
    hung = piece("wait", on_sent=lambda _: started.set())
    pool.submit([hung], worker=0)
    assert started.wait(SOON_S)
    setting.clock.advance(61)
    lost = setting.next_event("worker_lost")
    assert (lost["worker"], lost["held"]) == (0, ["doing wait"])
    assert "60 s" in lost["reason"]
    gate.set()
    assert hung.answer.result(SOON_S) == "waited"


def test_an_idle_worker_is_never_too_late(setting: Setting) -> None:
    pool = setting.pool(1, timeout_s=60)
    pool.wait_up(SOON_S)
    setting.clock.advance(1000)
    one = piece("double", 1)
    pool.submit([one])
    assert one.answer.result(SOON_S) == 2
    assert [kind for kind, _ in list(setting.events.queue)] == ["worker_ready"]


def test_the_death_of_an_idle_worker_costs_no_work(setting: Setting) -> None:
    pool = setting.pool(1, restarts=1)
    pool.wait_up(SOON_S)
    setting.kill(0, 0)
    one = piece("double", 1)
    pool.submit([one])
    assert one.answer.result(SOON_S) == 2


def test_a_worker_that_is_gone_for_good_is_lost_only_once(setting: Setting) -> None:
    """Nobody waits for it any more, so nobody can be told again that it does not answer."""
    setting.cluster.faults.kill_at("double", 1)
    pool = setting.pool(2, restarts=0, timeout_s=60)
    pool.wait_up(SOON_S)
    doomed = piece("double", 1)
    pool.submit([doomed])
    with pytest.raises(WorkersExhausted):
        doomed.answer.result(SOON_S)
    setting.next_event("worker_lost")
    for _ in range(3):
        setting.clock.advance(100)
        after = threading.Event()
        threading.Timer(5 * pool_module.TICK_S, after.set).start()
        after.wait(SOON_S)
    assert "worker_lost" not in [kind for kind, _ in list(setting.events.queue)]


# -- the end ----------------------------------------------------------------------------------


def test_closing_fails_what_is_undone_and_may_be_done_twice(setting: Setting) -> None:
    gate = threading.Event()
    pool = setting.pool(1, gate)
    pieces = [piece("wait") for _ in range(5)]
    pool.submit(pieces)
    pool.close()
    gate.set()
    for each in pieces:
        with pytest.raises(FederatedError):
            each.answer.result(SOON_S)
    pool.close()


def refused(submit: Callable[[WorkerCall], None]) -> None:
    """Work that nobody can do is refused at once: raised, or as its answer."""
    late = piece("double", 1)

    def ask() -> None:
        submit(late)
        late.answer.result(1)

    with pytest.raises((FederatedError, FabricError)):
        ask()


def lose_for_good(setting: Setting, pool: WorkerPool) -> None:
    """Kill worker 0 of a pool that starts none again."""
    setting.kill(0, 0)
    last = piece("double", 0)
    pool.submit([last], worker=0)
    with pytest.raises(WorkersExhausted):
        last.answer.result(SOON_S)


def test_a_closed_pool_takes_no_work(setting: Setting) -> None:
    pool = setting.pool(1)
    pool.wait_up(SOON_S)
    pool.close()
    refused(lambda late: pool.submit([late]))


def test_a_pool_without_workers_takes_no_work(setting: Setting) -> None:
    pool = setting.pool(1, restarts=0)
    pool.wait_up(SOON_S)
    lose_for_good(setting, pool)
    refused(lambda late: pool.submit([late]))


def test_a_worker_that_is_gone_for_good_takes_no_work(setting: Setting) -> None:
    pool = setting.pool(2, restarts=0)
    pool.wait_up(SOON_S)
    lose_for_good(setting, pool)
    refused(lambda late: pool.submit([late], worker=0))
    other = piece("double", 1)
    pool.submit([other])
    assert other.answer.result(SOON_S) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_that_broke_fails_all_its_work_and_takes_no_more(setting: Setting) -> None:
    pool = setting.pool(1)
    pool.wait_up(SOON_S)

    def broken(_worker: int) -> None:
        raise RuntimeError("a bug of ours")

    pieces = [piece("double", 1, on_sent=broken), piece("double", 2)]
    pool.submit(pieces)
    for each in pieces:
        with pytest.raises(RuntimeError, match="a bug of ours"):
            each.answer.result(SOON_S)
    late = piece("double", 3)
    pool.submit([late])
    with pytest.raises((RuntimeError, FederatedError)):
        late.answer.result(1)


class Elsewhere(Node):
    """A worker on another machine, which is up once the gate is open."""

    def hello(self) -> dict[str, Any]:
        self.wait()
        return {**super().hello(), "sharers": "elsewhere"}


@pytest.mark.parametrize(("of", "shared"), [(Node, True), (Elsewhere, False)])
def test_memory_is_shared_with_workers_on_this_machine_alone(
    of: type[Node], shared: bool, setting: Setting
) -> None:
    """A worker that is not up for now comes back where it was."""
    gate = threading.Event()
    gate.set()
    pool = setting.pool(1, gate, of=of)
    pool.wait_up(SOON_S)
    assert pool.shares_memory is shared
    gate.clear()
    setting.kill(0, 0)
    pool.submit([piece("double", 1)])
    setting.next_event("worker_lost")
    assert pool.shares_memory is shared
    gate.set()
