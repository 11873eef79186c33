"""The sentences of `explain`: why a virtual cluster is in its state, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fedpilot.common.terminal.layout import bare, timestamp
from fedpilot.common.text.amounts import ago, counted, duration, listed, ordinal

from ...core import records
from ...core.records import DEFAULT, EVERYTHING_ELSE, ROOT
from ...core.resources import Resources, amounts
from ...manager.snapshot import find
from .view import Document, View, ending, wanted
from .words import asked_for, holding, loans, parent_name, short, time_left, work

EVENTS = 20
"""How many events `explain` prints; `--json` prints all."""


def sentences(document: Document, name: str, history: Sequence[Document], now: float) -> list[str]:
    """Why a virtual cluster is in its state, what it waits for, and what would help.

    NoSuchCluster, unless the history or the head's record says how it ended.
    """
    view = View(document, now)
    last = ending(history, name)
    if last is not None and all(each["id"] != name for each in document["clusters"]):
        in_vain = " without having got its places" if _in_vain(history, name) else ""
        return [f"{name} ended {ago(last['time'], now)}{in_vain}: {short(last['reason'])}."]
    lost = [each for each in (document.get("head") or {"gone": ()})["gone"] if each["id"] == name]
    if lost and all(each["id"] != name for each in document["clusters"]):
        began = document["head"]["began"]
        again = (
            f"`fedpilot cluster restore {name}` asks for it again."
            if lost[0]["detached"]
            else f"It belonged to job {lost[0]['owner']}, which ended with the head."
        )
        return [
            f"{name} is gone: the head of the Ray cluster restarted at {timestamp(began)}, "
            f"{ago(began, now)}.",
            again,
        ]
    cluster = find(document, name)
    if name == DEFAULT:
        held = amounts(cluster["total"])
        return [
            f"{name} stands for {EVERYTHING_ELSE}; now that is {held}.",
            "It was not requested, and cannot be deleted: it shrinks when those jobs end.",
        ]
    said = list(_why(view, cluster, history))
    if cluster["owner"]:
        said.append(f"It ends with Ray's job {cluster['owner']}, which requested it.")
    else:
        once = "Once it has its places, it" if cluster["state"] == records.WAITING else "It"
        said.append(f"{once} stays until it is deleted.")
    return said


def job_sentences(
    job: Document, document: Document, history: Sequence[Document], now: float
) -> list[str]:
    """Why a job is in its state, what it waits for, and what would help."""
    said = [_of_job(job, now)]
    name = job["virtual_cluster"]
    known = name is not None and (job["cluster"] is not None or ending(history, name) is not None)
    if name is None:
        said.append("It has no virtual cluster: it may use the whole Ray cluster.")
    elif known and not (job["joined"] and job["status"] in _OVER):
        said += sentences(document, name, history, now)
    return said


_OVER = ("SUCCEEDED", "FAILED", "STOPPED")


def _of_job(job: Document, now: float) -> str:
    id, why = job["id"], short(job["message"]) if job["message"] else ""
    because = f": {why}" if why else ""
    since = f"{duration(now - job['started'])}" if job["started"] else "a moment"
    when = ago(job["ended"], now) if job["ended"] else "just now"
    match job["status"]:
        case "SUCCEEDED":
            return f"Job {id} succeeded, {when}."
        case "STOPPED":
            return f"Job {id} was stopped, {when}."
        case "FAILED" if not job["started"]:
            return f"Job {id} never began{because}."
        case "FAILED":
            return f"Job {id} failed, {when}{because}."
        case "WAITING":
            return f"Job {id} waits for its virtual cluster, for {since} now."
        case "PENDING":
            return f"Ray has not started job {id} yet: it prepares the job's environment{because}."
        case _:
            return f"Job {id} has been running for {since}."


def _why(view: View, cluster: Document, history: Sequence[Document]) -> Iterator[str]:
    name, now = cluster["id"], view.now
    match cluster["state"]:
        case records.WAITING:
            yield from _waiting(view, cluster)
        case records.STARTING:
            yield f"{name} has its places, {holding(cluster)}, and starts: {cluster['reason']}."
            yield "Ray needs less than a second for that, unless other work took the places first."
        case records.RECOVERING:
            lacks = wanted(cluster).beyond(Resources.of(cluster["total"]))
            yield f"{name} lost resources: {short(cluster['reason'])}."
            yield f"It holds {holding(cluster)}" + (
                f", and lacks {amounts(lacks)} of what it asked for: {asked_for(cluster)}."
                if lacks
                else ", and Ray is replacing the lost part."
            )
            if lacks:
                where = "" if cluster["parent"] == ROOT else f" in {cluster['parent']}"
                free = amounts(view.free(cluster["parent"]).only({name for name, _ in lacks.units}))
                yield (
                    f"The manager keeps looking for new places; {free} is free{where}. "
                    f"What would help: {_help(view, cluster, lacks)}."
                )
        case _:
            since = [
                e["time"] for e in history if e["cluster"] == name and e["event"] == records.ACTIVE
            ]
            how_long = f", for {duration(now - since[-1])} now" if since else ""
            yield f"{name} is active{how_long}: it holds {holding(cluster)}."
            if leaves := cluster.get("leaves"):
                whom = f" for {leaves['claimant']}" if leaves["claimant"] else ""
                then = "goes on elsewhere" if cluster.get("relocates") else "waits again"
                yield (
                    f"It must leave{whom} within {duration(max(0.0, leaves['at'] - now))}, and "
                    f"{then} then: {leaves['rule']}, {short(leaves['reason'])}."
                )
            yield from _nodes_leave(cluster, now)
            for borrowed, due in loans(cluster, now):
                lender = parent_name(cluster["parent"])
                yield f"{amounts(borrowed)} of that is borrowed from {lender} {due}."
            if said := work(cluster):
                yield f"Tasks and actors in it: {said}; {amounts(cluster['available'])} is idle."
            if without := cluster.get("actors_without_resources"):
                actors = counted(without, "actor")
                yield f"{actors} of these hold no resources, but each is a process."
            for escape in cluster.get("escapes", ()):
                yield f"Work of its jobs runs outside it: {escape}."
            inside = [each["id"] for each in view.holders(name)]
            if inside:
                yield f"Inside it: {listed(inside)}."
            queue = view.queue(name)
            if queue:
                yield f"In its queue, for places inside it: {listed([e['id'] for e in queue])}."


def _nodes_leave(cluster: Document, now: float) -> Iterator[str]:
    """Which single nodes leave for others."""
    if cluster.get("leaves"):
        return
    for node in cluster["nodes"]:
        leaves = node.get("leaves")
        if leaves:
            when = (
                "once it is idle"
                if leaves["at"] is None
                else f"within {duration(max(0.0, leaves['at'] - now))}"
            )
            yield (
                f"Its node {node['id']} leaves for {leaves['claimant']} {when}: {leaves['rule']}, "
                f"{short(leaves['reason'])}."
            )


def _waiting(view: View, cluster: Document) -> Iterator[str]:
    parent, needs, now = cluster["parent"], wanted(cluster), view.now
    queue = [each["id"] for each in view.queue(parent)]
    before = queue[: queue.index(cluster["id"])]
    place = f"{ordinal(cluster['position'])} of {len(queue)}" if cluster["position"] else "new"
    yield (
        f"{cluster['id']} waits, {place} in the queue of {parent_name(parent)}, for "
        f"{duration(now - cluster['asked_at'])} now: {short(cluster['reason'])}."
    )
    free = view.free(parent)
    yield (
        f"It asked for {asked_for(cluster)}. Of the {amounts(needs)} that it needs at once, "
        f"{amounts(needs & free)} is free now."
    )
    if before and parent == ROOT:
        are = "are" if len(before) > 1 else "is"
        yield (
            f"Before it {are} {listed(before)}. It does not wait for them: what does not fit is "
            f"skipped. `fedpilot queue explain {cluster['id']}` says more."
        )
    elif before:
        yield (
            f"Before it {'are' if len(before) > 1 else 'is'} {listed(before)}. The first "
            "holds up all behind it, even those that would fit, so that none waits forever."
        )
        yield f"What would help: places for {before[0]}, or `fedpilot cluster delete {before[0]}`."
    if not before or parent == ROOT:
        lacks = needs.beyond(free)
        if lacks:
            yield f"It lacks {amounts(lacks)}. What would help: {_help(view, cluster, lacks)}."
        else:
            yield (
                "Enough is free in total, but not in the sizes that it needs. What would help: "
                f"{_help(view, cluster, needs)}."
            )
    if cluster["deadline"] is not None:
        yield f"It gives up in {time_left(cluster, now)}."


def _help(view: View, cluster: Document, lacks: Resources) -> str:
    ways = [f"ending {holders}"] if (holders := _others(view, cluster, lacks)) else []
    if cluster["parent"] != ROOT:
        ways.append(f"room for {cluster['parent']} to grow, if its spec allows that")
    return "; ".join([*ways, "adding a machine", "or requesting less"])


def _others(view: View, cluster: Document, lacks: Resources) -> str:
    """The siblings that hold what it lacks, in words, the largest first."""
    names = {name for name, _ in lacks.units}
    held = {
        each["id"]: Resources.of(each["total"]).only(names)
        for each in view.holders(cluster["parent"])
        if each["id"] != cluster["id"]
    }
    ranked = sorted(held, key=lambda id: (-held[id].size, id))
    return listed(
        [
            f"{'what runs outside of them' if id == DEFAULT else id} ({amounts(held[id])})"
            for id in ranked
            if held[id]
        ],
        word="or",
    )


def _in_vain(history: Sequence[Document], name: str) -> bool:
    """Whether the last virtual cluster with that name was never admitted, by the history."""
    events = [event["event"] for event in history if event["cluster"] == name]
    last = events[::-1].index("asked") if "asked" in events else len(events)
    return last < len(events) and "admitted" not in events[len(events) - last :]


def explained(
    said: Sequence[str], history: Sequence[Document], name: str | None, now: float
) -> RenderableType:
    """The sentences, followed by the virtual cluster's history, oldest first."""
    told = [event for event in history if event["cluster"] == name]
    if not told:
        return Group(*said)
    shown = bare()
    if len(told) > EVENTS:
        shown.add_row("", f"({len(told) - EVENTS} before that)", "", style="bright_black")
    for event in told[-EVENTS:]:
        shown.add_row(
            Text(timestamp(event["time"]), "bright_black"),
            Text(ago(event["time"], now), "bright_black"),
            event["event"],
            short(event["reason"]),
        )
    return Group(*said, Text(), shown)
