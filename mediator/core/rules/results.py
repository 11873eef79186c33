"""What of a run is a result, which only those read who may, and what everybody sees.

Results are a run's owner's and admins', unless the run is shared (`roles.reads_results`). Others
see whose run it is, how it stands, and why it waits. How good its model is, which model it is, and
in what words its code failed are results, wherever they are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HIDDEN: Mapping[str, Any] = {"failure": "", "accuracy": None, "loss": None, "digest": ""}
"""The results among the facts of a run, as those see them who may not read them."""
ENDED_BY_ITSELF = ("finished", "failed")
"""States whose reason comes from the run; that of others says who stopped it, or why it waits."""


def run_without_results(run: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a run for somebody who may not read its results."""
    reason = {"reason": ""} if run["status"] in ENDED_BY_ITSELF else {}
    return {**run, **HIDDEN, **reason}


def tells_results(event: Mapping[str, Any]) -> bool:
    """Whether an event of the federation has results of the run that it is about."""
    return event.get("event") in {f"run_{state}" for state in ENDED_BY_ITSELF}


def event_without_results(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event of the federation for somebody who may not read the results of its run."""
    return {**event, "reason": "", "digest": ""} if tells_results(event) else dict(event)
