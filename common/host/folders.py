"""Where a user's programs keep what outlives them (XDG Base Directory Specification)."""

from __future__ import annotations

import os
from pathlib import Path


def state_home() -> Path:
    """The folder for state that outlives a restart, and that no other computer needs."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "fedpilot"
