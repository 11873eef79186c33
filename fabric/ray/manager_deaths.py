"""Keeps the deaths of the manager out of drivers' consoles: nothing of theirs has died.

Ray prints the death of an actor on the driver of the job that made it, also of the manager, which
it starts again. `ManagerDeaths` replaces the pattern of lines that Ray does not print
(`RAY_DEDUP_LOGS_SKIP_REGEX`), and asks that pattern too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from . import private_ray

DEATH = re.compile(r"A worker died or was killed .* Worker ID: (?P<worker>[0-9a-f]+) ", re.DOTALL)


class ManagerDeaths:
    """Finds the lines that tell of the death of a manager, and those that a pattern finds."""

    def __init__(self, before: Any, ran_in: Callable[[str], Collection[str]]) -> None:
        self._before = before
        self._ran_in = ran_in
        self._managers: set[str] = set()

    def add(self, manager: str) -> None:
        """One manager more whose deaths are not told."""
        self._managers.add(manager)

    def search(self, line: str) -> bool:
        """Whether a line is not to be printed."""
        if self._before is not None and self._before.search(line):
            return True
        died = DEATH.search(line)
        return died is not None and any(died["worker"] in self._ran(m) for m in self._managers)

    def _ran(self, manager: str) -> Collection[str]:
        try:
            return self._ran_in(manager)
        except Exception:  # Ray is away, or another Ray than we know: then the line is printed
            return ()


def not_told(manager: Any) -> None:
    """Have the deaths of this manager not told in this process, where this Ray lets us."""
    lines = private_ray.printed_lines()
    if lines is None:
        return
    if not isinstance(lines.skip_re, ManagerDeaths):
        lines.skip_re = ManagerDeaths(lines.skip_re, private_ray.processes_of)
    lines.skip_re.add(manager._actor_id.hex())
