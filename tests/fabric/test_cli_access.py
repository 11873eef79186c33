"""What commands share: how long they wait for Ray and what they say meanwhile; interruptions."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest
from click.testing import CliRunner

from fedpilot.fabric.cli_access import UNDISTURBED_S, ask, fail, interruptions, with_access

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
@with_access
def look(address: str, auth_mode: str | None, as_json: bool) -> None:
    """A command that asks Ray something."""
    click.echo(ask(lambda *_: pytest.fail("no way of ours"), address, auth_mode, lambda said: said))


def test_a_ray_that_is_slow_is_said_to_be_slow_while_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedpilot.fabric.cli_access.FIRST_S", 0.01)
    spoken = threading.Event()
    echo = click.echo

    def heard(*what: object, **how: bool) -> None:
        echo(*what, **how)  # type: ignore[arg-type]
        spoken.set()

    monkeypatch.setattr(click, "echo", heard)

    @contextmanager
    def slow(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[str]:
        assert spoken.wait(HANG_S)
        yield f"{timeout_s:g}"

    done = CliRunner().invoke(look, ["--timeout", "90", "--address", "10.0.0.5:6379"], obj=slow)
    assert (done.exit_code, done.stdout) == (0, "90\n")
    assert "the Ray at 10.0.0.5:6379 has not answered for 0 s (load " in done.stderr
    assert "it may take 90 s (--timeout)" in done.stderr


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
