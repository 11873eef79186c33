"""What commands share: how long they wait for Ray and what they say meanwhile; interruptions."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import click
import pytest
from click.testing import CliRunner

from control_plane import ControlPlane, serving
from fedpilot.common.terminal.commands import UNDISTURBED_S, fail, interruptions
from fedpilot.fabric.cli.access import RayAccess, with_access

HANG_S = 60.0


def test_what_follows_from_an_interruption_is_not_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    before = signal.getsignal(signal.SIGINT)
    with interruptions():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)  # it leaves Ray by now
        now += UNDISTURBED_S
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


@click.command()
@with_access(lambda: pytest.fail("no way of ours"))
def look(ray: RayAccess[str], as_json: bool) -> None:
    """A command that asks Ray something."""
    click.echo(ray.ask(lambda said: said))


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """That something was said while it was waited, which begins at once."""
    monkeypatch.setattr("fedpilot.fabric.cli.access.FIRST_S", 0.01)
    event, echo = threading.Event(), click.echo

    def heard(*what: object, **how: bool) -> None:
        echo(*what, **how)  # type: ignore[arg-type]
        event.set()

    monkeypatch.setattr(click, "echo", heard)
    return event


def attached_slowly(spoken: threading.Event, address: str) -> str:
    """What is said while a Ray lets nobody in."""

    @contextmanager
    def slow(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[str]:
        assert spoken.wait(HANG_S)
        yield f"{timeout_s:g}"

    done = CliRunner().invoke(look, ["--timeout", "90", "--address", address], obj=slow)
    assert (done.exit_code, done.stdout) == (0, "90\n")
    assert "it may take 90 s (--timeout)" in done.stderr
    return done.stderr


def test_a_ray_that_is_slow_is_said_to_be_slow_while_it_is(spoken: threading.Event) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        told = attached_slowly(spoken, address)
    assert f"the Ray at {address} has not answered for " in told


def test_a_head_without_a_raylet_is_told_from_one_that_does_not_answer(
    spoken: threading.Event,
) -> None:
    plane = ControlPlane()
    plane.may.set()
    with serving(plane) as address:
        told = attached_slowly(spoken, address)
    assert f"the Ray at {address} answers, but this command has not joined it after " in told


def test_an_answer_that_takes_long_is_said_to_take_long(spoken: threading.Event) -> None:
    @click.command()
    @with_access(lambda: pytest.fail("no way of ours"))
    def asks(ray: RayAccess[str], as_json: bool) -> None:
        ray.ask(lambda _: spoken.wait(HANG_S))

    arguments = ["--address", "10.0.0.5:6379"]
    done = CliRunner().invoke(asks, arguments, obj=lambda *_: nullcontext(""))
    assert done.exit_code == 0
    assert "joined the Ray at 10.0.0.5:6379, but has no answer after" in done.stderr


def test_a_failure_says_nothing_that_a_terminal_would_obey(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        fail("run r failed: \x1b[2J\ngone", 1)
    assert capsys.readouterr().err == "fedpilot: run r failed: ?[2J\ngone\n"


@pytest.mark.parametrize("text", ["0", "-1", "soon"])
def test_a_deadline_is_a_number_above_zero(text: str) -> None:
    done = CliRunner().invoke(look, ["--timeout", text])
    assert done.exit_code == 2
    assert "--timeout" in done.stderr
