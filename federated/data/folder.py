"""Finds the files of a data set in a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .errors import DataError


def find(name: str, folder: Path, candidates: Sequence[str], source: str) -> Path:
    """The first candidate file in the folder; `DataError` names the folder, files and source."""
    if not folder.is_dir():
        raise DataError(
            name, f"there is no folder {folder}; it should hold {candidates[0]} ({source})"
        )
    for candidate in candidates:
        if (folder / candidate).is_file():
            return folder / candidate
    raise DataError(
        name, f"the folder {folder} has no {' or '.join(candidates)}; such files come from {source}"
    )
