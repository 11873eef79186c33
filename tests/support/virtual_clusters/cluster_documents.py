"""Documents as a manager tells them, without a manager, and what is printed of them."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType

from fedpilot.fabric.core.records import ROOT

NOW = 1_700_000_000.0
A, B = "a" * 56, "b" * 56
Document = dict[str, Any]


def machine(id: str, cpus: float, free: float, hostname: str = "", **more: float) -> Document:
    return {
        "id": id,
        "hostname": hostname or f"host-{id[0]}",
        "total": {"CPU": cpus, **more},
        "available": {"CPU": free, **more} if free else dict(more),
        "labels": {"ray.io/node-id": id},
    }


def vnode(id: str, machine: str, cpus: float, borrowed: float = 0, until: float = 0) -> Document:
    return {
        "id": id,
        "kind": "flexible" if "@" in id else "fixed",
        "parent": machine,
        "machine": machine,
        "hostname": f"host-{machine[0]}",
        "total": {"CPU": cpus},
        "available": {"CPU": cpus},
        "labels": {"ray.io/node-id": machine, "rank": "7"},
        "loans": [{"resources": {"CPU": borrowed}, "until": until}] if borrowed else [],
        "groups": [],
    }


def held(id: str, *nodes: Document, **changes: Any) -> Document:
    """A virtual cluster that is active."""
    cpus = sum(node["total"]["CPU"] for node in nodes)
    borrowed = sum(loan["resources"]["CPU"] for node in nodes for loan in node["loans"])
    return {
        "id": id,
        "parent": ROOT,
        "state": "active",
        "reason": "",
        "position": None,
        "owner": None,
        "asked_at": NOW - 100,
        "priority": 0,
        "deadline": None,
        "spec": {"flex_resource_min": {"CPU": cpus}},
        "total": {"CPU": cpus} if cpus else {},
        "available": {"CPU": cpus} if cpus else {},
        "borrowed": {"CPU": borrowed} if borrowed else {},
        "work": {"placed": 0, "queued": 0, "held": 0},
        "children": [],
        "nodes": list(nodes),
        **changes,
    }


def waiting(id: str, position: int, cpus: float, reason: str, **changes: Any) -> Document:
    spec = {"flex_resource_min": {"CPU": cpus}}
    state = {"state": "waiting", "position": position, "reason": reason, "spec": spec}
    return held(id, **{**state, **changes})


def shared() -> Document:
    """Two machines, shared by two teams and a job; two more wait."""
    return {
        "machines": [machine(A, 4, 1), machine(B, 4, 1)],
        "clusters": [
            held(
                "vision",
                vnode("vision/0", A, 1),
                vnode("vision/1", B, 1),
                available={"CPU": 1.0},
                work={"placed": 1, "queued": 0, "held": 2},
            ),
            held(
                "speech",
                vnode(f"speech@{A}", A, 3, 2, NOW + 42),
                children=["eval"],
                available={"CPU": 1.0},
            ),
            waiting("tabular", 1, 5, "2 CPU are free", deadline=NOW + 600),
            waiting("genomics", 2, 1, "tabular is before it"),
            held("default", vnode(f"default@{B}", B, 1), asked_at=None, spec={}, available={}),
            held("eval", vnode("eval/0", A, 2), parent="speech", owner="01000000"),
        ],
    }


def event(cluster: str, event: str, reason: str = "", ago: float = 5) -> Document:
    return {"number": 1, "time": NOW - ago, "cluster": cluster, "event": event, "reason": reason}


def printed(what: RenderableType, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(what)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
