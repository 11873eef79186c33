"""`fedpilot raycluster wait`, and the waiting of other commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from fedpilot.common.host.exit_codes import FAILED
from fedpilot.common.terminal.commands import fail, interruptions
from fedpilot.common.terminal.console import print_json, spinner

from .store_options import with_store

if TYPE_CHECKING:
    from ...ray_clusters.declarations.records import StoredDeclaration
    from ...ray_clusters.declarations.store import RayClusterStore


@click.command()
@click.argument("name")
@click.option(
    "--for",
    "state",
    type=click.Choice(["ready", "suspended", "deleted"]),
    default="ready",
    show_default=True,
    help="What to wait for.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long to wait. Default: as long as it takes.",
)
@with_store
def wait(
    name: str, state: str, timeout: float | None, store: RayClusterStore, as_json: bool
) -> None:
    """Wait until a Ray cluster is as declared.

    \b
    Examples:
      fedpilot raycluster wait demo
      fedpilot raycluster wait demo --for deleted --timeout 60

    \b
    Exit codes: 0 it is; 1 it was not in time, or its head cannot be started; 2 there is no such
    cluster.
    """
    from ...ray_clusters.declarations import documents

    found = documents.find(store, name)
    wait_for(store, found, state, timeout)
    if as_json:
        still = store.find(found.name)
        if still is None or still.uid != found.uid:
            print_json({"name": name, "uid": found.uid, "state": "deleted"})
        else:
            print_json(documents.details(store, still))
        return
    click.echo(f"{name} is {state}")


def wait_for(
    store: RayClusterStore, stored: StoredDeclaration, state: str, timeout_s: float | None
) -> None:
    """Wait for a state of the newest revision; exit with a reason if it cannot come."""
    from ...ray_clusters.declarations.waiting import wait_of

    async def waited() -> str:
        loop = asyncio.get_running_loop()
        until = float("inf") if timeout_s is None else loop.time() + timeout_s
        with store.watch() as watch, spinner(f"{stored.name}: waiting") as say:
            while not (wait := wait_of(store, stored, state)).reached:
                if wait.never:
                    return wait.never
                say(f"{stored.name}: {wait.so_far}")
                left_s = until - loop.time()
                if timeout_s is not None and left_s <= 0:
                    return wait.in_vain(stored.name, state, timeout_s)
                await watch.wait(min(1.0, left_s))
        return ""

    with interruptions():
        if reason := asyncio.run(waited()):
            fail(reason, FAILED)
