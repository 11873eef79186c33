"""Runs a command inside a virtual cluster that begins before it and ends with it.

If the virtual cluster has to leave its places to others, the command is told to end, waits in the
queue, and runs again (`preemption`); it stays one job of Ray's, with one log.
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
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fedpilot.common.host.exit_codes import FAILED, PREEMPTED, REFUSED

from ..errors import FabricError, ManagerUnreachable, NoSuchCluster, NotInTime
from ..inside.context import JOB_VARIABLE
from ..spec import VirtualCluster
from . import confined
from .confined import HOOK_VARIABLE, OTHER_HOOK_VARIABLE, hook
from .job_log import OVER, READY, SAYS, TOLD
from .preemption import JobEvent, JobPhase, Preemption, after, event_of, since_of
from .running_command import GRACE_S, RunningCommand

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters

FIRST_WAIT_S = 1.0
"""The first wait, which is not reported."""
FIRST_POLL_S, LAST_POLL_S = 0.2, 2.0

WATCH_S = 1.0
"""Seconds between two looks of a running command at its virtual cluster."""

REQUEUE, FAIL = "requeue", "fail"
"""What becomes of a command whose virtual cluster has left its places."""
ATTEMPT_VARIABLE = "FEDPILOT_ATTEMPT"
"""The environment variable that counts how often a command has begun."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Reserve and run; return the command's exit code.

    3 if it never ran; 75 if it was preempted, and should not run again.
    """
    given, command = parsed(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _run(given, command)
    except FabricError as error:
        _say(str(error))
        return REFUSED
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM


def parsed(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Sequence[str]]:
    """The options, and the command to run."""
    parser = argparse.ArgumentParser(prog="fedpilot.fabric.confine")
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", default="auto", help="of the Ray cluster")
    parser.add_argument("--spec", default="{}")
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("--project", default="")
    parser.add_argument("--pool", default="")
    parser.add_argument("--priority-class", default="")
    parser.add_argument("--preemptible", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--deadline", type=float, default=None)
    parser.add_argument("--join", action="store_true", help="work in one that is there already")
    parser.add_argument("--on-preempt", choices=(REQUEUE, FAIL), default=REQUEUE)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("a command is needed after --")
    return given, command


def environment(name: str, address: str, attempt: int = 1) -> dict[str, str]:
    """Variables that put every child Python into a virtual cluster of the Ray at `address`.

    `attempt` counts how often the command has begun, this time included.
    """
    folder = str(Path(__file__).parent / "confined")
    there, other = os.environ.get("PYTHONPATH"), os.environ.get(HOOK_VARIABLE)
    ours = f"{hook.__module__}.{hook.__name__}"
    inherited = (ours, f"{confined.__name__}.{hook.__name__}")  # a Ray that a job of ours started
    return {
        **os.environ,
        JOB_VARIABLE: name,
        ATTEMPT_VARIABLE: str(attempt),
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
        found = asking.show(given.name)
    else:
        found = asking.create(
            given.name,
            VirtualCluster.from_dict(json.loads(given.spec)),
            deadline_s=given.deadline,
            wait_s=FIRST_WAIT_S,
            priority=given.priority,
            project=given.project,
            pool=given.pool,
            priority_class=given.priority_class,
            preemptible=given.preemptible,
        )
    place = _JobCluster(asking, found["id"], found["asked_at"], own=not given.join)
    attempt, phase, code = 0, JobPhase.WAITS, 0
    while phase is JobPhase.WAITS:
        attempt += 1
        since = _wait(place, attempt)
        child = RunningCommand(command, environment(given.name, address, attempt))
        with _Watcher(place, child, since) as watch:
            code = child.wait()
        phase = watch.ended(code, requeue=given.on_preempt == REQUEUE)
    if phase is JobPhase.LOST:
        return code or FAILED
    return PREEMPTED if phase is JobPhase.PREEMPTED else code


class _Sighting(NamedTuple):
    """What a look at a virtual cluster has found."""

    event: JobEvent
    document: Mapping[str, Any] = {}
    why: str = ""
    """Why it has ended, or why the manager does not answer."""


class _JobCluster:
    """A job's virtual cluster; another one with its name, of a later request, is none of ours."""

    def __init__(self, asking: VirtualClusters, name: str, asked_at: float, *, own: bool) -> None:
        self.name = name
        self._asking, self._asked_at, self._own = asking, asked_at, own

    def look(self, since: float | None = None) -> _Sighting:
        """See `event_of`. A FabricError for which waiting does not help is raised if none runs."""
        try:
            try:
                found = self._asking.show(self.name)
            except NoSuchCluster:
                found = {"asked_at": None}
            if found["asked_at"] == self._asked_at:
                return _Sighting(event_of(found, since), found)
            return _Sighting(JobEvent.GONE, why=self._asking.ending(self.name))
        except ManagerUnreachable as error:
            return _Sighting(JobEvent.SILENT, why=str(error))
        except FabricError as error:
            if since is None:
                raise
            return _Sighting(JobEvent.SILENT, why=str(error))

    def leave(self) -> None:
        """Say that nothing runs in it any more, unless others work in it: its grace may end."""
        if self._own:
            with contextlib.suppress(FabricError):  # the grace then ends by itself
                self._asking.leave(self.name)


