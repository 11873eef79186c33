"""A job server without Ray, and `fedpilot job` asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from click.testing import CliRunner, Result

from cluster_documents import NOW, Document
from fedpilot.cli import main
from fedpilot.fabric import ClusterUnreachable, FabricError, VirtualCluster
from fedpilot.fabric.core.records import ROOT
from fedpilot.fabric.errors import NoSuchJob
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.jobs.jobs import Job, Jobs

MACHINE = "a" * 56


def cluster(id: str, **changes: Any) -> Document:
    """A virtual cluster of one CPU."""
    node = {
        "id": f"{id}/0",
        "kind": "fixed",
        "parent": MACHINE,
        "machine": MACHINE,
        "hostname": "host-a",
        "total": {"CPU": 1.0},
        "available": {},
        "labels": {},
        "loans": [],
        "groups": [],
    }
    return {
        "id": id,
        "parent": ROOT,
        "state": "active",
        "reason": "",
        "position": None,
        "owner": "02000000",
        "asked_at": NOW - 100,
        "priority": 0,
        "deadline": None,
        "spec": {"flex_resource_min": {"CPU": 1.0}},
        "total": {"CPU": 1.0},
        "available": {},
        "borrowed": {},
        "work": {"placed": 1, "queued": 0, "held": 0},
        "escapes": [],
        "children": [],
        "nodes": [node],
        **changes,
    }


def waiting(id: str, position: int) -> Document:
    reason = "it needs 1 CPU, and there is room for none of it"
    return cluster(
        id, state="waiting", position=position, reason=reason, total={}, nodes=[], work={}
    )


def job(id: str, status: str = "RUNNING", **changes: Any) -> Job:
    known = Job(
        id=id,
        status=status,
        message="",
        entrypoint="python train.py",
        started=NOW - 90,
        ended=None,
        virtual_cluster=id,
        joined=False,
        cluster=cluster(id) if status == "RUNNING" else None,
    )
    return replace(known, **changes)


class FakeClusters(VirtualClusters):
    """A manager without Ray."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.events: list[Document] = []

    def snapshot(self) -> Mapping[str, Any]:
        have = {"id": MACHINE, "hostname": "host-a", "total": {"CPU": 4.0}, "available": {}}
        held = [dict(each.cluster) for each in self.jobs if each.cluster]
        return {"machines": [{**have, "labels": {}}], "clusters": held}

    def history(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.events)


class FakeJobs(Jobs):
    """A job server without Ray: remembers what it was asked; a job ends as `ends` says."""

    def __init__(self, *known: Job, log: Sequence[str] = (), ends: str = "SUCCEEDED") -> None:
        self.known = {each.id: each for each in known}
        self.log, self.ends = log, ends
        self.submitted: list[Document] = []
        self.fails: FabricError | None = None
        self.message = ""

    @property
    def clusters(self) -> VirtualClusters:  # type: ignore[override]
        return FakeClusters(list(self.known.values()))

    def submit(
        self, command: Sequence[str], spec: VirtualCluster | None = None, **options: Any
    ) -> str:
        if self.fails is not None:
            raise self.fails
        id: str = options["id"]
        wanted = None if spec is None else spec.to_dict()
        self.submitted.append({"command": list(command), "spec": wanted, **options})
        self.known[id] = job(id, "PENDING")
        return id

    def list(self) -> list[Job]:
        return list(self.known.values())

    def show(self, id: str) -> Job:
        if id not in self.known:
            raise NoSuchJob(id)
        return self.known[id]

    def logs(self, id: str) -> str:
        self.show(id)
        return "".join(self.log)

    def follow(self, id: str) -> Iterator[str]:
        found = self.show(id)
        yield from self.log
        self.known[id] = replace(found, status=self.ends, message=self.message, cluster=None)

    def stop(self, id: str) -> bool:
        told = self.show(id).status not in ("SUCCEEDED", "FAILED", "STOPPED")
        if told:
            self.known[id] = replace(self.known[id], status="STOPPED")
        return told


def opening(jobs: Jobs) -> Callable[..., AbstractContextManager[Jobs]]:
    @contextmanager
    def opened(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[Jobs]:
        yield jobs

    return opened


def invoke(jobs: Jobs | None, *arguments: str) -> Result:
    def refused(
        address: str, auth_mode: str | None, timeout_s: float
    ) -> AbstractContextManager[Jobs]:
        raise ClusterUnreachable(address, "nothing listens there")

    return CliRunner().invoke(
        main, ["job", *arguments], obj=refused if jobs is None else opening(jobs)
    )
