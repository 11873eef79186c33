"""Runs a command inside a virtual cluster that begins before it and ends with it.

Ray runs it as `python -m fedpilot.fabric.confine --name NAME --spec JSON -- python job.py` for
`fedpilot job submit`. That module name stays even if this file moves (`pickle_names.py`).
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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.records import has_started
from ..errors import FabricError, NoSuchCluster, NotInTime
from ..inside.context import JOB_VARIABLE
from ..spec import VirtualCluster
from . import confined
from .confined import HOOK_VARIABLE, OTHER_HOOK_VARIABLE, hook

if TYPE_CHECKING:
    import psutil  # Ray brings it

    from ..inside.virtual_clusters import VirtualClusters

FAILED, NEVER_RAN = 1, 3
GRACE_S = 2.5
"""How long a command may take to end after a signal: Ray kills a whole job after three seconds."""

FIRST_WAIT_S = 1.0
"""The first wait, which is not reported."""
FIRST_POLL_S, LAST_POLL_S = 0.2, 2.0

WATCH_S = 1.0
"""Seconds between two checks that a running command still has its virtual cluster."""

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
"""Replaced by the command; the kernel kills it when this process dies, in any way."""

SAYS = "fedpilot: "
"""The prefix of lines that are not the command's."""
READY = "its command starts"
"""The end of the last such line before the command begins."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Reserve and run; return the command's exit code, or 3 if it never ran."""
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
        _say(str(error))
        return NEVER_RAN
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM


def environment(name: str, address: str) -> dict[str, str]:
    """Variables that put every child Python into a virtual cluster of the Ray at `address`."""
    folder = str(Path(__file__).parent / "confined")
    there, other = os.environ.get("PYTHONPATH"), os.environ.get(HOOK_VARIABLE)
    ours = f"{hook.__module__}.{hook.__name__}"
    inherited = (ours, f"{confined.__name__}.{hook.__name__}")  # a Ray that a job of ours started
    return {
        **os.environ,
        JOB_VARIABLE: name,
        "RAY_ADDRESS": address,
        "PYTHONPATH": folder if not there else f"{folder}{os.pathsep}{there}",
        HOOK_VARIABLE: ours,
        **({OTHER_HOOK_VARIABLE: other} if other not in (None, *inherited) else {}),
    }


def _stop(number: int, frame: object) -> None:
    """Handle SIGTERM like Ctrl-C, which interrupts all of Ray's waits."""
    raise KeyboardInterrupt


def _run(given: argparse.Namespace, command: Sequence[str]) -> int:
    import ray

    from ..inside.virtual_clusters import VirtualClusters

    # Ray's job server makes jobs look for a Ray on their machine, where several may run.
    ray.init(given.address, log_to_driver=False, logging_level=logging.ERROR)
    signal.signal(signal.SIGTERM, _stop)  # `ray.init` has replaced it
    address: str = ray.get_runtime_context().gcs_address
    try:
        return run(VirtualClusters(), given, command, address)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ray.shutdown()


def run(
    asking: VirtualClusters, given: argparse.Namespace, command: Sequence[str], address: str
) -> int:
    """Run a command in its virtual cluster, which ends with this process; return the exit code."""
    if given.join:
        place = asking.show(given.name)
    else:
        place = asking.create(
            given.name,
            VirtualCluster.from_dict(json.loads(given.spec)),
            priority=given.priority,
            deadline_s=given.deadline,
            wait_s=FIRST_WAIT_S,
        )
    _wait(asking, place)
    return _child(command, environment(given.name, address), lambda: _loss(asking, place))


def _wait(asking: VirtualClusters, place: Mapping[str, Any]) -> None:
    """Wait for the places, and report every change of the reason. NotInTime."""
    name, said, began, pause = place["id"], "", time.monotonic(), FIRST_POLL_S
    found: Mapping[str, Any] | None = place
    while found and not has_started(found["state"]):
        where = f" (position {found['position']})" if found["position"] else ""
        now = f"virtual cluster {name} is {found['state']}{where}: {found['reason']}"
        if now != said:
            said = now
            _say(now)
        time.sleep(pause)
        pause = min(LAST_POLL_S, 1.2 * pause)
        found = _now(asking, place)
    if not found:  # another request would create it again
        raise NotInTime(name, time.monotonic() - began, asking.ending(name))
    _say(f"virtual cluster {name} is {found['state']}; {READY}")


def _now(asking: VirtualClusters, place: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The virtual cluster as it is now; None if it has ended, even if another has its name."""
    try:
        found = asking.show(place["id"])
    except NoSuchCluster:
        return None
    return found if found["asked_at"] == place["asked_at"] else None


def _loss(asking: VirtualClusters, place: Mapping[str, Any]) -> str | None:
    """Why a virtual cluster has ended; None if it exists, or the manager does not answer."""
    try:
        return None if _now(asking, place) else asking.ending(place["id"])
    except FabricError:
        return None


def _child(command: Sequence[str], env: Mapping[str, str], loss: Callable[[], str | None]) -> int:
    """Run a command until it ends, this process is stopped, or `loss` returns a reason."""
    fated = [sys.executable, "-I", "-S", "-c", FATED, str(os.getpid()), *command]
    lost, over = list[str](), threading.Event()
    with subprocess.Popen(fated, env=env) as child:

        def watch() -> None:
            while not over.wait(WATCH_S):
                if why := loss():
                    lost.append(why)
                    _end(child.pid)
                    return

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            code = child.wait()
        except BaseException:  # Ray signals all processes, the command too
            _end(child.pid, told=True)
            raise
        finally:
            over.set()
    if lost:
        watching.join()
        _say(f"its virtual cluster has ended, and so has this command: {lost[0]}")
        code = code or FAILED
    return code if code >= 0 else 128 - code


def _end(pid: int, *, told: bool = False) -> None:
    """Terminate a process and its descendants, and kill those that remain after `GRACE_S`."""
    import psutil

    try:
        first = psutil.Process(pid)
        tree = [first, *first.children(recursive=True)]
    except psutil.Error:
        return
    for each in [] if told else tree:
        with contextlib.suppress(psutil.Error):
            each.terminate()
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and any(map(_alive, tree)):
        time.sleep(0.05)
    for each in tree:
        with contextlib.suppress(psutil.Error):
            each.kill()


def _alive(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _say(text: str) -> None:
    print(f"{SAYS}{text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
