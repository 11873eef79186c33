"""A run as JSON for users, from its record in the store and the files in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...core.rules.results import run_without_results
from ...core.run_queue import RunWait
from ..runs.run_queue import class_of, project_of, queue_json
from ..store import RunRecord, RunState

LONGEST_TRACEBACK = 8_000
"""Characters from the end of a traceback that users see."""
LAST_ROW = 64 << 10
"""Bytes at the end of the metrics file that are searched for the last round."""


def run_json(
    record: RunRecord,
    folder: Path,
    whole: bool,
    *,
    readable: bool,
    place: tuple[RunWait, int] | None = None,
) -> str:
    """A run as `fedpilot runs list` shows it or, with `whole`, as `show` does.

    `place` has a queued run's place, and how many wait.
    """
    manifest, last = _object(folder / "manifest.json"), _last_row(folder)
    facts = {
        "run_id": record.id,
        "name": record.name,
        "owner": record.owner,
        "status": record.state,
        "reason": record.reason,
        "failure": str(manifest.get("failure") or ""),
        "interactive": record.interactive,
        "priority_class": class_of(record),
        "project": project_of(record),
        "queue": None,
        "shared": record.shared,
        "rounds": last.get("round", 0),
        "accuracy": last.get("accuracy"),
        "loss": last.get("loss"),
        "digest": record.digest or str(last.get("model") or ""),
        "folder": str(folder),
        "restarts": record.restarts,
        "submitted_at": record.submitted_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
    }
    if place is not None and record.state is RunState.QUEUED:
        facts |= {"queue": queue_json(place), "reason": place[0].reason}
    if not readable:
        facts = run_without_results(facts)
    elif whole:
        sites = last.get("sites")
        facts["sites"] = sites if isinstance(sites, dict) else {}
        facts["refused"] = _refused(folder)
        facts["traceback"] = _traceback(folder)
        facts["manifest"] = manifest
    return json.dumps(facts)


def _traceback(folder: Path) -> str:
    try:
        return (folder / "failure.txt").read_text(errors="replace")[-LONGEST_TRACEBACK:]
    except OSError:
        return ""


def _refused(folder: Path) -> list[dict[str, Any]]:
    """The refused answers of sites; an unfinished last line is skipped."""
    try:
        lines = (folder / "journal" / "refusals.jsonl").read_bytes().rpartition(b"\n")[0]
        found = [json.loads(line) for line in lines.splitlines()]
    except (OSError, ValueError):
        return []
    return [each for each in found if isinstance(each, dict)]


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_row(folder: Path) -> dict[str, Any]:
    """The metrics of the last round; an unfinished last line is skipped."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_ROW))
            lines = file.read().rpartition(b"\n")[0].splitlines()
        found = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
