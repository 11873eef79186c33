"""A Ray that teams share, without Ray: nodes above a gang's minimum come and leave on order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fedpilot.fabric import FabricError, FixedSizeNodes, NoSuchCluster, VirtualCluster, VNodeId
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.testing.fake_cluster import FakeCluster, FakeGroup, Faults, fake_machine


class Steps(Faults):
    """Does something as the nth call of a method begins, in the thread of its worker."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[tuple[str, int], Callable[[], None]] = {}

    def strike(self, method: str) -> bool:
        dies = super().strike(method)
        self.at.get((method, self._calls[method]), lambda: None)()
        return dies


class SharedCluster(FakeCluster):
    """One machine with room for all, and a manager that a test plays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__([fake_machine("a", CPU=64)])
        self.steps = self.faults = Steps()
        self.manager = Manager(self)
        monkeypatch.setattr(
            "fedpilot.fabric.inside.virtual_clusters.VirtualClusters", lambda: self.manager
        )
        monkeypatch.setattr("fedpilot.fabric.inside.context.enclosing", lambda: None)

    @property
    def shared(self) -> bool:
        return True

    def adopt_group(self, id: str, bundles: Any) -> FakeGroup:
        return self._groups[id]


class Manager(VirtualClusters):
    """What the manager of a Ray says of one gang."""

    def __init__(self, cluster: SharedCluster) -> None:
        self._cluster = cluster
        self._lock = threading.RLock()
        self._nodes: dict[str, FakeGroup] = {}
        self._notices: dict[str, Mapping[str, Any]] = {}
        self._groups = 0
        self.held = True
        self.left: list[str | None] = []
        """Nodes on which all has ended, as the gang said; None: everywhere."""
        self.leaves_when_ended = True
        self.waits_for_ends = False
        """Whether the gang says when all has ended on a node."""
        self.since = 1.0
        """Since when it holds its places."""
        self.refuses: FabricError | None = None
        """What it says of the next request."""

    # -- what a gang asks -----------------------------------------------------------------------

    def create(
        self, name: str, spec: VirtualCluster, *, says_what_ended: bool = False, **_: Any
    ) -> Mapping[str, Any]:
        if self.refuses is not None:
            raise self.refuses
        self._name, self._spec, self._request = name, spec, spec.request(name)
        self.waits_for_ends = says_what_ended
        self._hold_minimum()
        return self.show(name)

    def show(self, name: str) -> Mapping[str, Any]:
        with self._lock:
            if not hasattr(self, "_name") or name != self._name:
                raise NoSuchCluster(name)
            state = "active" if self.held else "waiting"
            nodes = [self._document(id) for id in self._nodes]
            found = {"id": name, "state": state, "reason": "others have its places"}
            told = {"asked_at": 1.0, "since": self.since, "leaves": None}
            return {**found, **told, "nodes": nodes}

    def _document(self, id: str) -> Mapping[str, Any]:
        group, number = self._nodes[id], int(id.rpartition("/")[2])
        bundle = 0
        if number < self._spec.minimum:
            asked = self._spec.node_groups[: self._request.group_of(number)]
            bundle = number - sum(len(each.nodes) for each in asked)
        size = group.bundles[bundle].resources.to_ray()
        piece = {"id": group.name, "bundle": bundle, "resources": size}
        return {
            "id": id,
            "parent": "a",
            "machine": "a",
            "total": size,
            "labels": self._request.own_labels(number),
            "groups": [piece],
            "leaves": self._notices.get(id),
        }

    def leave(self, name: str, node: str | None = None) -> None:
        self.left.append(node)
        if node is not None and self.leaves_when_ended:
            self.take(node)

    def delete(self, name: str, *, force: bool = False) -> tuple[str, ...]:
        return (name,)

    def labels_of(self, number: int) -> Mapping[str, str]:
        """The labels of a node that the gang asked for, by its number."""
        return self._request.own_labels(number)

    # -- what the test orders -------------------------------------------------------------------

    @property
    def surplus(self) -> list[str]:
        """The nodes above the minimum, the last one that came first."""
        with self._lock:
            return list(self._nodes)[self._spec.minimum :][::-1]

    def grow(self, at: int = 0) -> str | None:
        """One more node of a group comes; None if that may have no more."""
        with self._lock:
            asked, request = self._spec.node_groups[at], self._request
            numbers = [int(id.rpartition("/")[2]) for id in self._nodes]
            has = sum(request.group_of(number) == at for number in numbers)
            if not self.held or has >= (asked.max_nodes or 0):
                return None
            number = request.next_surplus(at, map(VNodeId, self._nodes))
            id = f"{self._name}/{number}"
            self._nodes[id] = self._group(asked, 1)
            return id

    def notice(self, node: str, seconds: float | None = None) -> None:
        """A node must leave: once it is idle, or after some seconds."""
        at = None if seconds is None else 1e12 + seconds
        with self._lock:
            if node in self._nodes:
                whom = {"claimant": "other", "rule": "reclaim", "reason": "over its quota"}
                self._notices[node] = {"at": at, **whom}

    def withdraw(self, node: str) -> None:
        """A node need not leave."""
        with self._lock:
            self._notices.pop(node, None)

    def take(self, node: str) -> None:
        """Take a node away, with the work on it."""
        with self._lock:
            group = self._nodes.pop(node, None)
            self._notices.pop(node, None)
        if group is not None:
            self._cluster.remove(group)

    def preempt(self) -> None:
        """All nodes leave."""
        with self._lock:
            self.held, gone = False, list(dict.fromkeys(self._nodes.values()))
            self._nodes, self._notices = {}, {}
        for group in gone:
            self._cluster.remove(group)

    def give_back(self) -> None:
        """The gang has its minimum again."""
        with self._lock:
            if not self.held:
                self.held = True
                self._hold_minimum()

    def _hold_minimum(self) -> None:
        number = 0
        for asked in self._spec.node_groups:
            group = self._group(asked, len(asked.nodes))
            for _ in asked.nodes:
                self._nodes[f"{self._name}/{number}"] = group
                number += 1

    def _group(self, asked: FixedSizeNodes, count: int) -> FakeGroup:
        self._groups += 1
        bundles = [node.bundle() for node in asked.nodes[:count]]
        return self._cluster.create_group(f"pg-{self._groups}", bundles, asked.scheduling_policy)
