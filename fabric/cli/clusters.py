"""The commands about virtual clusters: `fedpilot cluster`. Thin: parse, ask the manager, print.

What is asked for goes to stdout, as text or as one JSON document; everything else to stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..core.records import DEFAULT, ROOT
from ..errors import NoSuchCluster, NotInTime, NotYours
from .access import (
    BAD_INPUT,
    INTERRUPTED,
    REFUSED,
    Commands,
    NextSteps,
    Spinner,
    answer_said_to_be_slow,
    ask,
    display,
    exit_codes,
    fail,
    interruptions,
    opened,
    place_of,
    print_json,
    stdout_console,
    with_access,
)
from .spec_options import check_name, spec_from, with_deadline, with_priority, with_spec

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters

FIRST_POLL_S, LAST_POLL_S = 0.2, 2.0
"""How often a waiting one is looked at: at first, and after a while."""
EVENTS = 20
"""How much of the history `explain` prints; `--json` gives all."""


@contextmanager
def attached(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[VirtualClusters]:
    """Be a driver of the Ray cluster at an address."""
    from ..inside.virtual_clusters import VirtualClusters
    from ..ray.cluster import RayCluster

    with RayCluster.connect(address, auth_mode, timeout_s):
        yield VirtualClusters()


@click.group(cls=Commands)
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


@cluster.command()
@click.argument("name")
@with_spec("--json-spec")
@click.option("--parent", metavar="NAME", help="Make it inside this virtual cluster.")
@with_priority
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long this command waits for the places; 0 only asks for them.",
)
@with_deadline("Give up, and leave the queue, if it has not got its places by then.")
@with_access
def create(
    name: str,
    spec_file: Path | None,
    json_spec: str | None,
    least: Sequence[str],
    most: Sequence[str],
    nodes: Sequence[str],
    policy: str | None,
    max_actors: int | None,
    parent: str | None,
    priority: int,
    wait_s: float,
    deadline_s: float | None,
    address: str,
    auth_mode: str | None,
    as_json: bool,
) -> None:
    """Reserve virtual cluster NAME: all that it needs at once, or it waits in the queue.

    What it needs comes from --spec, from --json-spec, or from --min, --max, --node, --policy and
    --max-actors; without any of them it needs nothing, and may grow to all that is free. AMOUNTS
    are such as CPU=2,GPU=0.5,memory=4GiB. Asking again for what is there already changes nothing.

    Where the places are not free within --wait, it goes on waiting without this command, which then
    ends with code 3, so that `create ... && use it` is safe; with `--wait 0` it ends with code 0.
    Ctrl-C ends this command only. Use --deadline to have it leave the queue.

    \b
    Examples:
      fedpilot cluster create vision --node 2xCPU=4,GPU=1 --policy STRICT_SPREAD
      fedpilot cluster create speech --min CPU=8 --max CPU=32 --wait 600
      fedpilot cluster create speech-eval --node CPU=2 --parent speech --wait 0
      fedpilot cluster create tabular --spec tabular.yaml --deadline 3600
      echo '{flex_resource_min: {CPU: 1}}' | fedpilot cluster create small --spec -

    \b
    Exit codes: 0 active (or asked for, with --wait 0); 2 the spec or the name is wrong;
    3 it waits still, gave up, or could never fit; 4 no Ray there; 130 interrupted, it waits on.
    """
    with exit_codes():
        spec = spec_from(spec_file, json_spec, least, most, nodes, policy, max_actors=max_actors)
        check_name(name)
        asked_at, begun = time.time(), time.monotonic()
        fate = "nothing was asked for"
        say = NextSteps("cluster", address, auth_mode)
        steps = f"  look at it: {say('explain', name)}\n  give it up: {say('delete', name)}"
        try:
            with (
                interruptions(),
                Spinner(f"asking {place_of(address)} for {name}") as spinner,
                opened(attached, address, auth_mode) as clusters,
            ):
                fate = f"{name} may have been asked for, or not\n{steps}"
                with answer_said_to_be_slow(address):
                    found = clusters.create(
                        name,
                        spec,
                        parent=parent or ROOT,
                        priority=priority,
                        wait_s=min(wait_s, FIRST_POLL_S),
                        deadline_s=deadline_s,
                        detached=True,
                    )
                fate = f"{name} keeps its place in the queue\n{steps}"
                found = _follow(clusters, found, begun, wait_s, spinner)
        except KeyboardInterrupt:
            fail(f"interrupted; {fate}", INTERRUPTED)
        active = found["state"] not in ("waiting", "starting")
        new = found["asked_at"] >= asked_at
        if as_json:
            print_json({**found, "created": new})
        else:
            _print_created(found, new=new, say=say)
    sys.exit(0 if active or wait_s == 0 else REFUSED)


def _follow(
    clusters: VirtualClusters,
    found: Mapping[str, Any],
    begun: float,
    wait_s: float,
    spinner: Spinner,
) -> Mapping[str, Any]:
    """Look at one that waits until it is active or the time is over."""
    from ..views.wording import duration, ordinal, short

    name, deadline, pause = found["id"], None, FIRST_POLL_S
    while True:
        try:
            found = clusters.show(name)
        except NoSuchCluster:
            _tell_end(clusters, name, deadline, time.monotonic() - begun)
        deadline, waited = found["deadline"], time.monotonic() - begun
        if found["state"] not in ("waiting", "starting") or waited >= wait_s:
            return found
        place = f"{ordinal(found['position'])} in line: " if found["position"] else ""
        spinner.say(
            f"{name} is {found['state']}, {duration(waited)} of {duration(wait_s)}: "
            f"{place}{short(found['reason'])}"
        )
        time.sleep(min(pause, wait_s - waited))
        pause = min(LAST_POLL_S, pause * 1.2)


def _tell_end(
    clusters: VirtualClusters, name: str, deadline: float | None, waited_s: float
) -> NoReturn:
    """Say why one that was waited for is no more: it gave up, or somebody ended it."""
    from ..views.view import ending

    last = ending(clusters.history(), name)
    why = last["reason"] if last else "somebody ended it"
    if last and deadline is not None and last["time"] >= deadline:
        raise NotInTime(name, waited_s, why)
    fail(f"{name} is no more, and did not give up by itself: {why}", REFUSED)


def _print_created(found: Mapping[str, Any], *, new: bool, say: NextSteps) -> None:
    from ..views.wording import holding, ordinal, short, status

    name = found["id"]
    console = stdout_console()
    already = "" if new else " (it was asked for already, in the same way)"
    if found["state"] not in ("waiting", "starting"):
        console.print(status(found), f"{name}{already} holds {holding(found)}")
        return
    place = f", {ordinal(found['position'])} in line" if found["position"] else ""
    console.print(status({**found, "position": None}), f"{name}{already}{place}")
    if found["reason"]:
        console.print(f"  {short(found['reason'])}")
    console.print(f"  why, and what helps: {say('explain', name)}", soft_wrap=True)
    console.print(f"  give it up:          {say('delete', name)}", soft_wrap=True)


@cluster.command("list")
@with_access
def list_(address: str, auth_mode: str | None, as_json: bool) -> None:
    """List the virtual clusters, each followed by those inside it.

    `default` is what runs on Ray outside all of them. Where the head of the Ray cluster began anew,
    the list also says when, and which virtual clusters are gone since.

    \b
    Examples:
      fedpilot cluster list
      fedpilot cluster list --json | jq -r '.clusters[] | select(.state == "waiting") | .id'
    """
    with exit_codes():
        document = ask(attached, address, auth_mode, lambda clusters: clusters.snapshot())
        if as_json:
            print_json({"clusters": document["clusters"], "head": document.get("head")})
            return
        from ..views.tables import cluster_table

        display(cluster_table(document, time.time()))
        _tell_of_head(document, NextSteps("cluster", address, auth_mode))


def _tell_of_head(document: Mapping[str, Any], say: NextSteps) -> None:
    """Say which virtual clusters are gone with a head that died, and what can be done."""
    from ..views.tables import gone_with_head

    lines = gone_with_head(document, time.time())
    if not lines:
        return
    console = stdout_console()
    console.print()
    for line in lines:
        console.print(line, soft_wrap=True)
    if any(each["detached"] for each in document["head"]["gone"]):
        console.print(f"  make the detached ones again: {say('restore')}", soft_wrap=True)
    console.print(f"  say no more of this:          {say('restore', '--forget')}", soft_wrap=True)


@cluster.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--forget", is_flag=True, help="Do not restore; no longer say that they are gone.")
@with_access
def restore(
    names: Sequence[str], forget: bool, address: str, auth_mode: str | None, as_json: bool
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
            forgotten = ask(attached, address, auth_mode, lambda found: found.forget(names))
            if as_json:
                print_json({"forgotten": list(forgotten)})
            else:
                for name in forgotten:
                    click.echo(f"forgot {name}")
                if not forgotten:
                    click.echo("there was nothing to forget")
            return
        done = ask(attached, address, auth_mode, lambda found: found.restore(names))
        if as_json:
            print_json(done)
        else:
            _print_restored(done)
    sys.exit(REFUSED if done["refused"] else 0)


def _print_restored(done: Mapping[str, Any]) -> None:
    from ..views.wording import short, status

    console = stdout_console()
    for found in done["restored"]:
        console.print(status(found), f"{found['id']} is asked for again")
        if found["reason"]:
            console.print(f"  {short(found['reason'])}")
    for name, why in done["refused"].items():
        click.echo(f"fedpilot: {name} is not restored: {short(why)}", err=True)
    if not done["restored"] and not done["refused"]:
        click.echo("there was nothing to restore")


@cluster.command()
@click.argument("name")
@with_access
def show(name: str, address: str, auth_mode: str | None, as_json: bool) -> None:
    """Show virtual cluster NAME: what it holds where, what it borrowed, what it asked for.

    \b
    Examples:
      fedpilot cluster show vision
      fedpilot cluster show vision --json | jq '.nodes[].hostname'
    """
    with exit_codes():
        from ..manager.snapshot import find

        document = ask(attached, address, auth_mode, lambda clusters: clusters.snapshot())
        found = find(document, name)
        if as_json:
            print_json(found)
            return
        from ..views.tables import cluster_details

        display(cluster_details(document, name, time.time()))


@cluster.command()
@with_access
def tree(address: str, auth_mode: str | None, as_json: bool) -> None:
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
        document = ask(attached, address, auth_mode, lambda clusters: clusters.snapshot())
        if as_json:
            print_json(document)
            return
        from ..views.tree import picture

        display(picture(document, time.time()))
        _tell_of_head(document, NextSteps("cluster", address, auth_mode))


@cluster.command()
@click.argument("name")
@with_access
def explain(name: str, address: str, auth_mode: str | None, as_json: bool) -> None:
    """Say why virtual cluster NAME is in its state, what would help, and what has happened to it.

    Also tells how one ended that is no more, as long as the manager remembers.

    \b
    Examples:
      fedpilot cluster explain speech
      fedpilot cluster explain speech --json | jq -r '.sentences[]'
    """
    with exit_codes():
        from ..views.explain import chronicle, sentences

        document, history = ask(
            attached,
            address,
            auth_mode,
            lambda clusters: (clusters.snapshot(), clusters.history()),
        )
        now = time.time()
        said = sentences(document, name, history, now)
        if as_json:
            there = [each for each in document["clusters"] if each["id"] == name]
            told = [dict(event) for event in history if event["cluster"] == name]
            print_json(
                {
                    "id": name,
                    "state": there[0]["state"] if there else "ended",
                    "sentences": said,
                    "history": told,
                    "cluster": there[0] if there else None,
                }
            )
            return
        console = stdout_console()
        for sentence in said:
            console.print(sentence)
        if any(event["cluster"] == name for event in history):
            console.print()
            console.print(chronicle(history, name, now, EVENTS))


@cluster.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All virtual clusters of the Ray cluster.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also those of other users. This is on record.")
@with_access
def delete(
    names: Sequence[str],
    everything: bool,
    yes: bool,
    force: bool,
    address: str,
    auth_mode: str | None,
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
    with exit_codes(), opened(attached, address, auth_mode) as clusters:
        with answer_said_to_be_slow(address):
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
                with answer_said_to_be_slow(address):
                    ended += delete_one(name)
            except NoSuchCluster:  # it ended before we came to it, as it was to
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
    from ..views.wording import listed

    if as_json or not sys.stdin.isatty():
        fail(f"that would also end {listed(surprising)}; say --yes if it shall", BAD_INPUT)
    click.confirm(f"End {listed(doomed, 20)}, and all that runs there?", abort=True, err=True)
