"""Rooms stay small enough to be read: at most a dozen entries in a folder, 500 lines in a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "fabric", "mediator", "federated", "src/fedpilot")
MOST_ENTRIES, MOST_LINES = 12, 500
APART = {"__init__.py", "py.typed"}
GENERATED = "proto"
"""Each message file in such a folder has two generated files beside it, of any length."""
COLLECTIONS = {
    "federated/algorithms": "one algorithm a file, after its paper",
    "federated/data": "one data set a file",
}
"""Folders of similar files, each found by the name in a config; and what one file is."""


def sources(top: str) -> list[Path]:
    """All files below a folder, from the root, without what Python has compiled."""
    found = [path.relative_to(ROOT) for path in (ROOT / top).rglob("*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def test_a_folder_has_a_dozen_entries_at_most() -> None:
    files = [path for package in PACKAGES for path in sources(package)]
    entries = {
        entry for path in files for entry in (path, *path.parents) if entry.name not in APART
    }
    counts = Counter(entry.parent for entry in entries)
    rooms = {folder for package in PACKAGES for folder in counts if folder.is_relative_to(package)}
    assert len(rooms) > 80
    full = {
        room.as_posix(): counts[room]
        for room in rooms
        if counts[room] > MOST_ENTRIES
        and room.name != GENERATED
        and room.as_posix() not in COLLECTIONS
    }
    assert not full, "find a room in it for what belongs together, and give it a charter"


def test_a_file_has_500_lines_at_most() -> None:
    files = [path for top in (*PACKAGES, "tests") for path in sources(top) if path.suffix == ".py"]
    assert len(files) > 1000
    written = [path for path in files if path.parent.name != GENERATED]
    lines = {path.as_posix(): (ROOT / path).read_bytes().count(b"\n") for path in written}
    assert not {path: count for path, count in lines.items() if count > MOST_LINES}


def test_no_exception_outlives_its_folder() -> None:
    assert all((ROOT / folder).is_dir() for folder in COLLECTIONS)
