"""A manager of virtual clusters without Ray, and commands asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from click.testing import CliRunner, Result

from cluster_documents import Document
from fedpilot.cli import main
from fedpilot.fabric import ClusterUnreachable, FabricError, VirtualCluster
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.manager.snapshot import find


class FakeClusters(VirtualClusters):
    """A manager without Ray: hands out a document, and remembers what it was asked."""

    def __init__(self, document: Document, *, becomes: Sequence[Document] = ()) -> None:
        self.document = document
        self.becomes = list(becomes)
        self.created: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []
        self.deleted: list[str] = []
        self.forced = False
        self.events: list[Document] = []
        self.forgot: list[str] = []
        self.fails: FabricError | None = None
        self.queued: Document = {}
        """The document of the queues."""
        self.samples: list[Document] = []
        self.applied: list[tuple[Mapping[str, Any], int | None, bool]] = []

    def create(self, name: str, spec: VirtualCluster, **options: Any) -> Mapping[str, Any]:
        if self.fails is not None:
            raise self.fails
        self.created.append((name, spec.to_dict(), options))
        return self.show(name)

    def delete(self, name: str, *, force: bool = False) -> tuple[str, ...]:
        find(self.document, name)
        self.forced = force
        self.deleted.append(name)
        ended = [e["id"] for e in self.document["clusters"] if name in (e["id"], e["parent"])]
        kept = [each for each in self.document["clusters"] if each["id"] not in ended]
        self.document = {**self.document, "clusters": kept}
        return tuple(reversed(ended))

    def restore(self, names: Sequence[str] = ()) -> Mapping[str, Any]:
        gone = [each for each in self.document["head"]["gone"] if not names or each["id"] in names]
        found = [{"id": e["id"], "state": "active", "reason": "", "position": None} for e in gone]
        refused = {e["id"]: "it belonged to job 01" for e in gone if not e["detached"]}
        return {
            "restored": [each for each in found if each["id"] not in refused],
            "refused": refused if names else {},
        }

    def forget(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        self.forgot = [each["id"] for each in self.document["head"]["gone"]]
        return tuple(self.forgot)

    def show(self, name: str) -> Mapping[str, Any]:
        if self.becomes:
            others = [each for each in self.document["clusters"] if each["id"] != name]
            self.document = {**self.document, "clusters": [*others, self.becomes.pop(0)]}
        return find(self.document, name)

    def snapshot(self) -> Mapping[str, Any]:
        return self.document

    def queues(self) -> Mapping[str, Any]:
        if self.fails is not None:
            raise self.fails
        return self.queued

    def queue_samples(self) -> Sequence[Mapping[str, Any]]:
        return self.samples

    def apply_queues(
        self, document: Mapping[str, Any], *, revision: int | None = None, dry_run: bool = False
    ) -> Mapping[str, Any]:
        if self.fails is not None:
            raise self.fails
        self.applied.append((document, revision, dry_run))
        return {
            "revision": self.queued["revision"] + (not dry_run),
            "would": {
                "starts": {"asr": "in-quota: 4 of 4 GPU"},
                "stops": [{"id": "train-3", "claimant": "asr", "reason": "reclaim-quota: above"}],
                "waits": {"train-4": "no-room: no machine has 2 GPU free"},
            },
        }

    def history(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.events)


def opening(clusters: VirtualClusters) -> Callable[..., AbstractContextManager[VirtualClusters]]:
    @contextmanager
    def opened(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[VirtualClusters]:
        yield clusters

    return opened


def invoke(clusters: VirtualClusters | None, *arguments: str, stdin: str | None = None) -> Result:
    """Run `fedpilot cluster`."""
    return run(clusters, "cluster", *arguments, stdin=stdin)


def run(clusters: VirtualClusters | None, *words: str, stdin: str | None = None) -> Result:
    """Run `fedpilot`; without virtual clusters, no Ray is there."""

    def refused(
        address: str, auth_mode: str | None, timeout_s: float
    ) -> AbstractContextManager[VirtualClusters]:
        raise ClusterUnreachable(address, "nothing listens there")

    obj = refused if clusters is None else opening(clusters)
    runner = CliRunner()
    return runner.invoke(main, list(words), input=stdin, obj=obj)
