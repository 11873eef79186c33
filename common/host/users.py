"""The user that owns a virtual cluster: an unproven name, to protect others from mistakes."""

from __future__ import annotations

import getpass
import os

USER_VARIABLE = "FEDPILOT_USER"
"""The environment variable that names a job's user in all its processes."""


def current_user() -> str:
    """The user that this process works for."""
    if said := os.environ.get(USER_VARIABLE):
        return said
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return f"uid {os.getuid()}"
