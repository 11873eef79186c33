"""What Ray's tables say, and whether the manager says the same."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group_table

from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from rays.machines import Machines

DEFAULT = "default"
RARELY = 1e-3
"""CPUs are compared up to this: Ray's tables hold floats."""


def table() -> dict[str, dict[str, Any]]:
    """Ray's placement groups by id, those that are removed left out."""
    found: dict[str, dict[str, Any]] = placement_group_table()
    return {id: group for id, group in found.items() if group["state"] != "REMOVED"}


def ours(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Those of the manager."""
    return {id: group for id, group in found.items() if group["name"].startswith("fedpilot:")}


def carried(found: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """CPUs that placement groups hold on each machine."""
    held: Counter[str] = Counter()
    for group in found:
        for index, machine in group["bundles_to_node_id"].items():
            if machine:
                held[machine] += group["bundles"][index].get("CPU", 0)
    return held


def over_capacity(document: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What holds more than there is, by the manager or by Ray's table."""
    total = {each["id"]: each["total"].get("CPU", 0) for each in document["machines"]}
    booked: Counter[str] = Counter()
    for cluster in document["clusters"]:
        for node in cluster["nodes"]:
            booked[node["parent"]] += node["total"].get("CPU", 0)
            total[node["id"]] = node["total"].get("CPU", 0)
    raw = carried(found.values())
    most = {each["NodeID"]: each["Resources"].get("CPU", 0) for each in nodes()}
    return [
        *(
            f"ledger: {n} of {total.get(p)} on {p}"
            for p, n in booked.items()
            if n > total.get(p, 0)
        ),
        *(f"Ray: {n} of {most.get(m)} on {m}" for m, n in raw.items() if n > most.get(m, n)),
    ]


def nodes() -> list[dict[str, Any]]:
    """Ray's machines, dead ones too."""
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def differences(clusters: VirtualClusters) -> list[str]:
    """What the manager's state and Ray say differently; what changes just now is not judged."""
    before = clusters.snapshot()
    found, alive = ours(table()), {each["NodeID"] for each in nodes() if each["Alive"]}
    after = clusters.snapshot()
    wrong = []
    if {each["id"] for each in after["machines"]} != alive:
        wrong.append("the machines")
    states = {each["id"]: each["state"] for each in after["clusters"]}
    then, now = (_booked(each) for each in (before, after))
    for id, group in found.items():
        cluster = group["name"].split(":")[2]
        placed = group["state"] == "CREATED"
        if cluster not in states:
            wrong.append(f"{id} of {cluster}, which is in no book")
        elif placed and id not in now:
            wrong.append(f"{id} of {cluster} ({states[cluster]}) is not in the manager's state")
        elif not placed and states[cluster] == "active":
            wrong.append(f"{id} of {cluster}, which is active, is {group['state']}")
    for id in then.keys() & now.keys():
        cluster, places = now[id]
        if then[id] != now[id] or states[cluster] != "active":
            continue
        group = found.get(id, {})
        real = {n: group["bundles_to_node_id"][n] for n in places} if group else None
        if real != places:
            wrong.append(f"{id} of {cluster} is at {real}, the manager says {places}")
    wrong += [
        f"{id} is {state}" for id, state in states.items() if state not in ("active", "waiting")
    ]
    return wrong + over_capacity(after, table())


def _booked(document: Mapping[str, Any]) -> dict[str, tuple[str, dict[int, str]]]:
    """Placement group -> (virtual cluster, bundle -> machine), as the manager has it."""
    found: dict[str, tuple[str, dict[int, str]]] = {}
    for cluster in document["clusters"]:
        for node in cluster["nodes"]:
            for group in node["groups"]:
                places = found.setdefault(group["id"], (cluster["id"], {}))[1]
                places[group["bundle"]] = node["machine"]
    return found


def nothing_left(clusters: VirtualClusters, at: Machines, held: float) -> list[str]:
    """What is still there of ours; `held` CPUs are somebody else's."""
    document, left = clusters.snapshot(), ours(table())
    found = [f"virtual cluster {each['id']}" for each in document["clusters"]]
    found = [each for each in found if each != f"virtual cluster {DEFAULT}"]
    found += [f"placement group {group['name']}" for group in left.values()]
    there, free = (Counter(each) for each in (ray.cluster_resources(), ray.available_resources()))
    if abs(there["CPU"] - free["CPU"] - held) > RARELY:
        found.append(f"{there['CPU'] - free['CPU']} CPUs are not free, {held} should not be")
    ledger = sum(each["available"].get("CPU", 0) for each in document["machines"])
    if abs(there["CPU"] - ledger - held) > RARELY:
        found.append(f"{ledger} CPUs are free by the manager, {there['CPU'] - held} should be")
    with contextlib.closing(sqlite3.connect(f"file:{at.ledger}?mode=ro", uri=True)) as file:
        for name in ("entries", "groups", "works"):
            (count,) = file.execute(f"SELECT count(*) FROM {name}").fetchone()
            found += [f"{count} {name} in the file"] if count else []
        names = [id for (id,) in file.execute("SELECT id FROM clusters")]
        found += [f"{id} in the file" for id in names if id != DEFAULT]
    return found
