"""This process's one connection to Ray: its owner, its variables, and how it is made."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from fedpilot.common.host.machine import load

from ..errors import ClusterUnreachable, FabricError
from . import home, private_ray
from .control_plane.probe import answers
from .failures import brief
from .starting.embedded import RayThread, TooSlow

LOOK_S = 5.0
"""How long the control plane may take to answer again after it did not accept this process."""
HALF_UP = (
    "its control plane answers, but no raylet has let us in {}. The raylet of its head, or of this "
    "machine, is dead, hangs or is overloaded: raylet.out in the logs of its session tells, and a "
    "new start helps"
)
SECOND_RAY = (
    "this process uses a Ray cluster already, and can use one only: attach() to it, or close it "
    "first"
)

_one_ray = threading.Lock()
"""Held from the start of this process's Ray to its end."""


def claim(undo: ExitStack) -> None:
    """Claim this process's one Ray until the undoing, without importing Ray. FabricError."""
    running = getattr(sys.modules.get("ray"), "is_initialized", bool)
    if not _one_ray.acquire(blocking=False):
        raise FabricError(SECOND_RAY)
    undo.callback(_one_ray.release)
    if running():
        raise FabricError(SECOND_RAY)


def set_environment(undo: ExitStack, values: Mapping[str, str]) -> None:
    """Set variables until the undoing, and make Ray read them both times."""
    undo.callback(_reread_environment)
    undo.enter_context(home.environment(values))
    _reread_environment()


def _reread_environment() -> None:
    """Make an imported Ray read them: it reads its mode on import, and a token once."""
    if "ray" not in sys.modules:
        return
    with suppress(AttributeError):  # a Ray from before token authentication
        private_ray.reread_authentication()


def attached(address: str, mode: str, deadline: float, timeout_s: float) -> RayThread:
    """Attach to a cluster; try again if Ray gives up early on one that answers."""
    while True:
        ray = RayThread(private=False, address=address)
        try:
            ray.wait(deadline - time.monotonic())
        except BaseException as error:
            ray.end()
            if isinstance(error, TooSlow):
                reason = f"within {timeout_s:g} s ({load()} here)"
                raise ClusterUnreachable(address, HALF_UP.format(reason)) from None
            if not isinstance(error, Exception):
                raise
            reason = brief(str(error))
            if isinstance(error, ConnectionError) and answers(address, mode, LOOK_S):
                if time.monotonic() < deadline:
                    continue
                reason = HALF_UP.format(f"({reason})")
            raise ClusterUnreachable(address, reason) from error
        return ray


def address_of_this_machine() -> str:
    """The address that `auto` means: RAY_ADDRESS, or the last Ray started on this machine."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        return file.read_text().strip()
    except OSError as error:
        reason = "RAY_ADDRESS is not set, and no Ray was started on this machine"
        raise ClusterUnreachable("auto", reason) from error
