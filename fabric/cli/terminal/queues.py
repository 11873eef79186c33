"""The output of `fedpilot queue`: queues as bars, workloads and events as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedpilot.common.terminal.layout import named, ruled, timestamp
from fedpilot.common.terminal.statuses import marked
from fedpilot.common.text.amounts import DASH, ago, counted, duration, listed

from ...core.resources import amounts, figure, ordered
from ...errors import NoSuchQueue
from .statuses import CLUSTERS, QUEUES
from .view import Document
from .words import short

HAS, PENDING, FREE = "█", "░", "·"
QUOTA, SHARE, BOTH = "│", "╎", "┃"
"""Where a quota, a fair share, or both end."""
WIDTH = 20
"""Of a bar: the whole pool."""
DEFAULT = "default"
"""The project, and the pool, of work that names none."""


def queue_table(document: Document, now: float) -> RenderableType:
    """All queues, pool by pool, each resource as a bar on the scale of the pool."""
    parts: list[RenderableType] = [_revision(document, now), Text()]
    for pool in document["pools"]:
        shown = _shown(document, pool)
        if not shown and not pool["machines"]:
            continue
        parts += [_pool(pool), Padding(_bars(shown, pool), (0, 0, 0, 2), expand=False), Text()]
    return Group(*parts, _legend())


def queue_details(document: Document, name: str, now: float) -> RenderableType:
    """One project or department in each pool, and its workloads. NoSuchQueue."""
    mine = [each for each in document["queues"] if each["name"] == name]
    if not mine:
        raise NoSuchQueue(name, list(dict.fromkeys(each["name"] for each in document["queues"])))
    facts = named()
    for key, value in _facts(document, mine[0], name):
        facts.add_row(key, value)
    parts: list[RenderableType] = [Text(name, "bold"), facts, Text()]
    for pool in document["pools"]:
        here = [each for each in mine if each["pool"] == pool["name"]]
        if pool["machines"] or any(_names(each) for each in here):
            parts += [_pool(pool), Padding(_bars(here, pool), (0, 0, 0, 2), expand=False), Text()]
    members = projects_of(document, name)
    workloads = [each for each in document["workloads"] if each["project"] in members]
    parts.append(_workloads(workloads, now) if workloads else Text("no workloads"))
    return Group(*parts)


def projects_of(document: Document, name: str) -> set[str]:
    """A project, or all projects of a department."""
    return {
        each["name"] for each in document["queues"] if name in (each["name"], each["department"])
    }


def applied(found: Document, states: Mapping[str, str], *, dry_run: bool) -> RenderableType:
    """What a new file changes; `states` are those of the workloads now."""
    would = found.get("would") or {"starts": {}, "stops": [], "waits": {}}
    line = (
        f"revision {found['revision']} stays: this was a dry run"
        if dry_run
        else f"revision {found['revision']} is applied; `fedpilot queue list` shows the queues"
    )
    table = ruled("workload", "is", "would", "because", wraps="because")
    for stop in would["stops"]:
        whom = f" for {stop['claimant']}" if stop["claimant"] else ""
        table.add_row(stop["id"], states.get(stop["id"], ""), f"stop{whom}", short(stop["reason"]))
    for move in would.get("moves", ()):
        whom = f"move for {move['claimant']}"
        table.add_row(move["id"], states.get(move["id"], ""), whom, short(move["reason"]))
    for key, word in (("starts", "start"), ("waits", "wait")):
        for id, why in would[key].items():
            table.add_row(id, states.get(id, ""), word, short(why))
    if table.rows:
        return Group(line, Text(), table)
    return (
        Group(line, "no workload starts, stops, moves or waits with it") if dry_run else Text(line)
    )


def event_table(events: Sequence[Document], document: Document, now: float) -> RenderableType:
    """The latest events, oldest first, with the projects of virtual clusters."""
    if not events:
        return Text("no events yet")
    projects = {each["id"]: each["project"] for each in document["workloads"]}
    table = ruled("when", "", "workload", "project", "event", "because", wraps="because")
    for event in events:
        id = event["cluster"]
        table.add_row(
            timestamp(event["time"]),
            Text(ago(event["time"], now, 1), "bright_black"),
            id or DASH,
            event.get("project") or projects.get(id, DASH),  # older managers do not say it
            event["event"],
            short(event["reason"]),
        )
    return table


def _revision(document: Document, now: float) -> Text:
    if not document["revision"]:
        return Text(
            "No file of queues is applied: all work is in the project default, and none is "
            "stopped for other work. `fedpilot queue apply FILE` declares queues."
        )
    by = f" by {document['applied_by']}" if document["applied_by"] else ""
    when = f", {ago(document['applied_at'], now)}" if document["applied_at"] else ""
    return Text(f"Queues at revision {document['revision']}, applied{by}{when}")


def _pool(pool: Document) -> Text:
    has = amounts(pool["capacity"]) if pool["machines"] else "no machine"
    of = f"{counted(pool['machines'], 'machine')}, {has}" if pool["machines"] else has
    return Text.assemble(("pool ", ""), (pool["name"], "bold"), f": {of}")


def _shown(document: Document, pool: Document) -> list[Document]:
    """The queues of a pool, each department followed by its projects; `default` if it is used."""
    here = [each for each in document["queues"] if each["pool"] == pool["name"]]
    used = [each for each in here if each["name"] != DEFAULT or _is_used(each)]
    if not pool["machines"]:
        used = [each for each in used if _is_used(each)]
    elif not used:
        used = here
    tops = [each for each in used if each["department"] is None]
    return [
        each
        for top in tops
        for each in (top, *(below for below in used if below["department"] == top["name"]))
    ]


def _is_used(queue: Document) -> bool:
    return bool(queue["running"] or queue["waiting"] or queue["allocated"] or queue["pending"])


def _names(queue: Document) -> list[str]:
    """The resources to show: first those with a quota, then what else is held or asked for."""
    limited = {name for name, amount in queue["quota"].items() if amount is not None}
    others = {*queue["allocated"], *queue["pending"], *queue["limit"]} - limited
    return [*ordered(limited), *ordered(others)]


def _bars(queues: Sequence[Document], pool: Document) -> Table:
    right = ("has", "quota", "share", "pending", "runs", "waits")
    table = ruled("queue", "of", "the pool", *right, right=right, wraps="queue")
    table.padding = (0, 1, 0, 0)
    there = {queue["name"] for queue in queues}
    for queue in queues:
        mark, colour = QUEUES.get(queue["state"], ("", ""))
        indent = "  " if queue["department"] in there else ""
        label = Text.assemble((f"{mark} ", colour), (f"{indent}{queue['name']}", "bold"))
        counts = (str(queue["running"]), str(queue["waiting"]))
        for name in _names(queue) or [""]:
            table.add_row(label, *_row(queue, pool, name), *counts)
            label, counts = Text(), ("", "")
    return table


def _row(queue: Document, pool: Document, name: str) -> Iterator[RenderableType]:
    if not name:
        yield ""
        yield Text("nothing held or asked for", "bright_black")
        yield from ("",) * 4
        return
    yield "memory (GiB)" if name == "memory" else name
    yield _bar(queue, pool["capacity"].get(name, 0.0), name)
    yield figure(name, queue["allocated"].get(name, 0.0))
    for key in ("quota", "fairshare"):
        yield _promise(queue[key], name)
    pending = queue["pending"].get(name, 0.0)
    yield figure(name, pending) if pending else DASH


def _promise(amounts_of: Mapping[str, float | None], name: str) -> str:
    """A quota or a share: a dash if the resource is not divided, `all` if it is unlimited."""
    if name not in amounts_of:
        return DASH
    amount = amounts_of[name]
    return "all" if amount is None else figure(name, amount)


def _bar(queue: Document, capacity: float, name: str) -> Text:
    has, quota, share = queue["allocated"].get(name, 0.0), queue["quota"], queue["fairshare"]
    scale = max(capacity, has) or 1.0

    def cells(amount: float | None) -> int:
        if amount is None:
            return WIDTH + 1
        filled = min(WIDTH, round(amount / scale * WIDTH))
        return max(1, filled) if amount > 0 else 0

    own, fair = cells(quota.get(name)), cells(share.get(name))
    until = cells(has)
    waits = min(WIDTH, until + cells(queue["pending"].get(name, 0.0)))
    bar = Text()
    for at in range(WIDTH + 1):
        mark = {(True, True): BOTH, (True, False): QUOTA, (False, True): SHARE}.get(
            (0 < own == at, 0 < fair == at)
        )
        if mark:
            bar.append(mark, "bold")
        elif at < until:
            bar.append(HAS, "green" if at < own else "yellow" if at < fair else "red")
        elif at < waits:
            bar.append(PENDING, "yellow")
        elif at < WIDTH:
            bar.append(FREE, "bright_black")
    return bar


def _legend() -> Text:
    """What marks and colours mean, on two lines."""
    states = [(mark, colour, word.replace("-", " ")) for word, (mark, colour) in QUEUES.items()]
    parts: list[tuple[str, str]] = []
    for mark, colour, word in states:
        parts += [(mark, colour), (f" {word}   ", "")]
    parts.append(("all: unlimited\n", ""))
    for colour, word in (("green", "within quota"), ("yellow", "fair share"), ("red", "above it")):
        parts += [(HAS, colour), (f" {word}   ", "")]
    parts += [(PENDING, "yellow"), (f" pending   {QUOTA} quota   {SHARE} share   {BOTH} both", "")]
    return Text.assemble(*parts)


def _facts(document: Document, queue: Document, name: str) -> Iterator[tuple[str, str]]:
    inside = f", in department {queue['department']}" if queue["department"] else ""
    yield "is", f"a {queue['kind']}{inside}"
    below = sorted(projects_of(document, name) - {name})
    if below:
        yield "projects", listed(below, 20)
    declared: Document = next(
        (
            each
            for key in ("projects", "departments")
            for each in document["declaration"].get(key, ())
            if each["name"] == name
        ),
        {},
    )
    if queue["kind"] == "project":
        yield "users", listed(declared.get("users") or ["everybody"], 20)
        yield "classes", listed(declared.get("classes") or ["all"], 20)
    for key, words in (("limit", "at most"), ("over_quota_weight", "weights")):
        for pool, given in declared.get(key, {}).items():
            told = {n: amount for n, amount in given.items() if amount is not None}
            yield words, f"{amounts(told)} in {pool}"
    for key, words in (
        ("min_runtime_before_preempt_s", "before it is preempted"),
        ("min_runtime_before_reclaim_s", "before its places are reclaimed"),
    ):
        if declared.get(key) is not None:
            yield "runs", f"{duration(declared[key])} {words}"


def _workloads(workloads: Sequence[Document], now: float) -> Table:
    table = ruled("workload", "state", "project", "class", "holds", "since", "", wraps="")
    for each in sorted(workloads, key=lambda each: (each["position"] or 0, each["asked_at"])):
        waits = each["state"] == "waiting"
        since = each["waits_since"] if waits and each["waits_since"] else each["asked_at"]
        kind = each["priority_class"] + ("" if each["preemptible"] else ", not preemptible")
        held = f"wants {amounts(each['needs'])}" if waits else amounts(each["holds"])
        table.add_row(
            Text(each["id"], "bold"),
            marked(CLUSTERS, each["state"]),
            each["project"],
            kind,
            Text(held, "yellow" if waits else ""),
            ago(since, now, 1),
            short(_why(each, now)),
        )
    return table


def _why(workload: Document, now: float) -> str:
    leaves = workload["leaves"]
    if leaves is None:
        return str(workload["reason"])
    whom = f" for {leaves['claimant']}" if leaves["claimant"] else ""
    return f"leaves{whom} within {duration(leaves['at'] - now)}"
