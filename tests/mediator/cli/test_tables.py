"""What `runs list` and `runs show` print of runs that wait in line."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from fedpilot.mediator.cli.tables import run_details, run_table


def printed(shown: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=150, color_system=None).print(shown)
    return out.getvalue()


def queued(run: str, place: int, reason: str) -> dict[str, Any]:
    queue = {"place": place, "of": 2, "waits_for": reason, "holders": []}
    facts = {"reason": reason, "priority_class": "build", "submitted_at": 1.0, "owner": "ann"}
    return {"run_id": run, "status": "queued", "queue": queue, **facts}


RUNS = [
    {"run_id": "r0", "status": "running", "queue": None, "submitted_at": 1.0},
    queued("r1", 2, "paris has r0 of bob"),
    queued("r2", 1, "rome has r0 of bob"),
]


def test_the_line_is_below_the_runs_in_order_of_places() -> None:
    text = printed(run_table(RUNS, 2.0))
    line = text[text.index("waits for") :]
    assert line.index("1 of 2") < line.index("r2") < line.index("rome has r0 of bob")
    assert line.index("rome has") < line.index("2 of 2") < line.index("paris has r0 of bob")
    assert "build" in line


def test_there_is_no_line_if_no_run_waits() -> None:
    assert "waits for" not in printed(run_table(RUNS[:1], 2.0))


def test_a_waiting_run_shows_its_place_and_what_it_waits_for() -> None:
    text = printed(run_details(RUNS[1], 2.0))
    assert "2 of 2, class build" in text
    assert "paris has r0 of bob" in text
