"""The commands about virtual clusters: `fedpilot cluster`. Those here look, and change nothing.

What is asked for goes to stdout, as text or as one JSON document; everything else to stderr.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ..terminal.commands import CommandGroup, exit_codes
from ..terminal.console import display, print_json
from .access import RayAccess, with_clusters
from .create_cluster import create
from .delete_clusters import delete
from .restore_clusters import restore, tell_of_head

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Share one Ray cluster: virtual clusters that get their places as a whole, or wait for them.

    They stay until they are deleted. The first command makes their manager, an actor on the head
    machine.

    With --site NAME or --all-sites a command is run at sites of a federation, by way of its
    mediator.

    \b
    Examples:
      fedpilot cluster create vision --node 2xCPU=4,GPU=1 --policy STRICT_SPREAD
      fedpilot cluster create speech --min CPU=8 --max CPU=32
      fedpilot cluster tree
      fedpilot cluster explain speech
      fedpilot cluster delete vision speech
    """


@cluster.command("list")
@with_clusters
def list_(ray: RayAccess[VirtualClusters], as_json: bool) -> None:
    """List the virtual clusters, each followed by those inside it.

    `default` is what runs on Ray outside all of them. After a restart of the head of the Ray
    cluster, the list also says when that was, and which virtual clusters were lost.

    \b
    Examples:
      fedpilot cluster list
      fedpilot cluster list --json | jq -r '.clusters[] | select(.state == "waiting") | .id'
    """
    with exit_codes():
        document = ray.ask(lambda clusters: clusters.snapshot())
        if as_json:
            print_json({"clusters": document["clusters"], "head": document.get("head")})
            return
        from ..terminal.clusters.tables import cluster_table

        display(cluster_table(document, time.time()))
        tell_of_head(document, ray)


@cluster.command()
@click.argument("name")
@with_clusters
def show(name: str, ray: RayAccess[VirtualClusters], as_json: bool) -> None:
    """Show virtual cluster NAME: what it holds where, what it borrowed, what it asked for.

    \b
    Examples:
      fedpilot cluster show vision
      fedpilot cluster show vision --json | jq '.nodes[].hostname'
    """
    with exit_codes():
        from ..manager.snapshot import find

        document = ray.ask(lambda clusters: clusters.snapshot())
        found = find(document, name)
        if as_json:
            print_json(found)
            return
        from ..terminal.clusters.tables import cluster_details

        display(cluster_details(document, name, time.time()))


@cluster.command()
@with_clusters
def tree(ray: RayAccess[VirtualClusters], as_json: bool) -> None:
    """Draw the Ray cluster: what its machines have, who holds it, who waits for what.

    All bars have one scale: that of a virtual cluster lies where its share of the Ray cluster is,
    and those inside it lie below its own.

    \b
    Examples:
      fedpilot cluster tree
      fedpilot cluster tree --address 10.0.0.5:6379
      fedpilot cluster tree --json | jq '.machines[] | {hostname, available}'
    """
    with exit_codes():
        document = ray.ask(lambda clusters: clusters.snapshot())
        if as_json:
            print_json(document)
            return
        from ..terminal.clusters.tree import picture

        display(picture(document, time.time()))
        tell_of_head(document, ray)


@cluster.command()
@click.argument("name")
@with_clusters
def explain(name: str, ray: RayAccess[VirtualClusters], as_json: bool) -> None:
    """Say why virtual cluster NAME is in its state, what would help, and what has happened to it.

    Of a virtual cluster that has ended it says how, as long as the manager remembers.

    \b
    Examples:
      fedpilot cluster explain speech
      fedpilot cluster explain speech --json | jq -r '.sentences[]'
    """
    with exit_codes():
        from ..terminal.clusters.explain import explained, sentences

        document, history = ray.ask(lambda found: (found.snapshot(), found.history()))
        now = time.time()
        said = sentences(document, name, history, now)
        if as_json:
            found = next((each for each in document["clusters"] if each["id"] == name), None)
            print_json(
                {
                    "id": name,
                    "state": found["state"] if found else "ended",
                    "sentences": said,
                    "history": [dict(event) for event in history if event["cluster"] == name],
                    "cluster": found,
                }
            )
            return
        display(explained(said, history, name, now))


for each in (create, restore, delete):
    cluster.add_command(each)
