"""Decides which facts of a run are results, and what users without access to them see.

The owner and admins read results, and all users if the run is shared (`roles.reads_results`).
Others see the owner, the state and why the run waits. Accuracy, loss, digest and the text of a
failure are results, in every document and event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HIDDEN: Mapping[str, Any] = {"failure": "", "accuracy": None, "loss": None, "digest": ""}
ENDED_BY_ITSELF = ("finished", "failed")
"""States with a reason from the run. Others say which user stopped it, or why it waits."""


def run_without_results(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's facts for a user who may not read its results."""
    reason = {"reason": ""} if run["status"] in ENDED_BY_ITSELF else {}
    return {**run, **HIDDEN, **reason}


def event_without_results(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event for a user who may not read the results of its run."""
    tells_results = event.get("event") in {f"run_{state}" for state in ENDED_BY_ITSELF}
    return {**event, "reason": "", "digest": ""} if tells_results else dict(event)
