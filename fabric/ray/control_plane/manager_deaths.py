"""Keeps the manager's deaths, after which Ray restarts it, out of drivers' consoles.

`ManagerDeaths` replaces Ray's pattern of unprinted lines (`RAY_DEDUP_LOGS_SKIP_REGEX`), and also
applies that pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from .. import private_ray

DEATH = re.compile(r"A worker died or was killed .* Worker ID: (?P<worker>[0-9a-f]+) ", re.DOTALL)


class ManagerDeaths:
    """Matches the lines about a manager's death, and those of an earlier pattern."""

    def __init__(self, before: Any, ran_in: Callable[[str], Collection[str]]) -> None:
        self._before = before
        self._ran_in = ran_in
        self._managers: set[str] = set()

    def add(self, manager: str) -> None:
        """Also match the deaths of this manager."""
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
        except Exception:  # Ray is away or has changed: then the line is printed
            return ()


def not_told(manager: Any) -> None:
    """Do not print this manager's deaths in this process, if this Ray allows it."""
    lines = private_ray.printed_lines()
    if lines is None:
        return
    if not isinstance(lines.skip_re, ManagerDeaths):
        lines.skip_re = ManagerDeaths(lines.skip_re, private_ray.processes_of)
    lines.skip_re.add(manager._actor_id.hex())
