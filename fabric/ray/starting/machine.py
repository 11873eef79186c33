"""Starts a machine of a declared Ray cluster by `ray start`, as a process of its own.

Ray is imported while the head still starts, and a worker waits for the head. Two raylets that join
from one computer at the same moment may disturb each other, so those of one cluster take turns.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from ...errors import ClusterUnreachable
from ..control_plane.probe import probe
from ..control_plane.redis_login import RedisLogin
from .control_plane_storage import keep_state_in

LOOK_S = 0.02
"""How often a worker looks whether its head listens."""
FAILED = "failed"
"""The file with the reason, in the machine's folder, if it could not be started."""
REDIS = "redis"
"""The file in a head's folder with the login to the Redis in which it keeps its state."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a machine; its reason is in its folder if that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the machine's own folder")
    parser.add_argument("turns", type=Path, help="the file by which machines take turns")
    parser.add_argument("patience_s", type=float, help="how long to wait for the head")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="what `ray start` is given")
    given = parser.parse_args(arguments)
    flags = [flag for flag in given.flags if flag != "--"]
    try:
        redis = given.folder / REDIS
        if redis.exists():
            sessions = Path(_value(flags, "temp-dir") or "")
            keep_state_in(RedisLogin.of(redis.read_text()), sessions)
        _start(flags, given.turns, given.patience_s)
    except Exception as error:
        (given.folder / FAILED).write_text(json.dumps(str(error) or type(error).__name__))
        return 1
    return 0


def _start(flags: Sequence[str], turns: Path, patience_s: float) -> None:
    scripts = import_module("ray.scripts.scripts")
    address = _value(flags, "address")
    if address is None:
        scripts.start.main(list(flags), standalone_mode=False)
        return
    _wait(address, time.monotonic() + patience_s)
    with _turn(turns):
        scripts.start.main(list(flags), standalone_mode=False)


def _value(flags: Sequence[str], name: str) -> str | None:
    """The value of a flag; None if it is not given."""
    return next((f.partition("=")[2] for f in flags if f.startswith(f"--{name}=")), None)


def _wait(address: str, deadline: float) -> None:
    """Wait for the control plane of the head. ClusterUnreachable."""
    while True:
        left = deadline - time.monotonic()
        try:
            return probe(address, os.environ.get("RAY_AUTH_MODE", "disabled"), max(left, 1.0))
        except ClusterUnreachable:
            if left <= 0:
                raise
        time.sleep(LOOK_S)


@contextmanager
def _turn(file: Path) -> Iterator[None]:
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
