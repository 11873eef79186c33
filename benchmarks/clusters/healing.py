"""How soon a declared Ray cluster has what it lost, beside the bare join of a raylet.

A head, and a worker that alone has room for a virtual cluster of one vnode. The worker or the head
is killed, or its host is cut off (network namespaces with an sshd each, `hostTimeoutSeconds: 2`;
needs root). It is back once Ray uses the next machine; the vnode is once it is reserved again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusters.lifecycle import by_hand, joined, started
from measuring import HERE, Run, called, measured, parser, spread, table

for room in ("processes", "ray_clusters"):
    sys.path.append(str(HERE.parent / "tests/support" / room))

if TYPE_CHECKING:
    from declaring_site import DeclaringSite

SECTION = "healing"
TIMEOUT_S = 2.0
PATIENCE_S = 300.0
BARE, BARE_BOTH = "a raylet joins, bare", "a head starts and a raylet joins, bare"
WORKER, HEAD = "a worker killed", "a head killed"
WORKER_HOST, HEAD_HOST = "a worker's host cut off", "a head's host cut off"
SMALL = {"object-store-memory": "80000000"}
WATCH = """
import json, time
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster, VirtualClusters
import ray
ray.init(logging_level=50, log_to_driver=False)
clusters = VirtualClusters()
one = FixedSizeNodes(nodes=(FixedSizeNode(resources={"CPU": 2}),))
clusters.create("team", VirtualCluster(fixed_size_nodes=(one,)), detached=True)
while True:
    team = clusters.show("team")
    places = [each["machine"] for each in team["nodes"]]
    print(json.dumps([time.time(), team["state"], places]), flush=True)
    time.sleep(0.02)
