"""Compiles workers' code beside a site's agent, before the first run arrives."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

COMMAND = (sys.executable, "-m", "fedpilot", "doctor", "--warm")
ENDED_S = 10.0
"""How long the process may take to end with the agent."""


def mark() -> Path:
    """The file that `fedpilot doctor --warm` leaves in the user's cache, one per installation.

    Numba caches compiled code by its source's path, so each installation compiles its own.
    """
    place = hashlib.sha256(os.path.realpath(__file__).encode()).hexdigest()[:12]
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "fedpilot" / f"warmed-{version('fedpilot')}-{place}"


def compile_ahead(
    undo: ExitStack, command: Sequence[str] = COMMAND
) -> subprocess.Popen[bytes] | None:
    """Compile in a process of low priority, unless done before; `undo` ends the process."""
    if mark().exists():
        return None
    polite = ["nice", "-n", "10"] if shutil.which("nice") else []
    try:
        process = subprocess.Popen(
            [*polite, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None  # then the first run compiles
    undo.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(ENDED_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
