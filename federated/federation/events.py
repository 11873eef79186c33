"""What a run tells whoever follows it: named events with plain fields, in the order they happen.

`run_started`, `execution_chosen`, `cluster_ready`, `gang_reserved`, `workers_starting`,
`worker_ready`, `kernels_compiled`, `workers_differ`, `workers_ready`, `worker_lost`,
`site_lost`, `site_drained`, `site_returned`, `site_refused`, `site_stands_out`,
`site_passed_over`, `link_slow`, `round_started`, `clients_done`, `clients_printed`,
`round_quorum`, `update_refused`, `grid_coarsened`, `round_finished`, `run_finished`; `waiting`
where nothing else is said for long. docs/reference/events.md lists their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    name: str
    fields: Mapping[str, Any]
    """JSON values."""
    time: datetime

    def to_json(self) -> dict[str, Any]:
        """One flat object with `event` and `time` first."""
        return {"event": self.name, "time": self.time.isoformat(timespec="milliseconds")} | dict(
            self.fields
        )


Observer = Callable[[Event], None]
"""Called for every event, one at a time, from whichever thread it happens in; it must not wait for
the federation, which waits for it."""


def event(name: str, **fields: Any) -> Event:
    """An event of this moment."""
    return Event(name, fields, datetime.now(UTC))
