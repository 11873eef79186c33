"""The output of `list` and `show`: all virtual clusters or jobs as a table, or one in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedpilot.common.terminal.layout import head, named, ruled, timestamp
from fedpilot.common.terminal.statuses import marked
from fedpilot.common.text.amounts import DASH, ago, duration, listed, ordinal

from ...core.records import DEFAULT, EVERYTHING_ELSE, ROOT, WAITING
from ...core.resources import Resources, amounts
from ...manager.snapshot import find
from .statuses import JOBS
from .view import Document, View, ending, wanted
from .words import (
    NO_CLUSTERS,
    asked_for,
    holding,
    loans,
    outside,
    parent_name,
    short,
    status,
    time_left,
    work,
)

if TYPE_CHECKING:
    from ...jobs.jobs import Job


MOST_GONE = 20
"""How many lost virtual clusters are listed; `--json` lists all."""


# -- virtual clusters -----------------------------------------------------------------------------


def cluster_table(document: Document, now: float) -> RenderableType:
    """A table with a row for each virtual cluster."""
    view = View(document, now)
    if not view.clusters:
        return Text(NO_CLUSTERS)
    columns = ("name", "state", "holds", "borrowed", "vnodes", "inside", "asked", "ends")
    shown = ruled(*columns, right=("vnodes",))
    for cluster in view.clusters:
        waits = cluster["state"] == WAITING
        shown.add_row(
            Text(cluster["id"], "bold"),
            status(cluster),
            Text(f"wants {amounts(wanted(cluster))}", "yellow")
            if waits
            else Text(amounts(cluster["total"])),
            Text(amounts(cluster["borrowed"]) if cluster["borrowed"] else DASH),
            str(len(cluster["nodes"])) if cluster["nodes"] else DASH,
            DASH if cluster["parent"] == ROOT else cluster["parent"],
            DASH if cluster["asked_at"] is None else ago(cluster["asked_at"], now, 1),
            _end(cluster),
        )
    return shown


def gone_with_head(document: Document, now: float) -> list[str]:
    """The virtual clusters that a new head has lost, a line each; empty if there are none."""
    head = document.get("head")
    if not head or not head["gone"]:
        return []
    lines = [
        f"The head of this Ray cluster restarted at {timestamp(head['began'])}, "
        f"{ago(head['began'], now)}. These virtual clusters are gone:"
    ]
    for each in head["gone"][:MOST_GONE]:
        inside = "" if each["parent"] == ROOT else f", inside {each['parent']}"
        user = f", of {each['user']}" if each["user"] else ""
        what = "detached" if each["detached"] else f"with job {each['owner']}"
        lines.append(f"  {each['id']} ({asked_for(each)}{inside}), {what}{user}")
    more = len(head["gone"]) - MOST_GONE
    return [*lines, f"  and {more} more"] if more > 0 else lines


def cluster_details(document: Document, name: str, now: float) -> RenderableType:
    """All that is known of one virtual cluster. NoSuchCluster."""
    view, cluster = View(document, now), find(document, name)
    facts = named()
    for key, value in _facts(view, cluster):
        facts.add_row(key, value)
    parts: list[RenderableType] = [head(cluster["id"], status(cluster)), facts]
    if cluster["nodes"]:
        parts += [Text(), _vnodes(view, cluster)]
    return Group(*parts)


def _facts(view: View, cluster: Document) -> Iterator[tuple[str, str]]:
    now = view.now
    if cluster["reason"]:
        yield "why", short(cluster["reason"])
    yield "holds", holding(cluster)
    if cluster["nodes"] and cluster["id"] != DEFAULT:
        yield "idle", amounts(cluster["available"])
    if said := work(cluster):
        yield "work", said
    for escape in cluster.get("escapes", ()):
        yield "outside", escape
    for borrowed, when in loans(cluster, now):
        yield "borrowed", f"{amounts(borrowed)} from {parent_name(cluster['parent'])}, {when}"
    if cluster["children"]:
        within = Resources.total(Resources.of(c["total"]) for c in view.holders(cluster["id"]))
        yield "inside it", f"{listed(cluster['children'])}; together {amounts(within)}"
    if cluster["id"] == DEFAULT:
        yield "is", EVERYTHING_ELSE
        return
    yield "asked for", asked_for(cluster)
    yield "inside", parent_name(cluster["parent"])
    queue = view.queue(cluster["id"])
    if queue:
        yield "queue", f"{listed([each['id'] for each in queue])}, for places inside it"
    if notice := cluster.get("leaves"):
        to = f"to {notice['claimant']} " if notice["claimant"] else ""
        at = notice["at"]
        when = "once it is idle" if at is None else f"within {duration(max(0.0, at - now))}"
        yield "leaves", f"its places {to}{when}: {short(notice['reason'])}"
    if cluster.get("project"):
        stays = "preemptible" if cluster["preemptible"] else "not preemptible"
        yield "project", f"{cluster['project']}, class {cluster['priority_class']}, {stays}"
    yield "priority", str(cluster["priority"])
    by = f", by {cluster['user']}" if cluster.get("user") else ""
    yield "asked", f"{timestamp(cluster['asked_at'])}, {ago(cluster['asked_at'], now)}{by}"
    if cluster["deadline"] is not None and cluster["state"] == WAITING:
        yield "gives up", f"{timestamp(cluster['deadline'])}, in {time_left(cluster, now)}"
    yield "ends", _end(cluster)


def _vnodes(view: View, cluster: Document) -> Table:
    shown = ruled("vnode", "kind", "machine", "holds", "idle", "borrowed", "labels")
    for node in cluster["nodes"]:
        borrowed = Resources.total(Resources.of(loan["resources"]) for loan in node["loans"])
        labels = {n: v for n, v in node["labels"].items() if not n.startswith("ray.io/")}
        shown.add_row(
            short(node["id"]),
            "flexible" if node["kind"] == "flexible" else "fixed-size",
            view.machine(node["machine"]),
            amounts(node["total"]),
            amounts(node["available"]) if node["available"] else DASH,
            amounts(borrowed) if borrowed else DASH,
            ", ".join(f"{n}={v}" for n, v in sorted(labels.items())) or DASH,
        )
    return shown


def _end(cluster: Document) -> str:
    if cluster["id"] == DEFAULT:
        return DASH
    return f"with job {cluster['owner']}" if cluster["owner"] else "when deleted"


# -- jobs -----------------------------------------------------------------------------------------


def job_table(jobs: Sequence[Job], now: float) -> RenderableType:
    """A table with a row for each job."""
    if not jobs:
        return Text("no jobs; `fedpilot job submit` makes one")
    shown = ruled("id", "status", "holds", "virtual cluster", "started", wraps="command")
    for each in jobs:
        shown.add_row(
            Text(each.id, "bold"),
            _job_status(each),
            amounts(each.cluster["total"]) if each.cluster and each.cluster["total"] else DASH,
            _where(each),
            ago(each.started, now, 1) if each.started else DASH,
            Text(each.entrypoint),
        )
        if each.status in ("WAITING", "FAILED"):
            shown.add_row("", "", "", "", "", Text(each.message, JOBS[each.status][1]))
        for told in outside(each.cluster or {}):
            shown.add_row("", "", "", "", "", told)
    return shown


def job_details(
    job: Job, document: Document, history: Sequence[Document], now: float
) -> RenderableType:
    """All that is known of one job and its virtual cluster."""
    facts = named()
    facts.add_row("command", Text(job.entrypoint))
    if job.message and job.status != "WAITING":  # the virtual cluster's part repeats it
        facts.add_row("message", Text(short(job.message)))
    if job.started:
        facts.add_row("started", ago(job.started, now))
        lasts = "waits for" if job.status == "WAITING" else "runs for"
        took = duration((job.ended or now) - job.started)
        facts.add_row("took" if job.ended else lasts, took)
    parts: list[RenderableType] = [head(job.id, _job_status(job)), facts]
    name = job.virtual_cluster
    if name is None:
        facts.add_row("virtual cluster", "none: it runs outside all of them")
        return Group(*parts)
    if job.cluster is None:
        last = ending(history, name)
        facts.add_row(
            "virtual cluster",
            f"{name} has ended: {short(last['reason'])}" if last else f"{name}, none now",
        )
        return Group(*parts)
    facts.add_row("virtual cluster", f"{name}, which stays" if job.joined else name)
    if told := outside(job.cluster):
        parts += [Text(), *told]
    others = [each for each in document["clusters"] if each["id"] != name]
    known = {**document, "clusters": [{**job.cluster, "escapes": []}, *others]}
    return Group(*parts, Text(), cluster_details(known, name, now))


def _job_status(job: Job) -> Text:
    position = job.cluster["position"] if job.cluster else None
    where = f", {ordinal(position)}" if position and job.status == "WAITING" else ""
    return marked(JOBS, job.status, where)


def _where(job: Job) -> str:
    if job.virtual_cluster is None:
        return "outside all"
    return job.virtual_cluster if job.joined else "its own"
