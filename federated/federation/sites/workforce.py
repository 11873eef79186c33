"""Workforce: the workers of a run, by what they say of themselves, and whether they are alike.

Workers come at the start, after one was lost, and with sites that join: while others read this.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.proof.environment_diff import Difference, Facts, Likeness, differing
from ...errors import RunRefused


class Workforce:
    """What all workers that ever came up have said; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[tuple[str, int], Facts] = {}
        self._likeness = Likeness()

    def joined(self, told: Facts) -> tuple[Difference, ...]:
        """A worker has come up, with its `site` and its number there; what is new about it."""
        site, number = told["site"], told["worker"]
        with self._lock:
            self._told[site, number] = told
            return self._likeness.joined(f"{site}/{number}", told)

    def remembered(self, told: Facts) -> tuple[Difference, ...]:
        """The same of a worker that the run had before it was interrupted."""
        with self._lock:
            return self._likeness.joined(_before(told), told)

    def all(self) -> list[dict[str, Any]]:
        """What each has said, in the order in which they came."""
        with self._lock:
            return [dict(told) for told in self._told.values()]

    def check_alike(self, before: Sequence[Facts] = ()) -> None:
        """RunRefused if they differ from each other, or from those of `before`."""
        there: Mapping[str, Facts] = {
            f"{told['site']}/{told['worker']}": told for told in self.all()
        }
        if found := differing({**there, **{_before(told): told for told in before}}):
            raise RunRefused(
                f"with `run.reproducible: strict` all workers have to be alike, and they differ in "
                f"{found}; leave out machines that are unlike the others, or say `warn`"
            )

    def forget(self) -> None:
        """They have ended; what they were like is remembered."""
        with self._lock:
            self._told.clear()


def _before(told: Facts) -> str:
    return f"{told.get('site')}/{told.get('worker')} before"
