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

from fedpilot.fabric.core.text.amounts import SIZE_IN_WORDS, bytes_of
from fedpilot.fabric.host.exit_codes import BAD_INPUT
from fedpilot.fabric.terminal.commands import CommandGroup, exit_codes, fail

from ..core.retention import Retention

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
    """Run a mediator: the one process that sites join and users ask.

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
    help="Where it keeps its certificates, runs and database. Made if it is not there.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=LISTEN,
    show_default=True,
    help="Where sites and users reach it; port 0 takes any that is free.",
)
@click.option(
    "--join-port",
    type=click.IntRange(0, 65535),
    default=JOIN_PORT,
    show_default=True,
    help="Where sites with a token reach it, at the same host; 0 takes any that is free.",
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A DNS name or address for the certificate that is made at the first start; may be given "
    "several times. By default those of this machine.",
)
@click.option(
    "--store",
    metavar="URL",
    default="",
    envvar="FEDPILOT_STORE",
    show_envvar=True,
    help="The database: postgresql://USER:PASSWORD@HOST/DATABASE. By default a file in the folder.",
)
@click.option(
    "--no-user-code",
    is_flag=True,
    help="Refuse runs that bring code of their own, or name any that is installed here: their "
    "coordinators load it, and have the rights of this account.",
)
@click.option(
    "--max-connections",
    metavar="N",
    type=click.IntRange(min=64),
    default=CONNECTIONS,
    show_default=True,
    help="Connections of sites and users at once, as far as RLIMIT_NOFILE allows; a site has two. "
    "Those that have not shown a certificate get a quarter of them at most.",
)
@click.option(
    "--max-connections-per-address",
    metavar="N",
    type=click.IntRange(min=1),
    default=PER_ADDRESS,
    show_default=True,
    help="Of one address, once a certificate was shown. Sites behind one firewall share one.",
)
@click.option(
    "--keep-days",
    metavar="DAYS",
    type=click.FloatRange(min=0, min_open=True),
    help="Remove runs that ended so long ago, and older events and audit entries. By default "
    "nothing is removed.",
)
@click.option(
    "--keep-runs",
    metavar="N",
    type=click.IntRange(min=0),
    help="Keep the newest N finished runs. Runs that can be resumed are not counted.",
)
@click.option(
    "--keep-size",
    metavar="SIZE",
    type=_size,
    help="Keep the newest finished runs whose folders have so many bytes together, such as 20GB.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line when it is ready.")
def start(
    folder: Path,
    listen: str,
    join_port: int,
    hosts: Sequence[str],
    store: str,
    no_user_code: bool,
    max_connections: int,
    max_connections_per_address: int,
    keep_days: float | None,
    keep_runs: int | None,
    keep_size: int | None,
    as_json: bool,
) -> None:
    """Serve until Ctrl-C or SIGTERM; then runs are held, and go on at the next start.

    The first start makes a certificate authority, and certificates for the mediator and its admin,
    whose credentials lie in DIR/admin then. Everything that is refused is said in one line on
    stderr; of one kind at most six lines a minute.

    \b
    Examples:
      fedpilot mediator start
      fedpilot mediator start --folder /srv/fedpilot --listen 0.0.0.0:7461 --host fl.example.org
      fedpilot mediator start --store postgresql://fedpilot@db/fedpilot --json

    \b
    Exit codes: 0 ended by SIGTERM; 1 it failed; 2 bad usage, folder or database, or a port that is
    taken; 130 interrupted.
    """
    host, port = _host_and_port(listen)
    # gRPC logs each failed handshake without its peer; the watcher logs peers, in summaries.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with exit_codes():
        from ..server import LogPace, ServerSettings, raise_descriptors
        from ..wire.transfer import keep_freed_memory

        handler = logging.StreamHandler()
        handler.addFilter(LogPace(time.monotonic))
        shown = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(format=shown, level=logging.INFO, handlers=[handler])
        raise_descriptors()

        settings = ServerSettings(
            folder=folder,
            host=host,
            port=port,
            join_port=join_port,
            store=store,
            user_code=not no_user_code,
            connections=max_connections,
            connections_per_address=max_connections_per_address,
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
        click.echo("fedpilot: the mediator ends", err=True)
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
        "  fedpilot site join --profile here --name SITE    at each Ray cluster of yours",
        "  fedpilot site token SITE                         for a site of somebody else",
    ]


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        fail(f"--listen is HOST:PORT, such as {LISTEN}; found {listen!r}", BAD_INPUT)
    return host.strip("[]"), int(port)
