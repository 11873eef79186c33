"""Commands that declare Ray clusters and change their declarations."""

from __future__ import annotations

import getpass
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpilot.common.terminal.console import print_json

from .reading import declared_in
from .store_options import FILE, with_store
from .waiting import wait_for

if TYPE_CHECKING:
    from ...ray_clusters.declarations.store import RayClusterStore
    from ...spec.ray_cluster.document import RayClusterDocument


@click.command()
@click.argument("file", metavar="FILE", type=FILE)
@click.option("--name", metavar="NAME", help="The cluster's name, in the place of the document's.")
@click.option("--dry-run", is_flag=True, help="Change nothing; only check FILE.")
@click.option(
    "--revision",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Apply only if the cluster is at this revision, so that no other change is lost. 0: only "
    "if it is not declared yet.",
)
@with_store
def apply(
    file: Path,
    name: str | None,
    dry_run: bool,
    revision: int | None,
    store: RayClusterStore,
    as_json: bool,
) -> None:
    """Declare the Ray cluster of FILE (YAML or JSON), or change its declaration.

    The command checks FILE first, and refuses unknown keys and what the provider cannot do, each
    with its line. Equal content changes nothing.

    \b
    Examples:
      fedpilot raycluster apply cluster.yaml --dry-run
      fedpilot raycluster apply cluster.yaml
      fedpilot raycluster get demo > demo.yaml     # what is declared now

    \b
    Exit codes: 0 declared; 2 FILE has errors; 3 the cluster is at another revision.
    """
    from ...ray_clusters.declarations import documents
    from ...ray_clusters.declarations.records import UNDECLARED, Revision
    from ...ray_clusters.providers.choice import check_same_provider
    from ...spec.ray_cluster.reading import ray_cluster_of

    read = declared_in(file, name or "")
    called = read.declared.name
    before = store.find(called)
    at = before.revision if before else UNDECLARED
    if before is not None and not before.deleted:
        check_same_provider(ray_cluster_of(before.document).declared, read.declared)
    if dry_run:
        _tell_dry_run(read, at, as_json)
        return
    saw = at if revision is None else Revision(revision)
    found = store.apply(called, read.document, saw=saw, by=getpass.getuser(), at=time.time())
    managed = documents.is_managed(store)
    if as_json:
        print_json(documents.details(store, found))
        return
    changed = before is None or before.revision != found.revision
    what = "is declared" if changed else "was declared so already"
    click.echo(f"{called} {what}, at revision {found.revision}")
    click.echo(f"`fedpilot raycluster wait {shlex.quote(called)}` waits until it is ready")
    if not managed:
        click.echo(f"fedpilot: {documents.UNMANAGED}", err=True)


def _tell_dry_run(read: RayClusterDocument, revision: int, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, "revision": revision, "declaration": dict(read.document)})
        return
    groups = ", ".join(f"{each.wanted} {each.name}" for each in read.declared.groups)
    click.echo(f"{read.declared.name} can be declared: {groups}; this was a dry run")


@click.command()
@click.argument("name")
@with_store
def get(name: str, store: RayClusterStore, as_json: bool) -> None:
    """Print the declaration of a Ray cluster, as `apply` takes it.

    \b
    Examples:
      fedpilot raycluster get demo > demo.yaml
      fedpilot raycluster get demo --json | jq .spec.workerGroupSpecs
    """
    from ...ray_clusters.declarations import documents

    document = dict(documents.find(store, name).document)
    if as_json:
        print_json(document)
        return
    import yaml

    click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


@click.command()
@click.argument("name")
@click.argument("group")
@click.argument("replicas", type=click.IntRange(min=0))
@click.option(
    "--leave",
    "leaving",
    multiple=True,
    metavar="MACHINE",
    help="A machine that has to leave, as `show` names it. May be given several times.",
)
@with_store
def scale(
    name: str,
    group: str,
    replicas: int,
    leaving: tuple[str, ...],
    store: RayClusterStore,
    as_json: bool,
) -> None:
    """Declare another number of machines for a group of workers.

    Fewer machines: those that `--leave` names go first, then idle ones. Work on a machine that
    leaves has the group's drainSeconds to end or to move.

    \b
    Examples:
      fedpilot raycluster scale demo workers 4
      fedpilot raycluster scale demo workers 3 --leave demo-workers-2

    \b
    Exit codes: 0 declared; 2 there is no such cluster or group, or the number is outside
    minReplicas to maxReplicas; 3 the declaration was changed at the same moment.
    """
    from ...core.ray_clusters.declaration import GroupName, MachineName
    from ...ray_clusters.declarations import documents
    from ...spec.ray_cluster.reading import ray_cluster_of
    from ...spec.ray_cluster.scaling import scaled

    found = documents.find(store, name)
    edited = scaled(
        ray_cluster_of(found.document),
        GroupName(group),
        replicas=replicas,
        leaving=[MachineName(each) for each in leaving],
    )
    now = store.apply(
        found.name, edited.document, saw=found.revision, by=getpass.getuser(), at=time.time()
    )
    if as_json:
        print_json(documents.details(store, now))
        return
    click.echo(f"{name}: {group} should have {replicas}, at revision {now.revision}")


@click.command()
@click.argument("name")
@click.option("--wait", "waits", is_flag=True, help="Wait until nothing of it is left.")
@with_store
def delete(name: str, waits: bool, store: RayClusterStore, as_json: bool) -> None:
    """End a Ray cluster: all its machines, and what runs on them.

    A Ray of the provider `existing` is forgotten, and goes on as it is.

    \b
    Examples:
      fedpilot raycluster delete demo
      fedpilot raycluster delete demo --wait
    """
    from ...ray_clusters.declarations import documents

    found = documents.find(store, name)
    goes_on = documents.summary(store, found, False)["provider"] == "existing"
    gone = store.delete(found.name, saw=found.revision, by=getpass.getuser(), at=time.time())
    managed = documents.is_managed(store)
    if waits and managed:
        wait_for(store, gone, "deleted", None)
    if as_json:
        print_json({"name": name, "uid": gone.uid, "deleted": waits and managed})
        return
    done = "is deleted" if waits and managed else "is being deleted"
    click.echo(f"{name} {done}{'; its Ray goes on' if goes_on else ''}")
    if not managed:
        click.echo(f"fedpilot: {documents.UNMANAGED}", err=True)
