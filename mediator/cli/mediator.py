"""The commands of the mediator itself: `fedpilot mediator`. Thin: parse, serve, print, exit."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.common.terminal.commands import CommandGroup, exit_codes, fail
from fedpilot.common.text.amounts import SIZE_IN_WORDS, bytes_of

from ..core.run_queue import RunQueueSettings
from ..core.storage.retention import Retention

if TYPE_CHECKING:
    from ..server import Mediator, ServerSettings


def _size(text: str) -> int:
    found = bytes_of(text)
    if found is None:
        raise click.BadParameter(f"found {text!r}; allowed is {SIZE_IN_WORDS}")
    return found


LISTEN, JOIN_PORT = "127.0.0.1:7461", 7462
CONNECTIONS, PER_ADDRESS = 4_096, 1_024


@click.group(cls=CommandGroup)
def mediator() -> None:
    """Run a mediator: the server that connects sites and users.

    \b
    Example:
      fedpilot mediator start --folder /srv/fedpilot --listen 0.0.0.0:7461
    """


@mediator.command()
@click.option(
    "--folder",
    metavar="DIR",
    default="mediator",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for certificates, runs and the database. Created if missing.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=LISTEN,
    show_default=True,
    help="Address for sites and users; port 0 takes any free port.",
)
@click.option(
    "--join-port",
    type=click.IntRange(0, 65535),
    default=JOIN_PORT,
    show_default=True,
    help="Port on that host for sites that join with a token; 0 takes any free port.",
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="DNS name or IP address in the mediator's certificate, which the first start creates. May "
    "be given several times. Default: those of this machine.",
)
@click.option(
    "--store",
    metavar="URL",
    default="",
    envvar="FEDPILOT_STORE",
    show_envvar=True,
    help="Database: postgresql://USER:PASSWORD@HOST/DATABASE. Default: a file in the folder.",
)
@click.option(
    "--no-user-code",
    is_flag=True,
    help="Refuse runs with their own code, sent or installed here. Coordinators would load it with "
    "the rights of this account.",
)
@click.option(
    "--max-connections",
    metavar="N",
    type=click.IntRange(min=64),
    default=CONNECTIONS,
    show_default=True,
    help="Most connections of sites and users at once, within RLIMIT_NOFILE; a site has two. A "
    "quarter of them, and at most 512, may be unauthenticated.",
)
@click.option(
    "--max-connections-per-address",
    metavar="N",
    type=click.IntRange(min=1),
    default=PER_ADDRESS,
    show_default=True,
    help="Most authenticated connections from one address, which sites behind a firewall share.",
)
@click.option(
    "--runs-per-user",
    metavar="N",
    type=click.IntRange(min=1),
    help="Most runs of one user at work at once; more wait in line. Default: any number.",
)
@click.option(
    "--queues",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file of projects that share the sites: quotas and shares of all sites together, and "
    "who may submit what, as in `fedpilot queue apply`. Default: runs name any project.",
)
@click.option(
    "--keep-days",
    metavar="DAYS",
    type=click.FloatRange(min=0, min_open=True),
    help="Remove runs that ended this long ago, and events and audit entries of that age. Default: "
    "keep all.",
)
@click.option(
    "--keep-runs",
    metavar="N",
    type=click.IntRange(min=0),
    help="Keep only the newest N finished runs. Runs that can be resumed do not count.",
)
@click.option(
    "--keep-size",
    metavar="SIZE",
    type=_size,
    help="Keep only the newest finished runs whose folders fit in SIZE together, such as 20GB.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line when ready.")
def start(
    folder: Path,
    listen: str,
    join_port: int,
    hosts: Sequence[str],
    store: str,
    no_user_code: bool,
    max_connections: int,
    max_connections_per_address: int,
    runs_per_user: int | None,
    queues: Path | None,
    keep_days: float | None,
    keep_runs: int | None,
    keep_size: int | None,
    as_json: bool,
) -> None:
    """Start a mediator, which serves until Ctrl-C or SIGTERM.

    The mediator then pauses its runs, and continues them at its next start. The first start creates
    a certificate authority, and certificates for the mediator and its admin; the admin's
    credentials are in DIR/admin. The log on stderr has a line per refusal; after 30 lines of one
    kind, at most six a minute.

    \b
    Examples:
      fedpilot mediator start
      fedpilot mediator start --folder /srv/fedpilot --listen 0.0.0.0:7461 --host fl.example.org
      fedpilot mediator start --store postgresql://fedpilot@db/fedpilot --json

    \b
    Exit codes: 0 ended by SIGTERM; 1 failed; 2 bad usage, folder or database, or a port in use;
    130 interrupted.
    """
    host, port = _host_and_port(listen)
    # gRPC logs each failed handshake without its peer; the watcher logs peers, in summaries.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with exit_codes():
        from fedpilot.fabric.spec.queue_file import read_queue_file

        from ..server import LogPace, ServerSettings, raise_descriptors
        from ..wire.transfer import keep_freed_memory

        handler = logging.StreamHandler()
        handler.addFilter(LogPace(time.monotonic))
        shown = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(format=shown, level=logging.INFO, handlers=[handler])
        raise_descriptors()

        projects = (
            None if queues is None else read_queue_file(queues, one_pool="a mediator's sites")
        )
        settings = ServerSettings(
            folder=folder,
            host=host,
            port=port,
            join_port=join_port,
            store=store,
            user_code=not no_user_code,
            connections=max_connections,
            connections_per_address=max_connections_per_address,
            queue=RunQueueSettings(runs_per_user=runs_per_user),
            projects=projects,
            retention=Retention(days=keep_days, runs=keep_runs, nbytes=keep_size),
        )
        keep_freed_memory()
        ended_by = asyncio.run(_serve(settings, hosts, as_json))
    if ended_by == signal.SIGINT:
        sys.exit(128 + signal.SIGINT)


async def _serve(settings: ServerSettings, hosts: Sequence[str], as_json: bool) -> int:
    """Serve until a signal comes; return the signal."""
    from ..server import Mediator

    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    signals: list[int] = []

    def end(number: int) -> None:
        signals.append(number)
        ending.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    async with Mediator(settings, hosts=hosts) as serving:
        _say_ready(serving, as_json)
        await ending.wait()
        click.echo("fedpilot: the mediator is stopping", err=True)
    return signals[0]


def _say_ready(serving: Mediator, as_json: bool) -> None:
    ready = serving.ready
    if as_json:
        document = {
            "event": "mediator_ready",
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "address": ready.address,
            "join_address": ready.join_address,
            "folder": str(serving.settings.folder.resolve()),
            "made": list(ready.own.made),
            "admin": ready.own.admin and str(ready.own.admin.resolve()),
            "pid": os.getpid(),
        }
        click.echo(json.dumps(document))
        return
    click.echo(
        f"ready: sites and users at {ready.address}, sites that join at {ready.join_address}"
    )
    for each in ready.own.made:
        click.echo(f"  made {each}")
    if ready.own.admin is not None:
        for line in _next_steps(ready.address, ready.own.admin):
            click.echo(line)


def _next_steps(address: str, admin: Path) -> list[str]:
    return [
        "next:",
        f"  fedpilot profile add here --mediator {address} --credentials {admin}",
        "  fedpilot site join --profile here --name SITE    at each of your Ray clusters",
        "  fedpilot site token SITE                         for a site of another admin",
    ]


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        fail(f"--listen is HOST:PORT, such as {LISTEN}; found {listen!r}", BAD_INPUT)
    return host.strip("[]"), int(port)
