"""Documents of a manager's queues, without a manager."""

from __future__ import annotations

from typing import Any

from cluster_documents import NOW, Document


def queue(name: str, pool: str = "gpus", **changes: Any) -> Document:
    return {
        "name": name,
        "kind": "project",
        "department": None,
        "pool": pool,
        "quota": {"GPU": 4, "CPU": None},
        "limit": {},
        "weight": {"GPU": 4.0, "CPU": 0.0},
        "fairshare": {"GPU": 4, "CPU": None},
        "allocated": {},
        "guaranteed": {},
        "pending": {},
        "state": "in-quota",
        "running": 0,
        "waiting": 0,
        **changes,
    }


def workload(id: str, project: str, gpus: float = 2, **changes: Any) -> Document:
    """One that runs."""
    return {
        "id": id,
        "project": project,
        "pool": "gpus",
        "user": "alice",
        "priority": 0,
        "priority_class": "train",
        "preemptible": True,
        "state": "active",
        "rule": None,
        "reason": "",
        "position": None,
        "asked_at": NOW - 600,
        "waits_since": None,
        "needs": {"GPU": gpus, "CPU": 4},
        "holds": {"GPU": gpus, "CPU": 4},
        "leaves": None,
        "claims": None,
        **changes,
    }


def pending(id: str, project: str, rule: str | None, reason: str, **changes: Any) -> Document:
    told = {"state": "waiting", "rule": rule, "reason": reason, "holds": {}, "position": 1}
    return workload(id, project, **{**told, "waits_since": NOW - 90, **changes})


def two_teams() -> Document:
    """Team speech claims back what team vision has above its quota."""
    return {
        "revision": 3,
        "applied_by": "carol",
        "applied_at": NOW - 3600,
        "declaration": {
            "pools": [{"name": "gpus", "selector": {"gpu": "exists()"}}],
            "departments": [{"name": "research", "quota": {"gpus": {"GPU": 8, "CPU": None}}}],
            "projects": [
                {
                    "name": "vision",
                    "department": "research",
                    "quota": {"gpus": {"GPU": 4, "CPU": None}},
                },
                {
                    "name": "speech",
                    "department": "research",
                    "quota": {"gpus": {"GPU": 4, "CPU": None}},
                    "users": ["alice", "role:researcher"],
                    "classes": ["train", "build"],
                },
            ],
        },
        "pools": [
            {"name": "gpus", "machines": 2, "capacity": {"GPU": 8, "CPU": 64}},
            {"name": "default", "machines": 0, "capacity": {}},
        ],
        "queues": [
            queue(
                "research",
                kind="department",
                quota={"GPU": 8, "CPU": None},
                fairshare={"GPU": 8, "CPU": None},
                allocated={"GPU": 8, "CPU": 16},
                pending={"GPU": 2, "CPU": 4},
                running=4,
                waiting=2,
            ),
            queue(
                "vision",
                department="research",
                allocated={"GPU": 6, "CPU": 12},
                pending={"GPU": 2, "CPU": 4},
                state="over-fairshare",
                running=3,
                waiting=1,
            ),
            queue(
                "speech",
                department="research",
                allocated={"GPU": 2, "CPU": 4},
                pending={"GPU": 2, "CPU": 4},
                running=1,
                waiting=1,
            ),
            queue("default", quota={"GPU": 0, "CPU": 0}, fairshare={"GPU": 0, "CPU": None}),
            queue("research", "default", kind="department", quota={}, fairshare={}),
            queue("vision", "default", department="research", quota={}, fairshare={}),
            queue("speech", "default", department="research", quota={}, fairshare={}),
            queue("default", "default", quota={}, fairshare={}),
        ],
        "workloads": [
            workload("train-1", "vision"),
            workload("train-2", "vision"),
            workload(
                "train-3",
                "vision",
                leaves={
                    "at": NOW + 8,
                    "claimant": "asr",
                    "rule": "reclaim-quota",
                    "reason": "speech stays within its quota",
                },
            ),
            workload("tts", "speech", preemptible=False, priority_class="build"),
            pending(
                "asr",
                "speech",
                None,
                "it gets the places of train-3 as soon as they have left",
                claims={"victims": ["train-3"], "until": NOW + 8},
            ),
            pending("train-4", "vision", "no-room", "no machine has 2 GPU free"),
        ],
        "case": {
            "id": "live",
            "kind": "settle",
            "nodes": [{"name": "n1", "pool": "gpus", "capacity": {"GPU": 8, "CPU": 64}}],
            "projects": [{"name": "vision", "quota": {"gpus": {"GPU": 4}}}],
            "workloads": [
                {
                    "id": "train-1",
                    "project": "vision",
                    "pool": "gpus",
                    "member_request": {"GPU": 2, "CPU": 4},
                    "running_on": ["n1"],
                }
            ],
        },
    }


def samples() -> list[Document]:
    """Ten minutes of both teams, minute by minute."""
    return [
        {
            "time": NOW - 600 + 60 * minute,
            "queues": [
                {
                    "name": "vision",
                    "pool": "gpus",
                    "allocated": {"GPU": min(8, 2 * minute), "CPU": 4 * minute},
                    "fairshare": {"GPU": 8 if minute < 6 else 4, "CPU": None},
                },
                {
                    "name": "speech",
                    "pool": "gpus",
                    "allocated": {"GPU": 2 if minute > 6 else 0},
                    "fairshare": {"GPU": 0 if minute < 6 else 4, "CPU": None},
                },
            ],
        }
        for minute in range(10)
    ]


def with_value(document: Document, path: str, value: Any) -> Document:
    """A document, once it has another value at a path such as `projects.0.name`."""
    *above, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    section: Any = document
    for step in above:
        section = section[step]
    section[last] = value
    return document
