"""Commands that show declared Ray clusters, what happens to them, and how to use them."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from typing import TYPE_CHECKING

import click

from fedpilot.common.host.exit_codes import REFUSED
from fedpilot.common.terminal.commands import fail, interruptions
from fedpilot.common.terminal.console import display, print_json

from .store_options import with_store

if TYPE_CHECKING:
    from ...ray_clusters.declarations.store import RayClusterStore


@click.command("list")
@with_store
def list_(store: RayClusterStore, as_json: bool) -> None:
    """List the declared Ray clusters, with their states, machines and addresses.

    \b
    Examples:
      fedpilot raycluster list
      fedpilot raycluster list --json | jq -r '.clusters[] | select(.state != "ready") | .name'
    """
    from ...ray_clusters.declarations import documents

    managed = documents.is_managed(store)
    found = [documents.summary(store, each, managed) for each in store.declarations()]
    if as_json:
        print_json({"managed": managed, "clusters": found})
        return
    from ..terminal.ray_clusters import cluster_table

    display(cluster_table(found, managed, time.time()))


@click.command()
@click.argument("name")
@with_store
def show(name: str, store: RayClusterStore, as_json: bool) -> None:
    """Show one Ray cluster: its groups and its machines, each with its state.

    \b
    Examples:
      fedpilot raycluster show demo
      fedpilot raycluster show demo --json | jq -r .address
    """
    from ...ray_clusters.declarations import documents

    found = documents.details(store, documents.find(store, name))
    if as_json:
        print_json(found)
        return
    from ..terminal.ray_clusters import cluster_details

    display(cluster_details(found, time.time()))


@click.command()
@click.argument("name")
@with_store
def explain(name: str, store: RayClusterStore, as_json: bool) -> None:
    """Say why a Ray cluster is not as it is declared, group by group.

    \b
    Examples:
      fedpilot raycluster explain demo
      fedpilot raycluster explain demo --json | jq .groups
    """
    from ...ray_clusters.declarations import documents

    found = documents.details(store, documents.find(store, name))
    if as_json:
        keys = ("name", "state", "since", "revision", "seen_revision", "reason")
        print_json({key: found[key] for key in (*keys, "hosts_silent", "groups")})
        return
    from ..terminal.ray_clusters import explanation

    display(explanation(found, time.time()))


@click.command()
@click.argument("name")
@click.option("--follow", "-f", is_flag=True, help="Print further events as they happen.")
@with_store
def events(name: str, follow: bool, store: RayClusterStore, as_json: bool) -> None:
    """Print what has happened to a Ray cluster, the oldest first.

    With `--json`, each event is one JSON object on a line.

    \b
    Examples:
      fedpilot raycluster events demo
      fedpilot raycluster events demo --follow --json
    """
    from ...ray_clusters.declarations import documents
    from ...ray_clusters.declarations.records import UNDECLARED
    from ..terminal.ray_clusters import event_line

    stored = documents.find(store, name)

    async def told() -> None:
        since = UNDECLARED
        with store.watch() as watch:
            while True:
                for event in store.events(stored.uid, since):
                    since = event.id
                    line = {
                        "id": event.id,
                        "event": event.kind,
                        "time": event.at,
                        "machine": event.machine,
                        "reason": event.reason,
                    }
                    click.echo(json.dumps(line) if as_json else event_line(event))
                still = store.find(stored.name)
                if not follow or still is None or still.uid != stored.uid:
                    return
                sys.stdout.flush()
                await watch.wait()

    with interruptions():
        asyncio.run(told())


@click.command()
@click.argument("name")
@with_store
def env(name: str, store: RayClusterStore, as_json: bool) -> None:
    """Print the variables with which Ray and fedpilot use a declared Ray cluster.

    \b
    Examples:
      eval "$(fedpilot raycluster env demo)"
      ray status
      fedpilot cluster list
    """
    from ...ray_clusters.declarations import documents

    found = documents.details(store, documents.find(store, name))
    variables = documents.environment_of(found)
    if variables is None:
        why = found["reason"] if found["provider"] == "existing" else "its head has not started"
        fail(f"{name} has no address yet: {why or 'it has not been seen'}", REFUSED)
    if as_json:
        print_json(variables)
        return
    for key, value in variables.items():
        click.echo(f"export {key}={shlex.quote(value)}")
