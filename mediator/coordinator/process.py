"""A run's coordinator as a process: `python -m fedpilot.mediator.coordinator.process FOLDER RUN`.

An entry point (group `fedpilot.coordinators`) does the work. The process ends when its stdin
closes; only the mediator holds the other end.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

ENTRY_POINTS = "fedpilot.coordinators"
KIND = "federated"
LONGEST_END_S = 30.0
"""How long an orderly end may take once the mediator is gone."""

NO_USER_CODE = "--no-user-code"
Main = Callable[[Path, str, bool], int]
"""Runs or resumes a run; returns the exit code. Arguments: the mediator's folder, the run's id, and
whether the config may name code other than fedpilot's.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a coordinator, and return its exit code."""
    parser = argparse.ArgumentParser(prog="fedpilot.mediator.coordinator.process")
    parser.add_argument("folder", type=Path, help="of the mediator")
    parser.add_argument("run", help="its id")
    parser.add_argument("--kind", default=KIND, help=f"an entry point of {ENTRY_POINTS}")
    parser.add_argument(NO_USER_CODE, action="store_true", help="refuse configs that name code")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    installed = entry_points(group=ENTRY_POINTS)
    if given.kind not in installed.names:
        known = ", ".join(sorted(installed.names)) or "none"
        print(f"fedpilot: no coordinator called {given.kind!r}; installed are: {known}")
        return 1
    end_with_stdin()
    act: Main = installed[given.kind].load()
    return act(given.folder, given.run, not given.no_user_code)


def end_with_stdin() -> None:
    """From now on, end this process soon after its stdin closes."""
    threading.Thread(target=_watch_stdin, name="stdin", daemon=True).start()


def _watch_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(LONGEST_END_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
