"""Puts times and virtual clusters into words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.text import Text

from fedpilot.common.terminal.statuses import marked
from fedpilot.common.text.amounts import counted, duration, ordinal

from ...core.records import ROOT
from ...core.resources import Resources, amounts
from ...spec import VirtualCluster
from .statuses import CLUSTERS
from .view import Document

NO_CLUSTERS = "no virtual clusters; `fedpilot cluster create` makes one"
FLEXIBLE = re.compile(r"@([0-9a-f]{8})[0-9a-f]{24,}")
"""The end of a flexible vnode's name, which is the long id of its machine."""


def parent_name(parent: str) -> str:
    """The parent of a virtual cluster, in words."""
    return "the Ray cluster" if parent == ROOT else parent


def short(text: str) -> str:
    """A text with the machine ids in vnodes' names cut to 8 digits."""
    return FLEXIBLE.sub(r"@\1", text)


def asked_for(cluster: Document) -> str:
    """The spec in words."""
    return str(VirtualCluster.from_dict(cluster["spec"]))


def status(cluster: Document) -> Text:
    """The state with its mark, its colour and the position in the queue."""
    state, position = cluster["state"], cluster["position"]
    where = f", {ordinal(position)}" if position else ""
    return marked(CLUSTERS, state, where)


def holding(cluster: Document) -> str:
    """What it holds, on how many vnodes and machines."""
    nodes = cluster["nodes"]
    if not nodes:
        return "nothing of its own"
    places = counted(len({node["machine"] for node in nodes}), "machine")
    return f"{amounts(cluster['total'])} in {counted(len(nodes), 'vnode')} on {places}"


def loans(cluster: Document, now: float) -> Iterator[tuple[Resources, str]]:
    """The loans by the time when they are due, the first due first."""
    due: dict[str, tuple[float, Resources]] = {}
    for node in cluster["nodes"]:
        for loan in node["loans"]:
            left = loan["until"] - now
            when = f"for another {duration(left)}" if left > 0 else "and due, once nothing uses it"
            _, before = due.get(when, (left, Resources()))
            due[when] = left, before + Resources.of(loan["resources"])
    for when, (_, borrowed) in sorted(due.items(), key=lambda item: item[1][0]):
        yield borrowed, when


def work(cluster: Document) -> str:
    """How much work runs inside it and how much waits; empty if there is none."""
    counts = cluster.get("work", {})
    words = {
        "placed": "running",
        "queued": "in the queue of a placement group",
        "held": "waiting for room",
    }
    return ", ".join(f"{counts[s]} {said}" for s, said in words.items() if counts.get(s))


def outside(cluster: Document) -> list[Text]:
    """A line for each actor or task of its jobs that runs outside it."""
    return [Text(f"outside of it: {escape}", "red") for escape in cluster.get("escapes", ())]


def time_left(cluster: Document, now: float) -> str:
    """How long it still waits for its places, if it has a deadline."""
    return duration(cluster["deadline"] - now)
