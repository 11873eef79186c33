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

from .errors import FabricError
from .inside import JOB_VARIABLE
from .spec import VirtualCluster

GRACE_S = 2.5
"""How long a command may take to end when it is told to: Ray kills all of a job after three."""

POLL_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Reserve, run, give back; returns the exit code of the command, or 3 if it never ran."""
    parser = argparse.ArgumentParser(prog="fedpilot.fabric.confine")
    parser.add_argument("--name", required=True)
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


def environment(name: str) -> dict[str, str]:
    """What makes every Python below us work inside a virtual cluster."""
    folder = str(Path(__file__).with_name("confined"))
    there = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        JOB_VARIABLE: name,
        "PYTHONPATH": folder if not there else f"{folder}{os.pathsep}{there}",
    }


class _Stopped(BaseException):
    """We were told to end."""


def _stop(number: int, frame: object) -> None:
    raise _Stopped


def _run(given: argparse.Namespace, command: Sequence[str]) -> int:
    import ray

    from .virtual_clusters import VirtualClusters

    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    signal.signal(signal.SIGTERM, _stop)  # Ray has one of its own
    asking = VirtualClusters()
    try:
        if not given.join:
            _reserve(asking, given)
        return _child(command, environment(given.name))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not given.join:
            with contextlib.suppress(FabricError):
                asking.delete(given.name)


def _reserve(asking: Any, given: argparse.Namespace) -> None:
    """Wait for the places, saying why whenever that changes."""
    spec = VirtualCluster.from_dict(json.loads(given.spec))
    said = ""
    while True:
        found: Mapping[str, Any] = asking.create(
            given.name,
            spec,
            priority=given.priority,
            deadline_s=given.deadline,
            wait_s=POLL_S,
        )
        if found["state"] not in ("waiting", "starting"):
            _say(f"virtual cluster {given.name} is {found['state']}")
            return
        place = f" (position {found['position']})" if found["position"] else ""
        now = f"virtual cluster {given.name} is {found['state']}{place}: {found['reason']}"
        if now != said:
            said = now
            _say(now)


def _child(command: Sequence[str], env: Mapping[str, str]) -> int:
    with subprocess.Popen(command, env=env) as child:
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
