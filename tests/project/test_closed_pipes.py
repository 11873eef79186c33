"""A command whose reader closes the pipe (`fedpilot ... | head`) goes on, or ends in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from real_ray import ENVIRONMENT
from user_service import serving

HANG_S = 60.0
OUTLIVING = "import sys\nfrom fedpilot.closed_pipes import *\noutlive_readers()\n"


def unread(command: list[str], *, lines: int = 0, both: bool = False) -> tuple[int, str]:
    """Read so many lines of what a command prints, and close the pipe; its code and its stderr."""
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if both else subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        said = "" if process.stderr is None else process.stderr.read()
        return process.wait(HANG_S), said
    finally:
        process.kill()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", OUTLIVING + code]


@pytest.mark.parametrize(
    "prints",
    [
        pytest.param("print('x' * 100, flush=True)", id="line by line"),
        pytest.param("print('x' * 100)", id="in blocks"),
        pytest.param("print('x' * 100, file=sys.stderr)", id="on stderr, into the same pipe"),
    ],
)
def test_work_goes_on_when_nobody_reads(tmp_path: Path, prints: str) -> None:
    code = f"for _ in range(5000):\n    {prints}\nopen({str(tmp_path / 'done')!r}, 'w')"
    assert unread(python(code), lines=1, both=True) == (0, "")
    assert (tmp_path / "done").exists()


def test_what_only_prints_ends_with_its_reader(tmp_path: Path) -> None:
    code = (
        "with ends_with_reader():\n    try:\n        while True: print('x', flush=True)\n"
        f"    finally: open({str(tmp_path / 'closed')!r}, 'w')"
    )
    assert unread(python(code), lines=2) == (0, "")
    assert (tmp_path / "closed").exists()


def test_another_error_of_a_pipe_is_told() -> None:
    code = "import os\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')"
    exit_code, said = unread(python(code))
    assert exit_code == 1
    assert "BrokenPipeError" in said


def test_what_is_read_to_its_end_is_whole() -> None:
    code = "print('é' * 70000)\nprint('last', end='')"
    done = subprocess.run(python(code), capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout == "é" * 70000 + "\nlast"


def test_a_short_command_ends_quietly(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}" / "config.yaml").touch()
    listing = [sys.executable, "-m", "fedpilot", "runs", "list", "--folder", str(tmp_path)]
    assert unread(listing) == (0, "")
    assert unread([sys.executable, "-m", "fedpilot", "--help"]) == (0, "")


def test_events_are_followed_as_long_as_somebody_reads(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.service.say("", *({"event": "site_lost", "site": f"s{n}"} for n in range(5000)))
        following = ["events", "--follow", "--last", "5000", "--json", *served.options]
        code, said = unread([sys.executable, "-m", "fedpilot", *following], lines=1)
    assert (code, said) == (0, "")
