"""`fedpilot queue`: what projects of a Ray cluster are promised, and who waits for whom."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.common.terminal.commands import CommandGroup, exit_codes, fail
from fedpilot.common.terminal.console import display, print_json

from .access import RayAccess, with_clusters
from .spec_options import from_json

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters

    Clusters: TypeAlias = RayAccess[VirtualClusters]


@click.group(cls=CommandGroup)
def queue() -> None:
    """Set quotas for projects, and see who waits, why, and for whom work was stopped.

    A file of queues divides a Ray cluster among projects, alone or in departments. Each has a quota
    of every resource in each pool of machines. What a project does not use others may use, until it
    claims it back: the scheduler then stops preemptible work of those who have more than their
    quota. Stopped work waits with its old place in line and starts again by itself.

    \b
    Examples:
      fedpilot queue apply queues.yaml --dry-run
      fedpilot queue apply queues.yaml
      fedpilot queue list
      fedpilot job submit --project vision -- python train.py
      fedpilot queue explain train-7

    \b
    A file of queues for two teams:
      projects:
        - name: vision
          quota: {default: {CPU: 8}}
        - name: speech
          quota: {default: {CPU: 4}}
          users: [alice, "role:researcher"]
    """


@queue.command()
@click.argument(
    "file", required=False, metavar="FILE", type=click.Path(dir_okay=False, path_type=Path)
)
@click.option(
    "--declaration",
    metavar="JSON",
    help="The queues as JSON text, in the place of FILE; for sites, which have none of your files.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; only say what would come of it.")
@click.option(
    "--revision",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Apply only if this revision is in force, as `queue list` prints it: so that no change of "
    "another admin is lost. 0: no file was applied yet.",
)
@with_clusters
def apply(
    file: Path | None,
    declaration: str | None,
    dry_run: bool,
    revision: int | None,
    ray: Clusters,
    as_json: bool,
) -> None:
    """Put the queues of FILE in force, instead of all that were applied before.

    The command checks FILE first: unknown keys, names twice, departments, pools and classes that do
    not exist, amounts that are negative, and resources that only some queues of a pool name. Then
    it prints which workloads start, stop and wait with these queues. Nothing is stopped unless the
    work that it is stopped for starts. The manager keeps the file, and a new revision number.

    \b
    Examples:
      fedpilot queue apply queues.yaml --dry-run
      fedpilot queue apply queues.yaml --revision 3
      fedpilot queue list --json | jq .declaration > queues.yaml   # what is in force

    \b
    Exit codes: 0 applied; 2 FILE has errors; 3 another revision is in force, or a project
    that FILE leaves out holds or waits for something; 4 no Ray there, or its manager has no queues.
    """
    if (file is None) == (declaration is None):
        raise click.UsageError("give either FILE, or --declaration JSON.")
    with exit_codes():
        from ..spec.queue_file import queue_file_of, read_queue_file

        if file is not None:
            document = read_queue_file(file).document
        else:
            document = queue_file_of(from_json("--declaration", declaration or "")).document
        found, states = ray.ask(
            lambda clusters: (
                clusters.apply_queues(document, revision=revision, dry_run=dry_run),
                {each["id"]: each["state"] for each in clusters.queues()["workloads"]},
            )
        )
        if as_json:
            print_json({**found, "dry_run": dry_run})
            return
        from .terminal.queues import applied

        display(applied(found, states, dry_run=dry_run))


@queue.command("list")
@with_clusters
def list_(ray: Clusters, as_json: bool) -> None:
    """Draw what each queue has, deserves and waits for.

    Each resource of a queue is a bar on the scale of its pool of machines: what it holds, and
    behind that what its waiting work needs; marks show where its quota and its fair share end.

    \b
    Examples:
      fedpilot queue list
      fedpilot queue list --json | jq '.queues[] | select(.state != "in-quota") | .name'
      fedpilot queue list --json | jq .revision
    """
    with exit_codes():
        document = ray.ask(lambda clusters: clusters.queues())
        if as_json:
            print_json({key: document[key] for key in document if key != "case"})
            return
        from .terminal.queues import queue_table

        display(queue_table(document, time.time()))


@queue.command()
@click.argument("name")
@with_clusters
def show(name: str, ray: Clusters, as_json: bool) -> None:
    """Show project or department NAME: its quotas and its workloads.

    \b
    Examples:
      fedpilot queue show vision
      fedpilot queue show vision --json | jq '.workloads[] | {id, state, reason}'
    """
    with exit_codes():
        document = ray.ask(lambda clusters: clusters.queues())
        from .terminal.queues import projects_of, queue_details

        view = queue_details(document, name, time.time())
        if as_json:
            projects = projects_of(document, name)
            print_json(
                {
                    "name": name,
                    "queues": [q for q in document["queues"] if q["name"] == name],
                    "workloads": [w for w in document["workloads"] if w["project"] in projects],
                }
            )
            return
        display(view)


@queue.command()
@click.argument("name", metavar="CLUSTER")
@with_clusters
def explain(name: str, ray: Clusters, as_json: bool) -> None:
    """Explain why CLUSTER waits or must leave, and what would help.

    CLUSTER is a virtual cluster that shares the machines, also that of a job. The command says what
    it waits for (its project's limit or quota, a place, work that must leave first), what its
    project holds and deserves, and which work was stopped for it or it was stopped for. The trail
    survives the manager. For virtual clusters inside others, see `fedpilot cluster explain`.

    \b
    Examples:
      fedpilot queue explain train-7
      fedpilot queue explain train-7 --json | jq -r '.sentences[]'
    """
    with exit_codes():
        from .terminal.explain import explained
        from .terminal.queue_reasons import queue_sentences

        document, history = ray.ask(lambda found: (found.queues(), found.history()))
        now = time.time()
        said = queue_sentences(document, name, history, now)
        if as_json:
            found = next((each for each in document["workloads"] if each["id"] == name), None)
            print_json(
                {
                    "id": name,
                    "state": found["state"] if found else "ended",
                    "sentences": said,
                    "history": [dict(event) for event in history if event["cluster"] == name],
                    "workload": found,
                }
            )
            return
        display(explained(said, history, name, now))


@queue.command()
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="NUMBER",
    help="How many events to print.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Draw what each project held over time, against its quota and its fair share.",
)
@with_clusters
def history(last: int, picture: Path | None, ray: Clusters, as_json: bool) -> None:
    """Print what happened: who started, got notice, and was stopped for whom.

    The manager remembers its latest thousand events, and all that were stopped for others in the
    events before. A picture begins when the manager was started last.

    \b
    Examples:
      fedpilot queue history
      fedpilot queue history --picture week.png
      fedpilot queue history --json | jq '.events[] | select(.event == "stopped")'
    """
    with exit_codes():
        document, events, samples = ray.ask(
            lambda found: (found.queues(), found.history(), found.queue_samples())
        )
        now = time.time()
        if picture is not None:
            _draw(document, samples, picture, now)
        if as_json:
            print_json({"events": events[-last:], "samples": samples})
            return
        from .terminal.queues import event_table

        display(event_table(events[-last:], document, now))


def _draw(
    document: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], picture: Path, now: float
) -> None:
    from fedpilot.common.terminal.layout import timestamp

    from ..simulation.picture import draw_curves
    from .terminal.queue_curves import curves

    drawn = curves(document, samples, now)
    if not drawn:
        fail(
            "--picture: the manager has no samples yet of what projects hold; wait until work has "
            "started",
            BAD_INPUT,
        )
    since = timestamp(samples[0]["time"])
    draw_curves(drawn, "Queues of the Ray cluster", picture, since)


@queue.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it to FILE. Default: print it.",
)
@with_clusters
def snapshot(output: Path | None, ray: Clusters, as_json: bool) -> None:
    """Write the machines, queues and workloads as a case for `fedpilot simulate`.

    `fedpilot simulate` decides the case as the manager does. Change a quota in the file to see what
    would come of it, or add a workload that you want to submit.

    \b
    Examples:
      fedpilot queue snapshot -o now.json
      fedpilot simulate now.json
    """
    with exit_codes():
        document = ray.ask(lambda clusters: clusters.queues())
        if "case" not in document:
            fail("the manager of this Ray cluster is older, and writes no cases", BAD_INPUT)
        case = {"schema_version": 2, **document["case"]}
        if output is not None:
            output.write_text(json.dumps(case, indent=1) + "\n", encoding="utf-8")
        if output is None or as_json:
            print_json(case)
        else:
            click.echo(f"wrote {output}: `fedpilot simulate {output}` decides it")
