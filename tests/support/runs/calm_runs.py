"""Runs that nothing happens to, which tests compare others with: once for all tests of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from federations import Lab
from fedpilot.federated import RunResult
from graph_runs import NAMES, run_over


class CalmRuns:
    """A test asks for its run before it disturbs anything, and changes nothing in its folder."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._found: dict[str, RunResult] = {}

    def run(self, **keys: Any) -> RunResult:
        """What `Lab.run` gives."""
        return self._once("in one piece", keys, self._lab.run)

    def at_one_site(self, **keys: Any) -> RunResult:
        """What `run_over` gives at one site."""
        return self._once("at one site", keys, lambda **its: run_over(self._lab, NAMES[:1], **its))

    def _once(self, how: str, keys: dict[str, Any], made: Callable[..., RunResult]) -> RunResult:
        name = f"{how}: {sorted(keys.items())}"
        if name not in self._found:
            self._found[name] = made(**keys)
        return self._found[name]
