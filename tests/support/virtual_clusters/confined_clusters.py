"""A manager without Ray for `confine`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from fedpilot.fabric import VirtualCluster
from fedpilot.fabric.errors import ManagerUnreachable, NameTaken, NoSuchCluster
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.jobs import confine


class ConfinedClusters(VirtualClusters):
    """A manager without Ray, of virtual clusters by name."""

    def __init__(self, *taken: str) -> None:
        self.there = {name: self._made(name) for name in taken}
        self.events: list[Mapping[str, Any]] = []
        self.states = ["active"]
        """What a new one is in, and what it is in whenever somebody asks after that."""
        self.silent = False

    def _made(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "state": "active",
            "reason": "it needs 1 CPU",
            "position": None,
            "asked_at": time.time(),
        }

    def create(self, name: str, spec: VirtualCluster, **options: Any) -> Mapping[str, Any]:
        if name in self.there:
            raise NameTaken(name)
        self.there[name] = self._made(name)
        return self.show(name)

    def show(self, name: str) -> Mapping[str, Any]:
        if self.silent:
            raise ManagerUnreachable("it starts again")
        if name not in self.there:
            raise NoSuchCluster(name)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {**self.there[name], "state": state}

    def delete(self, name: str) -> tuple[str, ...]:
        if name not in self.there:
            raise NoSuchCluster(name)
        del self.there[name]
        self.events.append({"cluster": name, "event": "ended", "reason": "it was deleted"})
        return (name,)

    def history(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.events)


def run(clusters: VirtualClusters, *command: str, options: Sequence[str] = ()) -> int:
    given, command_ = confine.parsed(["--name", "a", *options, "--", *command])
    return confine.run(clusters, given, command_, "127.0.0.1:1")


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
