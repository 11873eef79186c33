"""The sentences of `queue explain`: why a workload waits or must leave, and what would help."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from fedpilot.common.terminal.layout import timestamp
from fedpilot.common.text.amounts import ago, counted, duration, listed, ordinal

from ...core.records import ACTIVE, WAITING
from ...core.resources import Resources, amount, amounts, ordered
from ...core.scheduling.records import Rule
from ...errors import NoSuchCluster
from .view import Document, ending
from .words import short

APPLY = "change the file of queues, then `fedpilot queue apply FILE`"


def queue_sentences(
    document: Document, name: str, history: Sequence[Document], now: float
) -> list[str]:
    """Why a workload waits, runs or must leave; what would help; who was stopped for it.

    NoSuchCluster, unless the history says how it ended.
    """
    found = next((each for each in document["workloads"] if each["id"] == name), None)
    if found is None:
        last = ending(history, name)
        if last is None:
            raise NoSuchCluster(name, [each["id"] for each in document["workloads"]])
        return [f"{name} ended {ago(last['time'], now)}: {short(last['reason'])}."]
    waits = found["state"] == WAITING
    said = list(_waiting(document, found, history, now) if waits else _holding(found, history, now))
    said += _stopped_for(name, history)
    return said


def _waiting(
    document: Document, workload: Document, history: Sequence[Document], now: float
) -> Iterator[str]:
    name = workload["id"]
    place = f", {ordinal(workload['position'])} in line" if workload["position"] else ""
    since = duration(now - (workload["waits_since"] or workload["asked_at"]))
    yield (
        f"{name} waits in project {workload['project']}, pool {workload['pool']}{place}, "
        f"for {since} now: {short(workload['reason'] or 'it has just asked')}."
    )
    if stopped := _last(history, name, "stopped"):
        when = ago(stopped["time"], now)
        yield f"It ran before, and kept its place in line: {when} {short(stopped['reason'])}."
    if claims := workload["claims"]:
        victims = listed(claims["victims"])
        if claims["until"] is not None:
            left = duration(claims["until"] - now)
            yield f"{victims} must leave by {timestamp(claims['until'])}, in {left} at the latest."
        yield "No other workload gets these places."
        return
    queue = _queue(document, workload)
    if queue is not None:
        yield from _share(queue, workload)
    if help := _help(document, workload, queue):
        yield f"What would help: {help}."


def _share(queue: Document, workload: Document) -> Iterator[str]:
    """What the project holds of what it may, and what it would hold with the workload."""
    for name in ordered(workload["needs"]):
        if name not in queue["quota"]:
            continue
        has, needs = queue["allocated"].get(name, 0.0), workload["needs"][name]
        quota, share = queue["quota"][name], queue["fairshare"].get(name)
        if quota is None:
            continue
        deserves = "" if share is None else f" and a fair share of {amount(name, share)} now"
        yield (
            f"Project {queue['name']} holds {amount(name, has)}, of a quota of "
            f"{amount(name, quota)}{deserves}; with the {amount(name, needs)} of {workload['id']} "
            f"it would {_standing(has + needs, quota, share)}."
        )


def _standing(amount: float, quota: float, share: float | None) -> str:
    if amount <= quota:
        return "stay within its quota"
    if share is None or amount <= share:
        return "be above its quota, within its fair share"
    return "be above its fair share"


def _help(document: Document, workload: Document, queue: Document | None) -> str:
    project, rule = workload["project"], workload["rule"]
    mine = _holders(document, workload, lambda each: each["project"] == project)
    own = f"the end of {mine}; " if mine else ""
    match rule:
        case Rule.LIMIT:
            return f"{own}or a higher limit of {project} or its department: {APPLY}"
        case Rule.NONPREEMPTIBLE_QUOTA:
            fixed = _holders(
                document,
                workload,
                lambda each: each["project"] == project and not each["preemptible"],
            )
            ends = f"the end of {fixed}; " if fixed else ""
            return (
                f"{ends}a higher quota of {project}: {APPLY}; or requesting it with --preemptible"
            )
        case Rule.NO_ROOM:
            others = _holders(document, workload, lambda each: True)
            ends = f"the end of {others}; " if others else ""
            return f"{ends}a machine more; {_claim(workload, queue)}or requesting less"
        case Rule.KEPT:
            return "waiting until the workload that has waited longer has started"
        case Rule.MAY_COME:
            return "a machine of that size, which may come"
        case Rule.NEVER:
            return "smaller nodes, another --pool, or larger machines"
        case _:
            return ""


def _claim(workload: Document, queue: Document | None) -> str:
    """What would entitle it to places of other projects."""
    if queue is None:
        return ""
    for name, needs in workload["needs"].items():
        quota = queue["quota"].get(name)
        if quota is not None and queue["allocated"].get(name, 0.0) + needs > quota:
            return f"a higher quota of {queue['name']}, which would let it claim: {APPLY}; "
    return ""


def _holders(document: Document, workload: Document, wanted: Callable[[Document], bool]) -> str:
    """The workloads of its pool that hold what it needs, in words, the largest first."""
    names = set(workload["needs"])
    held: list[tuple[float, str, Mapping[str, float]]] = []
    for each in document["workloads"]:
        if each["pool"] == workload["pool"] and each["id"] != workload["id"] and wanted(each):
            has = {name: value for name, value in each["holds"].items() if name in names}
            if has:
                size = Resources.of(has).without({"memory"}).size
                held.append((-size, each["id"], has))
    return listed(
        [f"{id} ({amounts(has)})" for _, id, has in sorted(held, key=lambda each: each[:2])],
        3,
        "or",
    )


def _holding(workload: Document, history: Sequence[Document], now: float) -> Iterator[str]:
    name = workload["id"]
    began = _last(history, name, ACTIVE)
    since = f", for {duration(now - began['time'])} now" if began else ""
    yield (
        f"{name} holds {amounts(workload['holds'])} in project {workload['project']}, "
        f"pool {workload['pool']}{since}."
    )
    if workload["state"] != ACTIVE and workload["reason"]:
        yield f"It is {workload['state']}: {short(workload['reason'])}."
    leaves = workload["leaves"]
    if leaves is not None:
        whom = f", for {leaves['claimant']}" if leaves["claimant"] else ""
        yield (
            f"It must leave by {timestamp(leaves['at'])}, in {duration(leaves['at'] - now)}{whom}. "
            f"{leaves['rule']}: {short(leaves['reason'])}."
        )
        if workload.get("relocates"):
            yield "Then it goes on at once at other places, which are promised to it."
        else:
            yield "Then it waits with its old place in line, and starts again by itself."
        return
    if workload["preemptible"]:
        yield (
            f"It is of class {workload['priority_class']} and preemptible: it may be stopped for "
            "work of a higher class in its project, and for other projects while its own has more "
            "than its quota."
        )
    else:
        yield "It is not preemptible: it is stopped for no other work."


def _stopped_for(name: str, history: Sequence[Document]) -> Iterator[str]:
    """Which workloads have left for it, as far as the manager remembers."""
    claim = re.compile(rf"\bleft for {re.escape(name)}(?![\w.-])")
    victims = list(
        dict.fromkeys(
            event["cluster"]
            for event in history
            if event["event"] == "stopped" and claim.search(event["reason"])
        )
    )
    if victims:
        yield f"{counted(len(victims), 'workload')} left for it: {listed(victims)}."


def _last(history: Sequence[Document], name: str, event: str) -> Document | None:
    told = [each for each in history if (each["cluster"], each["event"]) == (name, event)]
    return told[-1] if told else None


def _queue(document: Document, workload: Document) -> Document | None:
    wanted = workload["project"], workload["pool"]
    return next((q for q in document["queues"] if (q["name"], q["pool"]) == wanted), None)
