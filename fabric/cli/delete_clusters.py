"""`fedpilot cluster delete`: ends virtual clusters, and asks before it ends unnamed ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..core.records import DEFAULT, ROOT
from ..errors import NoSuchCluster, NotYours
from ..host.exit_codes import BAD_INPUT
from ..terminal.commands import exit_codes, fail
from ..terminal.console import print_json
from .access import RayAccess, with_clusters

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All virtual clusters of the Ray cluster.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also those of other users. This is on record.")
@with_clusters
def delete(
    names: Sequence[str],
    everything: bool,
    yes: bool,
    force: bool,
    ray: RayAccess[VirtualClusters],
    as_json: bool,
) -> None:
    """End virtual clusters, with all that is inside them and all that runs there.

    Asks before it ends any that was not named: with --all, or those inside. Where nobody can be
    asked, it needs --yes for that. What another user asked for needs --force: the history of the
    virtual cluster (`explain`) then says who ended it. A user is FEDPILOT_USER, or else the name
    on the machine.

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
    """The names in the document; NoSuchCluster before anything is ended."""
    there = [each["id"] for each in document["clusters"] if each["id"] != DEFAULT]
    if everything:
        parents = {each["id"]: each["parent"] for each in document["clusters"]}
        return [name for name in there if parents[name] == ROOT]
    for name in names:
        if name == DEFAULT:
            fail(f"{name} is what runs outside all virtual clusters: it stays", BAD_INPUT)
        if name not in there:
            raise NoSuchCluster(name, there)
    return list(dict.fromkeys(names))


def _with_children(document: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """These and all inside them, those that wait too."""
    doomed = list(names)
    for each in document["clusters"]:  # parents come before their children
        if each["parent"] in doomed and each["id"] not in doomed:
            doomed.append(each["id"])
    return doomed


def _check_owners(document: Mapping[str, Any], named: Sequence[str]) -> None:
    """NotYours before anything is ended."""
    from ..host.users import current_user

    user = current_user()
    of = {each["id"]: each.get("user", "") for each in document["clusters"]}
    for name in named:
        doomed = _with_children(document, [name])
        if others := {each: of[each] for each in doomed if of[each] not in ("", user)}:
            raise NotYours(name, others, user)


def _confirm(doomed: Sequence[str], surprising: Sequence[str], as_json: bool) -> None:
    from ..core.text.amounts import listed

    if as_json or not sys.stdin.isatty():
        fail(f"that would also end {listed(surprising)}; say --yes if it shall", BAD_INPUT)
    click.confirm(f"End {listed(doomed, 20)}, and all that runs there?", abort=True, err=True)
