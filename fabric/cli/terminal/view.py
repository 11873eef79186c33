"""View: answers questions about the manager's documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.records import DEFAULT, ENDED, ROOT, WAITING
from ...core.resources import Resources
from ...manager.snapshot import find, with_places
from ...spec import VirtualCluster

Document = Mapping[str, Any]
"""A virtual cluster, a vnode, a machine, or all of them (`manager/snapshot.py`); or an event."""


class View:
    """The virtual clusters at one moment: which hold places, and which wait for them."""

    def __init__(self, document: Document, now: float) -> None:
        self.document, self.now = document, now
        self.machines: Sequence[Document] = document["machines"]
        self.inside: dict[str, list[Document]] = {}
        """The virtual clusters by parent."""
        for cluster in document["clusters"]:
            self.inside.setdefault(cluster["parent"], []).append(cluster)

    @property
    def clusters(self) -> Sequence[Document]:
        """All virtual clusters, each followed by those inside it."""
        return list(self._below(ROOT))

    def _below(self, parent: str) -> Iterator[Document]:
        for cluster in (*self.holders(parent), *self.queue(parent)):
            yield cluster
            yield from self._below(cluster["id"])

    def holders(self, parent: str) -> list[Document]:
        """The virtual clusters inside `parent` that have places; `default` comes last."""
        return with_places(self.inside.get(parent, ()))

    def queue(self, parent: str) -> list[Document]:
        """The virtual clusters that wait for places inside `parent`, in queue order."""
        found = [c for c in self.inside.get(parent, ()) if c["state"] == WAITING]
        return sorted(found, key=lambda cluster: cluster["position"] or len(found))

    def total(self) -> Resources:
        return Resources.total(Resources.of(machine["total"]) for machine in self.machines)

    def told(self, amounts: Resources) -> Resources:
        """The amounts, without memory if no virtual cluster holds or requests any."""
        if any(Resources.of(c["total"])["memory"] or wanted(c)["memory"] for c in self.shared):
            return amounts
        return amounts.without({"memory"})

    @property
    def shared(self) -> list[Document]:
        """The virtual clusters that were requested."""
        return [c for c in self.document["clusters"] if c["id"] != DEFAULT]

    def free(self, parent: str = ROOT) -> Resources:
        """What is free in the Ray cluster, or in what a virtual cluster holds."""
        places = self.machines if parent == ROOT else [find(self.document, parent)]
        return Resources.total(Resources.of(place["available"]) for place in places)

    def machine(self, id: str) -> str:
        """A machine's host name, and its id if two machines share the name."""
        hosts = Counter(machine["hostname"] for machine in self.machines)
        names = {machine["id"]: machine["hostname"] for machine in self.machines}
        if id not in names:
            return f"a machine that is gone ({id[:8]})"
        return names[id] if hosts[names[id]] == 1 else f"{names[id]} ({id[:8]})"


def wanted(cluster: Document) -> Resources:
    """All that a virtual cluster must have before it starts."""
    spec = VirtualCluster.from_dict(cluster["spec"])
    nodes = (bundle.resources for group in spec.node_groups for bundle in group.group().bundles)
    return Resources.total(nodes) + spec.least


def ending(history: Sequence[Document], name: str) -> Document | None:
    """The end of the last virtual cluster with that name; None if the history has none."""
    told = [event for event in history if event["cluster"] == name]
    return told[-1] if told and told[-1]["event"] == ENDED else None
