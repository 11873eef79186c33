"""The command line and the environment by which `ray start` starts a declared machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ...core.ray_clusters.declaration import HEAD, LEDGER, MACHINES_COME, MachineName
from ...spec.ray_cluster.start_parameters import PARAMETERS
from .protocol import MachineOrder

MARK = "FEDPILOT_MACHINE"
"""The variable by which all processes of a machine are known: `<uid of the cluster>/<machine>`."""
TOKEN = "token"
"""The file of a cluster's secret, in its folder."""
OBJECT_STORE_BYTES = 512 * 2**20
"""Of a machine that declares none: several may share one computer, where Ray would take a third of
its memory for each."""
NODE_GROUP = "ray.io/node-group"
"""Ray's label with the group of a machine."""

ANY_PORT: Mapping[str, str] = {
    "dashboard-agent-listen-port": "0",
    "min-worker-port": "0",
    "max-worker-port": "0",
}
"""Ports of which every raylet of a computer needs its own; some of Ray's defaults are fixed."""


USAGE = "disable-usage-stats"
"""A flag that every head has."""
FLAGS = frozenset(name for name, each in PARAMETERS.items() if each.flag)


def mark_of(uid: str, machine: MachineName | str = "") -> str:
    """The mark of a machine, or what the marks of all machines of a cluster begin with."""
    return f"{uid}/{machine}"


def flags(
    order: MachineOrder, *, address: str, free_ports: tuple[int, int], folder: Path
) -> list[str]:
    """The flags of `ray start` for a machine.

    `address` is `host:port` of the head. A head takes the free ports for Ray Client and for its
    dashboard, whose default ports another Ray of this computer may have. `folder` is the place of
    Ray's sessions.
    """
    head = order.group.name == HEAD
    template = order.group.template
    ray = dict(ANY_PORT)
    ray["object-store-memory"] = str(OBJECT_STORE_BYTES)
    if head:
        ray["ray-client-server-port"], ray["dashboard-port"] = map(str, free_ports)
    ray |= template.parameters
    amounts = template.amounts
    for name, flag in (("CPU", "num-cpus"), ("GPU", "num-gpus"), ("memory", "memory")):
        if name in amounts:
            ray[flag] = f"{amounts.pop(name):.15g}"
    if amounts:
        ray["resources"] = json.dumps(amounts, sort_keys=True)
    labels = {NODE_GROUP: str(order.group.name), **template.labels}
    ray["labels"] = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    ray["node-name"] = order.machine.name
    if head:
        ray["port"] = address.rpartition(":")[2]
        ray["temp-dir"] = str(folder)
        return ["--head", "--disable-usage-stats", *_written(ray)]
    return _written(ray | {"address": address})


def _written(parameters: Mapping[str, str]) -> list[str]:
    """As `ray start` takes them: a flag is there without a value, or it is not."""
    return [
        f"--{name}" if name in FLAGS else f"--{name}={value}"
        for name, value in sorted(parameters.items())
        if name not in FLAGS or (value.lower() == "true" and name != USAGE)
    ]


def environment(
    order: MachineOrder, uid: str, folder: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a machine's processes; `folder` keeps what belongs to the cluster.

    Variables of Ray that its manager happens to have do not reach it.
    """
    own = {name: value for name, value in inherited.items() if not name.startswith("RAY_")}
    grows = {MACHINES_COME: "1"} if order.cluster.may_grow else {}
    return {
        **own,
        **grows,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's 15 starves workers on a busy computer
        **order.group.template.environment,
        # Ray's workers would put their titles over their environment, and so lose the mark.
        "SPT_NOENV": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / TOKEN),
        LEDGER: str(folder / "virtual-clusters"),
        MARK: mark_of(uid, order.machine.name),
    }
