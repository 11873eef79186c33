"""A command for the mediator is one of a few, ends in time, and cannot flood."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedpilot.mediator.agent.errors import BadCommand
from fedpilot.mediator.agent.orders.commands import (
    CommandOutcome,
    arguments_of,
    deadline_of,
    run_command,
)
from fedpilot.mediator.core.rules.site_commands import OUT_OF_TIME


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(None, id="none"),
        pytest.param("cluster list", id="one text"),
        pytest.param([], id="an empty list"),
        pytest.param(["cluster"], id="a group alone"),
        pytest.param(["cluster", 3], id="a number"),
        pytest.param(["cluster", "list\0"], id="a NUL"),
        pytest.param(["cluster"] * 300, id="too many"),
        pytest.param(["cluster", "x" * 100_000], id="too long"),
        pytest.param(["site", "join"], id="another group"),
        pytest.param(["--help", "cluster"], id="an option in the place of the group"),
        pytest.param(["cluster", "list", "--address", "x:1"], id="another Ray"),
        pytest.param(["job", "list", "--auth-mode=token"], id="another way to authenticate"),
        pytest.param(
            ["cluster", "list", "--site", "rome", "--profile", "admin"], id="another site"
        ),
        pytest.param(["job", "submit", "--id", "--", "--address", "x:1", "--", "x"], id="hidden"),
    ],
)
def test_what_is_no_command(arguments: Any) -> None:
    with pytest.raises(BadCommand):
        arguments_of({"arguments": arguments})


@pytest.mark.parametrize(
    "arguments",
    [["cluster", "list"], ["job", "submit", "--name", "x", "--", "python", "a.py", "--address=y"]],
    ids=["a plain one", "what follows -- belongs to the job"],
)
def test_what_is_a_command(arguments: list[str]) -> None:
    assert arguments_of({"arguments": arguments}) == tuple(arguments)


def test_a_command_does_not_wait_longer_than_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))  # nothing is started
    arguments = ["cluster", "create", "a", "--wait", "50"]
    with pytest.raises(BadCommand, match="has 60 s, so --wait is at most 45; found 50"):
        asyncio.run(run_command(arguments, {}, 60.0, 1000))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ({}, 60.0),
        ({"timeout_s": 5}, 5.0),
        ({"timeout_s": 500}, 60.0),
        ({"timeout_s": -1}, 60.0),
        ({"timeout_s": "x"}, 60.0),
        ({"timeout_s": float("nan")}, 60.0),
    ],
)
def test_a_deadline_is_asked_for_within_bounds(header: Mapping[str, Any], seconds: float) -> None:
    assert deadline_of(header, 60.0) == seconds


def played(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_s: float = 20.0
) -> CommandOutcome:
    """What becomes of a program in the place of `python -m fedpilot`."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n{program}")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    environment = {"RAY_ADDRESS": "10.0.0.1:6379"}
    return asyncio.run(run_command(["cluster", "list"], environment, deadline_s, 1000))


def test_it_gets_the_sites_ray_and_nothing_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os, sys\n"
        "print(os.environ['RAY_ADDRESS'], sys.argv[1:], repr(sys.stdin.read()))\n"
        "print('trouble', file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    outcome = played(program, tmp_path, monkeypatch)
    said = "10.0.0.1:6379 ['-m', 'fedpilot', 'cluster', 'list'] ''\n"
    assert outcome == CommandOutcome(exit_code=3, out=said, err="trouble\n")


def test_what_it_prints_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = played("print('x' * 5_000_000)", tmp_path, monkeypatch)
    assert outcome.exit_code == 0
    assert outcome.out == "x" * 1000 + "\n... and 4999001 bytes more\n"


def test_it_and_what_it_started_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    program = (
        "import os, pathlib, time\n"
        "child = os.fork()\n"
        f"pathlib.Path({str(pids)!r}).open('a').write(f'{{os.getpid()}}\\n')\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)\n"
    )
    began = time.monotonic()
    outcome = played(program, tmp_path, monkeypatch, deadline_s=1.0)
    assert time.monotonic() - began < 10
    assert outcome.exit_code == OUT_OF_TIME
    assert "ran for more than 1 s" in outcome.err
    started = [int(pid) for pid in pids.read_text().split()]
    deadline = time.monotonic() + 5
    while any(_lives(pid) for pid in started):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
