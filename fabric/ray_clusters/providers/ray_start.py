"""The command line and the environment by which `ray start` starts a declared machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...core.ray_clusters.declaration import HEAD, LEDGER, MACHINES_COME, GroupName, MachineName
from ...spec.ray_cluster.start_parameters import PARAMETERS
from .ledger_copy import FOLDER
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

RECONNECT, HEADLESS_S = "RAY_gcs_rpc_server_reconnect_timeout_s", 600
"""How long the processes of a cluster whose control plane keeps its state wait for the next head;
KubeRay's number."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStart:
    """What a computer has to know of a machine to start it; of JSON values."""

    name: MachineName
    group: GroupName
    parameters: Mapping[str, str]
    """Of `ray start`, without dashes."""
    amounts: Mapping[str, float]
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    may_grow: bool
    """Whether its Ray cluster may get more machines than it has."""
    outlives_head: bool = False
    """Whether it waits for the next head when its own has ended."""

    @classmethod
    def of(cls, order: MachineOrder) -> MachineStart:
        template = order.group.template
        return cls(
            name=order.machine.name,
            group=order.group.name,
            parameters=dict(template.parameters),
            amounts=template.amounts,
            labels=dict(template.labels),
            environment=dict(template.environment),
            may_grow=order.cluster.may_grow,
            outlives_head=order.cluster.fault_tolerance is not None,
        )

    @property
    def head(self) -> bool:
        return self.group == HEAD


def flags(
    start: MachineStart,
    *,
    address: str,
    free_ports: tuple[int, int],
    folder: Path,
    own_address: str = "",
) -> list[str]:
    """The flags of `ray start` for a machine.

    `address` is `host:port` of the head. A head takes the free ports for Ray Client and for its
    dashboard, whose default ports another Ray of this computer may have. `folder` is the place of
    Ray's sessions. `own_address` is where the other machines reach this one; empty: Ray finds it.
    """
    ray = dict(ANY_PORT)
    ray["object-store-memory"] = str(OBJECT_STORE_BYTES)
    if start.head:
        ray["ray-client-server-port"], ray["dashboard-port"] = map(str, free_ports)
    ray |= start.parameters
    amounts = dict(start.amounts)
    for name, flag in (("CPU", "num-cpus"), ("GPU", "num-gpus"), ("memory", "memory")):
        if name in amounts:
            ray[flag] = f"{amounts.pop(name):.15g}"
    if amounts:
        ray["resources"] = json.dumps(amounts, sort_keys=True)
    labels = {NODE_GROUP: str(start.group), **start.labels}
    ray["labels"] = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    ray["node-name"] = start.name
    if own_address:
        ray["node-ip-address"] = own_address
    if start.head or own_address:  # a worker of the head's computer shares the head's folder
        ray["temp-dir"] = str(folder)
    if start.head:
        ray["port"] = address.rpartition(":")[2]
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
    start: MachineStart, uid: str, folder: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a machine's processes; `folder` keeps what belongs to the cluster.

    Variables of Ray that its manager happens to have do not reach it.
    """
    own = {name: value for name, value in inherited.items() if not name.startswith("RAY_")}
    grows = {MACHINES_COME: "1"} if start.may_grow else {}
    waits = {RECONNECT: f"{HEADLESS_S:g}"} if start.outlives_head else {}
    return {
        **own,
        **grows,
        **waits,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's 15 starves workers on a busy computer
        **start.environment,
        # Ray's workers would put their titles over their environment, and so lose the mark.
        "SPT_NOENV": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / TOKEN),
        LEDGER: str(folder / FOLDER),
        MARK: mark_of(uid, start.name),
    }
