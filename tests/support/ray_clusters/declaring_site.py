"""A site that declares Ray clusters: a store, the commands on it, and what they have started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedpilot.common.host.marked_processes import MarkedProcess, marked_processes, signal_all
from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
from fedpilot.fabric.ray_clusters.declarations.documents import details, is_managed
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.providers.ray_start import MARK
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of

PATIENCE_S = 300.0
ASK = """
import json, sys
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster, VirtualClusters
import ray
ray.init(logging_level=50, log_to_driver=False)
clusters = VirtualClusters()
print("ANSWER", json.dumps(eval(sys.argv[1])))
"""


class DeclaringSite:
    """A store, and the commands on it."""

    def __init__(self, folder: Path) -> None:
        self.store = RayClusterStore(folder / "declared.sqlite")
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self.processes: list[subprocess.Popen[bytes]] = []

    def fedpilot(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedpilot", "raycluster", arguments[0]]
        process = subprocess.Popen(
            [*command, "--store", str(self.store.path), *arguments[1:]], env=self.environment
        )
        self.processes.append(process)
        return process

    def done(self, *arguments: str) -> None:
        assert self.fedpilot(*arguments).wait(PATIENCE_S) == 0

    def serve(self) -> subprocess.Popen[bytes]:
        serving = self.fedpilot("serve")
        until(lambda: is_managed(self.store) or serving.poll() is not None)
        return serving

    def declare(self, text: str) -> None:
        document = ray_cluster_of(yaml.safe_load(text)).document
        name = RayClusterName("demo")
        found = self.store.find(name)
        saw = found.revision if found else UNDECLARED
        self.store.apply(name, document, saw=saw, by="ann", at=time.time())

    @property
    def uid(self) -> str:
        found = self.store.find(RayClusterName("demo"))
        return found.uid if found else ""

    def seen(self) -> dict[str, Any]:
        found = self.store.find(RayClusterName("demo"))
        return details(self.store, found) if found else {}

    def machines(self) -> list[str]:
        return [each["name"] for each in self.seen()["machines"] if each["state"] == "ready"]

    def groups(self) -> list[str]:
        """The groups of the machines that are ready, each as often as it has one."""
        found = self.seen()["machines"]
        return sorted(each["group"] for each in found if each["state"] == "ready")

    def processes_of(self, uid: str, machine: str = "") -> list[MarkedProcess]:
        """All processes of a cluster, or of one machine, on whatever host."""
        return [
            each
            for each in marked_processes(MARK, uid)
            if each.mark.endswith(f"/{machine}" * bool(machine))
        ]

    def kill(self, machine: str, program: str) -> None:
        found = self.processes_of(self.uid, machine)
        signal_all([each for each in found if each.program == program], signal.SIGKILL)

    def end(self) -> None:
        """End everything, with no time for anything."""
        uids = [each.uid for each in self.store.declarations()]
        for process in self.processes:
            process.kill()
            process.wait()
        for uid in uids:
            signal_all(self.processes_of(uid), signal.SIGKILL)
        self.store.close()

    def ask(self, question: str, prefix: Sequence[str] = ()) -> Any:
        """What the manager of the cluster's virtual clusters answers; `prefix` is the begin of a
        command that runs another elsewhere."""
        lines = self.said(ASK, question, prefix=prefix).splitlines()
        line = next(each for each in lines if each.startswith("ANSWER "))
        return json.loads(line.removeprefix("ANSWER "))

    def said(self, program: str, *words: str, prefix: Sequence[str] = ()) -> str:
        """What a program in Python prints for which the cluster is the Ray to use."""
        seen = self.seen()
        environment = {
            **self.environment,
            "RAY_ADDRESS": seen["address"],
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": seen["token_file"],
        }
        done = subprocess.run(
            [*prefix, sys.executable, "-c", program, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it has not come to that in time"
        time.sleep(0.05)
