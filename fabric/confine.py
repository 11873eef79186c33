"""Runs a command inside a virtual cluster that begins before it and ends with it.

`python -m fedpilot.fabric.confine --name NAME --spec JSON -- python job.py`, on any machine of the
Ray cluster, is what `fedpilot job submit` has Ray run. The command needs to know nothing of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import FabricError, NoSuchCluster, NotInTime
from .spec import VirtualCluster
from .where import JOB_VARIABLE

GRACE_S = 2.5
"""How long a command may take to end when it is told to: Ray kills all of a job after three."""

FIRST_WAIT_S = 1.0
"""It is not said to wait before."""
FIRST_POLL_S, LAST_POLL_S = 0.2, 2.0

FATED = """\
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"fedpilot: {sys.argv[2]}: {error.strerror}")
"""
"""Becomes the command, and is killed with us, whatever kills us."""

READY = "its command starts"
"""How the last line ends that is not of the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Reserve, run, give back; returns the exit code of the command, or 3 if it never ran."""
    parser = argparse.ArgumentParser(prog="fedpilot.fabric.confine")
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", default="auto", help="of the Ray cluster")
    parser.add_argument("--spec", default="{}")
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=None)
    parser.add_argument("--join", action="store_true", help="work in one that is there already")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("a command is needed after --")
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _run(given, command)
    except FabricError as error:
        print(f"fedpilot: {error}", file=sys.stderr, flush=True)
        return 3
    except _Stopped:
        return 128 + signal.SIGTERM


def environment(name: str, address: str) -> dict[str, str]:
    """What makes every Python below us work inside a virtual cluster of the Ray at an address."""
    folder = str(Path(__file__).with_name("confined"))
    there = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        JOB_VARIABLE: name,
        "RAY_ADDRESS": address,
        "PYTHONPATH": folder if not there else f"{folder}{os.pathsep}{there}",
    }


class _Stopped(BaseException):
    """We were told to end."""


def _stop(number: int, frame: object) -> None:
    raise _Stopped


def _run(given: argparse.Namespace, command: Sequence[str]) -> int:
    import ray

    from .virtual_clusters import VirtualClusters

    # Ray's job server tells jobs to look for a Ray on their machine, where there may be several.
    ray.init(given.address, log_to_driver=False, logging_level=logging.ERROR)
    signal.signal(signal.SIGTERM, _stop)  # Ray has one of its own
    asking = VirtualClusters()
    try:
        _wait(asking, given)
        address: str = ray.get_runtime_context().gcs_address
        return _child(command, environment(given.name, address))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not given.join:
            with contextlib.suppress(FabricError):
                asking.delete(given.name)


def _wait(asking: Any, given: argparse.Namespace) -> None:
    """Wait for the places, saying why whenever that changes."""
    name, said, began, pause = given.name, "", time.monotonic(), FIRST_POLL_S
    found = asking.show(name) if given.join else _reserve(asking, given)
    while found["state"] in ("waiting", "starting"):
        place = f" (position {found['position']})" if found["position"] else ""
        now = f"virtual cluster {name} is {found['state']}{place}: {found['reason']}"
        if now != said:
            said = now
            _say(now)
        time.sleep(pause)
        pause = min(LAST_POLL_S, 1.2 * pause)
        try:
            found = asking.show(name)
        except NoSuchCluster:  # asking for it once more would bring it back
            told = [e["reason"] for e in asking.history() if e["cluster"] == name]
            why = told[-1] if told else "it was deleted"
            raise NotInTime(name, time.monotonic() - began, why) from None
    _say(f"virtual cluster {name} is {found['state']}; {READY}")


def _reserve(asking: Any, given: argparse.Namespace) -> Mapping[str, Any]:
    found: Mapping[str, Any] = asking.create(
        given.name,
        VirtualCluster.from_dict(json.loads(given.spec)),
        priority=given.priority,
        deadline_s=given.deadline,
        wait_s=FIRST_WAIT_S,
    )
    return found


def _child(command: Sequence[str], env: Mapping[str, str]) -> int:
    fated = [sys.executable, "-I", "-S", "-c", FATED, str(os.getpid()), *command]
    with subprocess.Popen(fated, env=env) as child:
        try:
            code = child.wait()
        except BaseException:
            child.send_signal(signal.SIGTERM)
            end = time.monotonic() + GRACE_S
            while child.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            child.kill()
            raise
    return code if code >= 0 else 128 - code


def _say(text: str) -> None:
    print(f"fedpilot: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
