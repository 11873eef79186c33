"""What is closed while it starts leaves nothing behind, from whichever thread that is asked."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from federations import Lab, Log
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Event, FederatedError, Federation
from fedpilot.federated.federation.sites.lifetime import Lifetime
from real_ray import eventually

SOON_S = 60.0


class Thing:
    """Something that is there between its start and its end."""

    def __init__(self) -> None:
        self.there = 0
        self.before = ExitStack()
        self.life = Lifetime(self.before)

    def begin(self, undo: ExitStack) -> None:
        self.there += 1
        undo.callback(self.end)

    def end(self) -> None:
        self.there -= 1


def test_it_is_started_once_and_undone_once() -> None:
    thing = Thing()
    thing.life.start(thing.begin)
    thing.life.start(thing.begin)
    assert thing.there == 1
    thing.life.close()
    thing.life.close()
    assert thing.there == 0
    with pytest.raises(FederatedError, match="is closed"):
        thing.life.start(thing.begin)


def test_a_start_that_fails_may_be_tried_again() -> None:
    thing = Thing()

    def fail(undo: ExitStack) -> None:
        thing.begin(undo)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        thing.life.start(fail)
    assert thing.there == 0
    thing.life.start(thing.begin)
    assert thing.there == 1
    thing.life.close()
    assert thing.there == 0


def test_whoever_closes_waits_until_the_start_is_undone() -> None:
    thing, closed = Thing(), Future[int]()

    def close() -> None:
        thing.life.close()
        closed.set_result(thing.there)

    def begin(undo: ExitStack) -> None:
        thing.begin(undo)
        threading.Thread(target=close).start()
        eventually(lambda: thing.life.closing, SOON_S, "somebody closes it")
        assert not closed.done()

    with pytest.raises(FederatedError, match="is closed"):
        thing.life.start(begin)
    assert closed.result(SOON_S) == 0


def test_the_thread_that_starts_it_may_close_it() -> None:
    thing = Thing()

    def begin(undo: ExitStack) -> None:
        thing.begin(undo)
        thing.life.close()
        assert thing.there == 1
        thing.life.check()

    with pytest.raises(FederatedError, match="is closed"):
        thing.life.start(begin)
    assert thing.there == 0


def test_starts_from_several_threads_are_one() -> None:
    thing = Thing()
    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(thing.life.start, thing.begin) for _ in range(32)]:
            each.result(SOON_S)
    assert thing.there == 1


@pytest.mark.parametrize("moment", ["cluster_ready", "gang_reserved", "workers_ready"])
def test_a_federation_that_is_closed_while_it_starts_holds_nothing(lab: Lab, moment: str) -> None:
    cluster, closing = FakeCluster([fake_machine("a", CPU=4)]), []

    def observer(happened: Event) -> None:
        if happened.name == moment:
            closing.append(threading.Thread(target=federation.close))
            closing[0].start()
            eventually(lambda: federation.gang.closing, SOON_S, "it is being closed")

    log = Log()
    federation = Federation(lab.config(), observers=[log, observer], cluster=cluster)
    with pytest.raises(FederatedError, match="is closed"):
        federation.start()
    closing[0].join(SOON_S)
    assert cluster.groups() == ()
