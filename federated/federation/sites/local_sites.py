"""LocalSites: several sites on this machine, each a Ray cluster of its own behind a runner.

They share the machine evenly unless the config gives their sizes. They end with the process that
started them, even if it is killed: its connection is their lease. When a runner dies, its site is
lost until the next one starts, within a budget of restarts.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from fedpilot.common.host.machine import load
from fedpilot.fabric import local_machine
from fedpilot.fabric.ray.home import own_folder, sweep
from fedpilot.mediator import LinkedSite, Payload, SiteLost, SiteUnreachable
from fedpilot.mediator.agent.runner.link import CLOSED, OrderTensors, RunnerLink
from fedpilot.mediator.agent.runner.process import RayChoice, RunnerProcess, RunnerSettings
from fedpilot.mediator.wire.blobs.blob import LARGEST_BLOB
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.references import Keeping

from ...config.schema import RunConfig
from ...prepare.gang_request import PRELOAD, SMALLEST_OBJECT_STORE, first_processes, gang_request
from .planned_sites import check_here, share

LINGER_S = 60.0
"""Seconds that the processes of a killed runner's Ray may take to end on a busy machine."""
END_S = 15.0
"""Seconds that they may take to end in order."""
ORPHAN_S = 10.0
"""Seconds that they live without the process that started them."""
RUN = "local"
WORKLOAD = "federated"


class LocalSites:
    """As many runners as a config has sites; begins their start at once, and owns them."""

    def __init__(
        self,
        config: RunConfig,
        store: int = SMALLEST_OBJECT_STORE,
        data: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Each gets `store` bytes for objects; `data` has each site's declarations, by its name.

        Raises NotFeasible if its sites could never hold the gang.
        """
        self.store = store
        request = gang_request(config)
        names = config.sites.names
        cpus, gpus = share(config, local_machine())
        check_here(config, names)
        machine = local_machine(cpus, gpus)
        self._start_s = config.resources.start_timeout
        self._undo = ExitStack()
        self._links: dict[str, RunnerLink] = {}
        self._processes: list[RunnerProcess] = []
        self._starting = threading.Lock()
        self._ended = False
        with ExitStack() as undo:
            folder = undo.enter_context(own_folder())
            undo.callback(sweep, folder.parent, LINGER_S)  # left by killed runners
            undo.callback(self._end)
            blobs = folder / "blobs"
            outbox = OrderTensors(Keeping(BlobStore(blobs, LARGEST_BLOB), discard=True))
            for number, name in enumerate(names):
                settings = RunnerSettings(
                    run=RUN,
                    site=name,
                    ray=RayChoice(
                        num_cpus=cpus,
                        num_gpus=gpus,
                        object_store_bytes=store,
                        processes=first_processes(request, machine),
                        preload=(PRELOAD,),
                    ),
                    blobs=blobs,
                    blob_limit_bytes=LARGEST_BLOB,
                    transient=True,
                    data=(data or {}).get(name, {}),
                    asks_policy=False,  # the user of this process is the admin
                    orphan_s=ORPHAN_S,
                    workload=WORKLOAD,
                )
                environment = _environment(number, gpus)
                start = partial(self._start, folder / name, settings, environment)
                self._links[name] = RunnerLink(start(), outbox, start_next=start)
            self._undo = undo.pop_all()

    def _start(
        self, folder: Path, settings: RunnerSettings, environment: Mapping[str, str]
    ) -> RunnerProcess:
        """Start a runner that `close` ends; raises SiteLost once `close` was called."""
        with self._starting:
            if self._ended:
                raise SiteLost(settings.site, CLOSED)
            process = RunnerProcess.start(
                folder, settings, own_session=False, environment=environment
            )
            self._processes.append(process)
            return process

    def died(self, site: str) -> bool:
        """Whether a site's runner has died, so that the site must be brought in again."""
        return self._links[site].died

    def wait(self) -> None:
        """Wait until every site's Ray is up; raises ClusterStartFailed or SiteUnreachable."""
        asked: dict[str, Future[Payload]] = {
            name: link.ask("attach", Payload(kind="attach"), key="attach")
            for name, link in self._links.items()
        }
        deadline = time.monotonic() + self._start_s
        for name, answer in asked.items():
            try:
                answer.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                reason = f"its Ray was not there after {self._start_s:g} s ({load()})"
                raise SiteUnreachable(name, reason) from None

    def sites(self) -> tuple[LinkedSite, ...]:
        """The sites, in the order of their numbers."""
        return tuple(LinkedSite(name, link) for name, link in self._links.items())

    def close(self) -> None:
        """End all of them and everything they hold; may be called twice."""
        self._undo.close()

    def _end(self) -> None:
        with self._starting:
            self._ended = True
        for link in self._links.values():
            link.close()
        deadline = time.monotonic() + END_S
        for process in self._processes:
            process.end(max(0.0, deadline - time.monotonic()))


def _environment(number: int, gpus: int) -> dict[str, str]:
    """A site's environment: this process's import path, and GPUs that no other site uses."""
    own = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        own["CUDA_VISIBLE_DEVICES"] = gpus_of(number, gpus, visible)
    return own


def gpus_of(number: int, each: int, visible: str) -> str:
    """One site's GPUs, out of those in CUDA_VISIBLE_DEVICES if it is set."""
    mine = range(number * each, (number + 1) * each)
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    if not devices:
        return ",".join(str(device) for device in mine)
    return ",".join(devices[mine.start : mine.stop])
