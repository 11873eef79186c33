"""`fedpilot cluster create`: reserves a virtual cluster and waits for its places."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fedpilot.common.host.exit_codes import INTERRUPTED, REFUSED
from fedpilot.common.terminal.commands import exit_codes, fail, interruptions
from fedpilot.common.terminal.console import print_json, spinner, stdout_console

from ..core.records import ROOT, has_started
from ..errors import NoSuchCluster, NotInTime
from ..spec import QueueOptions, VirtualCluster
from .access import RayAccess, with_clusters
from .spec_options import check_name, with_deadline, with_queue, with_spec

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters

FIRST_POLL_S, LAST_POLL_S = 0.2, 2.0
"""The first and the longest pause between two looks at a waiting virtual cluster."""


@click.command()
@click.argument("name")
@with_spec("--json-spec")
@click.option("--parent", metavar="NAME", help="Create it inside this virtual cluster.")
@with_queue
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long this command waits for the resources; 0 does not wait.",
)
@with_deadline("Remove it from the queue after this time.")
@with_clusters
def create(
    name: str,
    read_spec: Callable[[], VirtualCluster],
    parent: str | None,
    queue: QueueOptions,
    wait_s: float,
    deadline_s: float | None,
    ray: RayAccess[VirtualClusters],
    as_json: bool,
) -> None:
    """Reserve the resources of virtual cluster NAME, or queue for them.

    State what it needs with --spec, with --json-spec, or with --min, --max, --node, --min-nodes,
    --max-nodes, --policy and --max-actors. Without these it needs nothing, and may grow to all that
    is free. An AMOUNT is a number or a size: CPU=2,GPU=0.5,memory=4GiB. Repeating the same request
    changes nothing.

    If the resources are not free within --wait, the virtual cluster stays in the queue, and the
    command ends with code 3, so that `create ... && use it` is safe. With `--wait 0` the code is 0.
    Ctrl-C ends this command only.

    \b
    Examples:
      fedpilot cluster create vision --node 2xCPU=4,GPU=1 --policy STRICT_SPREAD
      fedpilot cluster create search --node GPU=1 --min-nodes 2 --max-nodes 8
      fedpilot cluster create speech --min CPU=8 --max CPU=32 --wait 600
      fedpilot cluster create speech-eval --node CPU=2 --parent speech --wait 0
      fedpilot cluster create tabular --spec tabular.yaml --deadline 3600
      fedpilot cluster create notebook --min GPU=1 --project vision --priority-class build
      echo '{flex_resource_min: {CPU: 1}}' | fedpilot cluster create small --spec -

    \b
    Exit codes: 0 active (or requested, with --wait 0); 2 wrong spec or name; 3 still waiting, past
    its deadline, or too large; 4 no Ray there; 130 interrupted, it stays in the queue.
    """
    with exit_codes():
        spec = read_spec()
        check_name(name, parent, queue)
        asked_at, begun = time.time(), time.monotonic()
        fate = "nothing was requested"
        explain, delete = (ray.command("cluster", what, name) for what in ("explain", "delete"))
        steps = f"  explain it: {explain}\n  delete it:  {delete}"
        try:
            with (
                interruptions(),
                spinner(f"asking {ray.place} for {name}") as say,
                ray.opened() as clusters,
            ):
                fate = f"{name} may have been requested, or not\n{steps}"
                with ray.answer_said_to_be_slow():
                    found = clusters.create(
                        name,
                        spec,
                        parent=parent or ROOT,
                        wait_s=min(wait_s, FIRST_POLL_S),
                        deadline_s=deadline_s,
                        detached=True,
                        **queue,
                    )
                fate = f"{name} keeps its place in the queue\n{steps}"
                found = _follow(clusters, found, begun, wait_s, say)
        except KeyboardInterrupt:
            fail(f"interrupted; {fate}", INTERRUPTED)
        active = has_started(found["state"])
        new = found["asked_at"] >= asked_at
        if as_json:
            print_json({**found, "created": new})
        else:
            _print_created(found, new=new, ray=ray)
    sys.exit(0 if active or wait_s == 0 else REFUSED)


def _follow(
    clusters: VirtualClusters,
    found: Mapping[str, Any],
    begun: float,
    wait_s: float,
    say: Callable[[str], None],
) -> Mapping[str, Any]:
    from fedpilot.common.text.amounts import duration, ordinal

    from .terminal.words import short

    name, deadline, pause = found["id"], None, FIRST_POLL_S
    while True:
        try:
            found = clusters.show(name)
        except NoSuchCluster:
            _tell_end(clusters, name, deadline, time.monotonic() - begun)
        deadline, waited = found["deadline"], time.monotonic() - begun
        if has_started(found["state"]) or waited >= wait_s:
            return found
        place = f"{ordinal(found['position'])} in line: " if found["position"] else ""
        say(
            f"{name} is {found['state']}, {duration(waited)} of {duration(wait_s)}: "
            f"{place}{short(found['reason'])}"
        )
        time.sleep(min(pause, wait_s - waited))
        pause = min(LAST_POLL_S, pause * 1.2)


def _tell_end(
    clusters: VirtualClusters, name: str, deadline: float | None, waited_s: float
) -> NoReturn:
    """Say why a virtual cluster ended while it waited: its deadline, or a user's command."""
    from .terminal.view import ending

    last = ending(clusters.history(), name)
    why = last["reason"] if last else "a user ended it"
    if last and deadline is not None and last["time"] >= deadline:
        raise NotInTime(name, waited_s, why)
    fail(f"{name} ended before it got its places: {why}", REFUSED)


def _print_created(found: Mapping[str, Any], *, new: bool, ray: RayAccess[Any]) -> None:
    from fedpilot.common.text.amounts import ordinal

    from .terminal.words import holding, short, status

    name = found["id"]
    console = stdout_console()
    already = "" if new else " (requested before, in the same way)"
    if has_started(found["state"]):
        console.print(status(found), f"{name}{already} holds {holding(found)}")
        return
    place = f", {ordinal(found['position'])} in line" if found["position"] else ""
    console.print(status({**found, "position": None}), f"{name}{already}{place}")
    if found["reason"]:
        console.print(f"  {short(found['reason'])}")
    for label, what in (("why, and what helps: ", "explain"), ("delete it:           ", "delete")):
        console.print(f"  {label}{ray.command('cluster', what, name)}", soft_wrap=True)
