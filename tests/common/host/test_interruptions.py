"""A signal ends a command once, wherever the main thread is when it comes."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from fedpilot.common.host.interruptions import Interruptions, is_interruption

INTERRUPTED = pytest.raises(KeyboardInterrupt)


class Thing:
    """Something to take a weak reference to."""


def in_a_callback(act: Callable[[], None]) -> None:
    """Call it where Python swallows what is raised, as imports and the garbage collector do."""
    thing = Thing()
    reference = weakref.ref(thing, lambda _: act())
    del thing
    assert reference() is None


def wait(seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts(number: signal.Signals) -> None:
    with INTERRUPTED, Interruptions():
        signal.raise_signal(number)
        wait()


def test_one_that_is_swallowed_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    swallowed = False
    with INTERRUPTED, Interruptions():
        in_a_callback(lambda: signal.raise_signal(signal.SIGINT))
        swallowed = True
        wait()
    assert swallowed
    assert capsys.readouterr().err == ""


def imported_by_c() -> None:
    """As `import_array` of NumPy does: print what came, and raise something else."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        sys.excepthook(type(error), error, error.__traceback__)
    raise ImportError("numpy._core.multiarray failed to import")


def test_one_that_became_another_error_is_one_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = False
    with INTERRUPTED, Interruptions():
        try:
            imported_by_c()
        except ImportError as error:
            known = is_interruption(error)
            raise
    assert known
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [ImportError("no module"), ValueError("wrong")])
def test_other_errors_are_none(error: Exception) -> None:
    with Interruptions():
        assert not is_interruption(error)
    with pytest.raises(type(error)), Interruptions():
        raise error


def test_an_error_of_ones_own_after_an_interruption_is_that_error() -> None:
    with Interruptions():
        with INTERRUPTED:
            signal.raise_signal(signal.SIGINT)
        assert not is_interruption(ValueError("wrong"))


def test_as_often_as_it_takes() -> None:
    swallowed = 0
    with INTERRUPTED, Interruptions():
        in_a_callback(lambda: signal.raise_signal(signal.SIGINT))
        while swallowed < 3:
            try:
                wait()
            except KeyboardInterrupt:
                swallowed += 1
        wait()
    assert swallowed == 3


def test_only_once() -> None:
    cleaned = False
    with INTERRUPTED, Interruptions():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            wait(0.2)
            cleaned = True
    assert cleaned


def test_again_after_a_while() -> None:
    heard = 0
    with INTERRUPTED, Interruptions(again_after_s=0.1):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            heard += 1
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.15)
            heard += 1
            signal.raise_signal(signal.SIGINT)
            heard += 1
    assert heard == 2


def test_not_while_things_are_closed() -> None:
    with Interruptions() as interruptions:
        interruptions.shield()
        signal.raise_signal(signal.SIGINT)
        wait(0.1)


def test_what_is_held_back_comes_later() -> None:
    closed = False
    with INTERRUPTED, Interruptions() as interruptions:
        with interruptions.held():
            signal.raise_signal(signal.SIGINT)
            closed = True
        wait()
    assert closed


def test_signals_are_given_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]
    with Interruptions():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)] == before
