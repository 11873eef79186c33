"""`fedpilot raycluster run`: a command with a Ray cluster of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpilot.common.host.exit_codes import FAILED
from fedpilot.common.terminal.commands import exit_codes, fail, interruptions

from ..access import Client, RayAccess
from .reading import declared_in
from .store_options import FILE
from .waiting import wait_for

if TYPE_CHECKING:
    from ...spec.ray_cluster.document import RayClusterDocument


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", metavar="FILE", type=FILE)
@click.option(
    "--start-timeout",
    "start_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long the cluster may take to be ready. Default: as long as it takes.",
)
@click.option(
    "--active-deadline",
    "deadline_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End COMMAND if it runs longer, as activeDeadlineSeconds of a RayJob. Default: no limit.",
)
@click.option(
    "--backoff-limit",
    "again",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="NUMBER",
    help="How often COMMAND may run again after it has failed, each time with a new cluster, as "
    "backoffLimit of a RayJob.",
)
@click.option(
    "--ttl",
    "stays_s",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the cluster stays after COMMAND has ended, as ttlSecondsAfterFinished of a "
    "RayJob.",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
def run(
    file: Path,
    start_s: float | None,
    deadline_s: float | None,
    again: int,
    stays_s: float,
    command: Sequence[str],
) -> None:
    """Start the Ray cluster of FILE, run COMMAND with it, and end the cluster.

    COMMAND runs on this computer, with RAY_ADDRESS, RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH of the
    cluster: `ray.init()` in it needs no arguments. The cluster is no other command's, and is ended
    however this one ends. It grows and shrinks as FILE allows. A Ray of the provider `existing` is
    there already, and goes on.

    \b
    Examples:
      fedpilot raycluster run cluster.yaml -- python train.py
      fedpilot raycluster run cluster.yaml -- fedpilot job submit --min CPU=4 -- python tune.py
      fedpilot raycluster run cluster.yaml --backoff-limit 2 --active-deadline 3600 -- ./job.sh

    \b
    Exit codes: those of COMMAND; 1 the cluster did not start, or COMMAND took too long; 2 FILE has
    errors; 130 interrupted.
    """
    if not command:
        raise click.UsageError("give the command to run, after --.")
    with exit_codes(), interruptions():
        read = declared_in(file)
        for left in range(again, -1, -1):
            code = _run_once(read, command, start_s, deadline_s, stays_s)
            if not code or not left:
                sys.exit(code)
            said = f"{command[0]} has failed (exit code {code}), and runs again with a new cluster"
            click.echo(f"fedpilot: {said}", err=True)


@contextmanager
def own_ray_cluster(file: Path | None, ray: RayAccess[Client]) -> Iterator[RayAccess[Client]]:
    """Access to the Ray cluster that a file declares, which starts and ends with the block; or the
    given access without a file."""
    if file is None:
        yield ray
        return
    from ...ray.home import environment
    from ...ray_clusters.own_cluster import OwnRayCluster

    with OwnRayCluster(declared_in(file)) as own:
        wait_for(own.store, own.stored, "ready", None)
        variables = own.environment
        with environment(variables):
            address, mode = variables["RAY_ADDRESS"], variables["RAY_AUTH_MODE"]
            yield replace(ray, address=address, auth_mode=mode)


def _run_once(
    read: RayClusterDocument,
    command: Sequence[str],
    start_s: float | None,
    deadline_s: float | None,
    stays_s: float,
) -> int:
    """Run the command with a cluster of its own; return its exit code."""
    from ...ray_clusters.own_cluster import OwnRayCluster

    with OwnRayCluster(read) as own:
        wait_for(own.store, own.stored, "ready", start_s)
        code = _run(command, {**os.environ, **own.environment}, deadline_s)
        if stays_s:
            click.echo(f"fedpilot: {read.declared.name} stays for {stays_s:g} s", err=True)
            time.sleep(stays_s)
    return code


def _run(command: Sequence[str], environment: Mapping[str, str], deadline_s: float | None) -> int:
    from ...jobs.running_command import GRACE_S, RunningCommand

    running = RunningCommand(command, environment)
    try:
        return running.wait(deadline_s)
    except TimeoutError:
        running.end(GRACE_S)
        running.wait()
        fail(f"{command[0]} has run longer than {deadline_s:g} s, and was ended", FAILED)
