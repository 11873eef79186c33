"""`fedpilot cluster`; results go to stdout, as text or one JSON document, all else to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.host.exit_codes import BAD_INPUT, REFUSED
from fedpilot.common.terminal.commands import CommandGroup, exit_codes, fail
from fedpilot.common.terminal.console import display, print_json, stdout_console

from ..core.records import DEFAULT, ROOT
from ..errors import NoSuchCluster, NotYours
from .access import RayAccess, with_clusters
from .create_cluster import create

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Create, list, draw, explain and delete virtual clusters.

    Virtual clusters share a Ray cluster. Each reserves all its resources at once, or waits in a
    queue. It stays until you delete it. The first command starts the manager, an actor on the head.

    With --site NAME or --all-sites, the mediator of a federation runs the command at its sites.

    \b
    Examples:
      fedpilot cluster create vision --node 2xCPU=4,GPU=1 --policy STRICT_SPREAD
      fedpilot cluster create speech --min CPU=8 --max CPU=32
      fedpilot cluster tree
      fedpilot cluster explain speech
      fedpilot cluster delete vision speech
    """


cluster.add_command(create)


@cluster.command("list")
@with_clusters
def list_(ray: RayAccess[VirtualClusters], as_json: bool) -> None:
    """List the virtual clusters, each followed by those inside it.

    `default` stands for all work on Ray outside virtual clusters. After a restart of the Ray head,
    the list also says when the head restarted, and which virtual clusters were lost.

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
        from .terminal.tables import cluster_table

        display(cluster_table(document, time.time()))
        tell_of_head(document, ray)


@cluster.command()
@click.argument("name")
@with_clusters
def show(name: str, ray: RayAccess[VirtualClusters], as_json: bool) -> None:
    """Show virtual cluster NAME: what it holds, borrowed and requested.

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
        from .terminal.tables import cluster_details

        display(cluster_details(document, name, time.time()))


@cluster.command()
@with_clusters
def tree(ray: RayAccess[VirtualClusters], as_json: bool) -> None:
    """Draw the machines of the Ray cluster and its virtual clusters.

    All bars have one scale. The bar of a virtual cluster covers its share of the Ray cluster; bars
    of nested virtual clusters lie below it.

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
        from .terminal.tree import picture

        display(picture(document, time.time()))
        tell_of_head(document, ray)


@cluster.command()
@click.argument("name")
@with_clusters
def explain(name: str, ray: RayAccess[VirtualClusters], as_json: bool) -> None:
    """Explain the state of virtual cluster NAME, and what would help.

    The command also prints its history. For an ended virtual cluster it says how it ended, as long
    as the manager remembers.

    \b
    Examples:
      fedpilot cluster explain speech
      fedpilot cluster explain speech --json | jq -r '.sentences[]'
    """
    with exit_codes():
        from .terminal.explain import explained, sentences

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


@cluster.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--forget", is_flag=True, help="Do not restore them; stop listing them as lost.")
@with_clusters
def restore(
    names: Sequence[str], forget: bool, ray: RayAccess[VirtualClusters], as_json: bool
) -> None:
    """Restore virtual clusters that were lost with the Ray head.

    Without NAME, the command restores all detached ones, which `fedpilot cluster create` made. Each
    keeps its spec and its user, and gets its resources or waits. The command does not restart work
    that ran there. Virtual clusters of jobs ended with their jobs.

    \b
    Examples:
      fedpilot cluster restore
      fedpilot cluster restore vision speech
      fedpilot cluster restore --forget

    \b
    Exit codes: 0 all are requested again, or there was nothing to restore; 2 no such name;
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
    from .terminal.words import short, status

    console = stdout_console()
    for found in done["restored"]:
        console.print(status(found), f"{found['id']} is requested again")
        if found["reason"]:
            console.print(f"  {short(found['reason'])}")
    for name, why in done["refused"].items():
        click.echo(f"fedpilot: {name} is not restored: {short(why)}", err=True)
    if not done["restored"] and not done["refused"]:
        click.echo("there was nothing to restore")