def _wait(place: _JobCluster, attempt: int) -> float:
    """Wait for the places, and report every change of the reason; return since when it has them.

    NotInTime.
    """
    name, said, began, pause = place.name, "", time.monotonic(), FIRST_POLL_S
    while (phase := after(JobPhase.WAITS, (look := place.look()).event)) is JobPhase.WAITS:
        now, found = said, look.document
        match look.event:
            case JobEvent.QUEUED:
                where = f" (position {found['position']})" if found["position"] else ""
                now = f"virtual cluster {name} is {found['state']}{where}: {found['reason']}"
            case JobEvent.SILENT:
                now = f"virtual cluster {name} waits: {look.why}"
            case JobEvent.NOTICED:
                place.leave()
        if now != said:
            said = now
            _say(now)
        time.sleep(pause)
        pause = min(LAST_POLL_S, 1.2 * pause)
    if phase is JobPhase.LOST:  # another request would create it again
        raise NotInTime(name, time.monotonic() - began, look.why)
    again = f"attempt {attempt}: " if attempt > 1 else ""
    _say(f"virtual cluster {name} is {look.document['state']}; {again}{READY}")
    return since_of(look.document)


class _Watcher:
    """Looks at the virtual cluster of a running command, and ends the command if it has to."""

    def __init__(self, place: _JobCluster, child: RunningCommand, since: float) -> None:
        self._place, self._child, self._since = place, child, since
        self._phase, self._cause, self._lost = JobPhase.RUNS, Preemption(), ""
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fedpilot-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over.set()

    def ended(self, code: int, *, requeue: bool) -> JobPhase:
        """The phase after the command has ended with `code`, and the watch is over."""
        fate = f"exit code {code}: {OVER}"
        if self._phase is JobPhase.LEAVES:
            _say(fate)
        elif self._phase is JobPhase.RUNS and code:  # perhaps because its places were taken
            self._see(self._place.look(self._since), fate)
        self._phase = after(self._phase, JobEvent.EXITED, requeue=requeue)
        if self._phase is JobPhase.PREEMPTED:
            _say(str(self._cause))
        if self._phase is JobPhase.LOST:
            _say(f"its virtual cluster has ended, and so has this command: {self._lost}")
        return self._phase

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            look = self._place.look(self._since)
            with self._lock:
                if not self._over.is_set():
                    self._see(look)

    def _see(self, look: _Sighting, fate: str = TOLD) -> None:
        before, self._phase = self._phase, after(self._phase, look.event)
        within_s, now = GRACE_S, time.time()
        match look.event:
            case JobEvent.GONE:
                self._lost = look.why
            case JobEvent.QUEUED | JobEvent.NOTICED:
                cause = Preemption.of(look.document)
                if cause.at is not None:
                    within_s = max(0.0, cause.at - now)
                if before is JobPhase.RUNS:
                    self._cause = cause
                    _say(f"{cause.told(self._place.name, now)}; {fate}")
            case _:
                return
        self._child.end(within_s)


def _say(text: str) -> None:
    print(f"{SAYS}{text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
