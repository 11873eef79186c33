"""Where a user's programs keep what outlives them (XDG Base Directory Specification)."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from .whole_files import sync


def state_home() -> Path:
    """The folder for state that outlives a restart, and that no other computer needs."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "fedpilot"


def make_folder(folder: Path) -> None:
    """Create a folder and its parents for this user alone; existing ones stay as they are.

    The new entries are on disk afterwards. OSError.
    """
    if folder.is_dir():
        return
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    if not missing:
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(folder))
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)
        sync(each.parent)