def tell_of_head(document: Mapping[str, Any], ray: RayAccess[Any]) -> None:
    """List the virtual clusters that were lost with a dead head, and the commands that help."""
    from .terminal.tables import gone_with_head

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
        console.print(f"  restore the detached ones: {restore}", soft_wrap=True)
    console.print(f"  stop listing them:         {forget}", soft_wrap=True)


@cluster.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Delete all virtual clusters.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Also delete those of other users.")
@with_clusters
def delete(
    names: Sequence[str],
    everything: bool,
    yes: bool,
    force: bool,
    ray: RayAccess[VirtualClusters],
    as_json: bool,
) -> None:
    """Delete virtual clusters, with all that runs inside them.

    The command asks before it deletes virtual clusters that you did not name: with --all, or inside
    a named one. Without a terminal, it then needs --yes. Virtual clusters of another user need
    --force; their history (`explain`) then names the user that deleted them. Your user name is
    FEDPILOT_USER, by default your account on this machine.

    \b
    Examples:
      fedpilot cluster delete vision
      fedpilot cluster delete speech tabular --yes
      fedpilot cluster delete --all --yes --json
    """
    if bool(names) == everything:
        raise click.UsageError("give either NAME..., or --all.")
    with exit_codes(), ray.opened() as clusters:
        with ray.answer_said_to_be_slow():
            document = clusters.snapshot()
        named = _to_delete(document, names, everything)
        doomed = _with_children(document, named)
        if not force:
            _check_owners(document, named)
        surprising = [each for each in doomed if each not in names]
        if surprising and not yes:
            _confirm(doomed, surprising, as_json)
        ended: list[str] = []
        delete_one = partial(clusters.delete, force=True) if force else clusters.delete
        for name in named:
            try:
                with ray.answer_said_to_be_slow():
                    ended += delete_one(name)
            except NoSuchCluster:  # it has ended by itself
                continue
        if as_json:
            print_json({"ended": ended})
            return
        for name in ended:
            click.echo(f"ended {name}")
        if not ended:
            click.echo("there was nothing to end")


def _to_delete(document: Mapping[str, Any], names: Sequence[str], everything: bool) -> list[str]:
    """The virtual clusters to end; NoSuchCluster if a name is unknown, before any has ended."""
    there = [each["id"] for each in document["clusters"] if each["id"] != DEFAULT]
    if everything:
        parents = {each["id"]: each["parent"] for each in document["clusters"]}
        return [name for name in there if parents[name] == ROOT]
    for name in names:
        if name == DEFAULT:
            fail(f"{name} is all work outside virtual clusters: it cannot be deleted", BAD_INPUT)
        if name not in there:
            raise NoSuchCluster(name, there)
    return list(dict.fromkeys(names))


def _with_children(document: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The named virtual clusters and all inside them, including waiting ones."""
    doomed = list(names)
    for each in document["clusters"]:  # parents come before their children
        if each["parent"] in doomed and each["id"] not in doomed:
            doomed.append(each["id"])
    return doomed


def _check_owners(document: Mapping[str, Any], named: Sequence[str]) -> None:
    """Raise NotYours, before any has ended, if one belongs to another user."""
    from fedpilot.common.host.users import current_user

    user = current_user()
    of = {each["id"]: each.get("user", "") for each in document["clusters"]}
    for name in named:
        doomed = _with_children(document, [name])
        if others := {each: of[each] for each in doomed if of[each] not in ("", user)}:
            raise NotYours(name, others, user)


def _confirm(doomed: Sequence[str], surprising: Sequence[str], as_json: bool) -> None:
    from fedpilot.common.text.amounts import listed

    if as_json or not sys.stdin.isatty():
        fail(f"that would also end {listed(surprising)}; confirm with --yes", BAD_INPUT)
    click.confirm(f"End {listed(doomed, 20)}, and all that runs there?", abort=True, err=True)
