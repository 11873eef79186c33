"""The user that owns a virtual cluster: the one of the requesting process or job.

A name without proof. It protects users from ending each other's work by mistake.
"""

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
