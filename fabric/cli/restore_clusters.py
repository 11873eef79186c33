"""`fedpilot cluster restore`, and what other commands say of what was lost with a head."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..host.exit_codes import REFUSED
from ..terminal.commands import exit_codes
from ..terminal.console import print_json, stdout_console
from .access import RayAccess, with_clusters

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--forget", is_flag=True, help="Do not restore; no longer say that they are gone.")
@with_clusters
def restore(
    names: Sequence[str], forget: bool, ray: RayAccess[VirtualClusters], as_json: bool
) -> None:
    """Ask again for the virtual clusters that were lost when the head of the Ray cluster died.

    Without NAME, for all that were detached: made by `fedpilot cluster create`, so that they stay
    until they are deleted. Each is asked for with its spec, for the user whom it belonged to, and
    gets its places, or waits. What ran in them is not started again. Those of jobs ended with their
    jobs.

    \b
    Examples:
      fedpilot cluster restore
      fedpilot cluster restore vision speech
      fedpilot cluster restore --forget

    \b
    Exit codes: 0 all were asked for again, or there was nothing to restore; 2 no such name;
    3 some cannot be restored, now or ever; 4 no Ray there.
    """
    with exit_codes():
        if forget:
            forgotten = ray.ask(lambda found: found.forget(names))
            if as_json:
                print_json({"forgotten": list(forgotten)})
            else:
                for name in forgotten:
                    click.echo(f"forgot {name}")
                if not forgotten:
                    click.echo("there was nothing to forget")
            return
        done = ray.ask(lambda found: found.restore(names))
        if as_json:
            print_json(done)
        else:
            _print_restored(done)
    sys.exit(REFUSED if done["refused"] else 0)


def _print_restored(done: Mapping[str, Any]) -> None:
    from ..terminal.clusters.words import short, status

    console = stdout_console()
    for found in done["restored"]:
        console.print(status(found), f"{found['id']} is asked for again")
        if found["reason"]:
            console.print(f"  {short(found['reason'])}")
    for name, why in done["refused"].items():
        click.echo(f"fedpilot: {name} is not restored: {short(why)}", err=True)
    if not done["restored"] and not done["refused"]:
        click.echo("there was nothing to restore")


def tell_of_head(document: Mapping[str, Any], ray: RayAccess[Any]) -> None:
    """Say which virtual clusters are gone with a head that died, and what can be done."""
    from ..terminal.clusters.tables import gone_with_head

    lines = gone_with_head(document, time.time())
    if not lines:
        return
    console = stdout_console()
    console.print()
    for line in lines:
        console.print(line, soft_wrap=True)
    restore = ray.command("cluster", "restore")
    forget = ray.command("cluster", "restore", "--forget")
    if any(each["detached"] for each in document["head"]["gone"]):
        console.print(f"  make the detached ones again: {restore}", soft_wrap=True)
    console.print(f"  say no more of this:          {forget}", soft_wrap=True)