"""


# -- one process ------------------------------------------------------------------------------


def document(ssh_config: str) -> dict[str, Any]:
    """The cluster, here or on the hosts `one` to `three`."""
    head: dict[str, Any] = {
        "rayStartParams": {"num-cpus": "1", "include-dashboard": "false", **SMALL}
    }
    workers: dict[str, Any] = {
        "groupName": "workers",
        "replicas": 1,
        "rayStartParams": {"num-cpus": "2", **SMALL},
    }
    spec: dict[str, Any] = {"headGroupSpec": head, "workerGroupSpecs": [workers]}
    if ssh_config:
        ours = {"provider": "ssh", "python": sys.executable, "sshConfig": ssh_config}
        spec["fedpilot"] = {**ours, "hostTimeoutSeconds": TIMEOUT_S}
        head["fedpilot"] = {"hosts": ["one", "two"]}
        workers["fedpilot"] = {"hosts": ["three", "two"]}
    return {"metadata": {"name": "demo"}, "spec": spec}


@contextlib.contextmanager
def declared(folder: Path, ssh_config: str = "") -> Iterator[DeclaringSite]:
    """The cluster, ready."""
    from declaring_site import DeclaringSite

    site = DeclaringSite(folder)
    try:
        site.serve()
        site.declare(json.dumps(document(ssh_config)))
        site.done("wait", "demo")
        yield site
    finally:
        site.end()


class Watched:
    """The states of the virtual cluster, which a driver asks for again and again."""

    def __init__(self, site: DeclaringSite, folder: Path, prefix: tuple[str, ...]) -> None:
        seen = site.seen()
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": seen["token_file"]}
        self._said = (folder / "states").open("w+")
        self._driver = subprocess.Popen(
            [*prefix, sys.executable, "-c", WATCH],
            env={**site.environment, "RAY_ADDRESS": seen["address"], **auth},
            stdout=self._said,
            start_new_session=True,
        )
        self._reading = (folder / "states").open()
        self._rest = ""
        self.states: list[tuple[float, str, list[str]]] = []
        """The time of each, and the machines of the vnodes then."""

    def read(self) -> None:
        """Take what was said since the last time."""
        if self._driver.poll() is not None:
            sys.exit("the driver that watches the virtual cluster has ended")
        *lines, self._rest = (self._rest + self._reading.read()).split("\n")
        told = [line for line in lines if line.startswith("[")]  # others are Ray's
        self.states += [(at, state, places) for at, state, places in map(json.loads, told)]

    def active(self, after: float = 0.0, *, but: list[str] | None = None) -> float | None:
        """When it was first active after a time, at another place than `but`."""
        self.read()
        times = (
            at
            for at, state, places in self.states
            if at > after and state == "active" and places != but
        )
        return next(times, None)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()
        self._said.close()
        self._reading.close()


def until(holds: Callable[[], bool], site: DeclaringSite) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            found = site.seen()
            events = site.store.events(site.uid)
            told = [f"{each.at:.1f} {each.kind} {each.machine} {each.reason}" for each in events]
            sys.exit("\n".join([f"it has not come to that in time: {found}", *told]))
        time.sleep(0.05)


def healed(
    site: DeclaringSite,
    folder: Path,
    harm: Callable[[str, str], None],
    *,
    head: bool,
    prefix: tuple[str, ...] = (),
) -> Run:
    """Harm the head or the worker; the seconds until both are there again."""
    old_head, old_worker = site.machines()

    def there() -> bool:
        now = {*site.machines()}
        if not head and old_head not in {each["name"] for each in site.seen()["machines"]}:
            sys.exit("the head was lost as well")
        return len(now) == 2 and old_worker not in now and (old_head in now) != head

    if head:  # a driver would end with it
        began = time.time()
        harm(old_head, old_worker)
        until(there, site)
        return {"back_s": time.time() - began}
    with contextlib.closing(Watched(site, folder, prefix)) as team:
        until(lambda: team.active() is not None, site)
        before = team.states[-1][2]
        began = time.time()
        harm(old_head, old_worker)
        until(there, site)
        back = time.time()
        until(lambda: team.active(began, but=before) is not None, site)
        again = team.active(began, but=before) or 0.0
        return {"back_s": back - began, "vnode_s": again - began}


def bare(folder: Path) -> Run:
    """A raylet joins a head, by `ray start`."""
    with by_hand(folder, at_once=False, workers=0) as (_, _, address, token):
        mark = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        began = time.time()
        worker = started([f"--address={address}"], {**os.environ, **mark})
        joined(lambda: address, token.read_text, 2)
        took = time.time() - began
        worker.wait(PATIENCE_S)
        return {"back_s": took}


def child(how: str) -> Run:
    """Break one thing once."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        if how == BARE:
            return {"how": how, **bare(folder)}
        if how == BARE_BOTH:
            with by_hand(folder, at_once=False, workers=1) as (_, up_s, _, _):
                return {"how": how, "back_s": up_s}
        head = how in (HEAD, HEAD_HOST)
        if how in (WORKER, HEAD):
            with declared(folder) as site:

                def kill(old_head: str, old_worker: str) -> None:
                    site.kill(old_head if head else old_worker, "gcs_server" if head else "raylet")

                return {"how": how, **healed(site, folder, kill, head=head)}
        from ssh_hosts import ssh_hosts

        with (
            ssh_hosts(folder, "one", "two", "three") as there,
            declared(folder, there.config) as site,
        ):

            def cut(old_head: str, old_worker: str) -> None:
                there.hosts["one" if head else "three"].cut()

            found = healed(site, folder, cut, head=head, prefix=there.on("one"))
            return {"how": how, **found}


# -- all of them ------------------------------------------------------------------------------


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table that the page shows."""
    rows = []
    bare_s = {
        how: spread([run["back_s"] for run in runs[how]]).median
        for how in (BARE, BARE_BOTH)
        if how in runs
    }
    for how, each in runs.items():
        like = bare_s.get(BARE_BOTH if how in (HEAD, HEAD_HOST) else BARE)
        vnodes = [run["vnode_s"] for run in each if "vnode_s" in run]
        vnode = spread(vnodes).text(1) if vnodes else "–"
        back = spread([run["back_s"] for run in each])
        limit = "–" if like is None or how in bare_s else f"{TIMEOUT_S + 1.15 * like:.1f}"
        rows.append([how, back.text(1), vnode, limit, str(len(each))])
    header = ["what happens", "machines back, s", "vnode back, s", "2 s + 1.15 × bare, s", "runs"]
    return table(header, rows)


def main() -> None:
    arguments = parser(__doc__ or "", reps=3).parse_args()

    def once(how: str, _turn: int) -> Run:
        return called("healing:child", how)

    def say(run: Run) -> str:
        return f"{run['back_s']:>6.1f} s"

    todo = [BARE, WORKER, WORKER_HOST, BARE_BOTH, HEAD, HEAD_HOST]
    print("\n" + text(measured(SECTION, todo, once, say, arguments)))
