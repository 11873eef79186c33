"""The user that a virtual cluster belongs to: of the process, or of the job, that asks for it.

A name, not a proof. It keeps one user from ending the work of another by mistake.
"""

from __future__ import annotations

import getpass
import os

USER_VARIABLE = "FEDPILOT_USER"
"""The user of a job, in the environment of all its processes."""


def current_user() -> str:
    """The user that this process works for."""
    if said := os.environ.get(USER_VARIABLE):
        return said
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no name
        return f"uid {os.getuid()}"
