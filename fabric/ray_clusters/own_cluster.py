"""OwnRayCluster: a declared Ray cluster that one command has for itself, and that ends with it.

The paper's second mode of use (seed 002). The command's process may be killed at any moment: a
lifecycle manager in a process of its own then ends the cluster.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from ..core.ray_clusters.declaration import RayClusterName
from ..errors import ClusterStartFailed, ClusterUnreachable, FabricError
from ..ray.cluster import RayCluster
from ..ray.home import environment
from ..spec.ray_cluster.document import RayClusterDocument
from ..spec.ray_cluster.reading import read_ray_cluster
from . import processes
from .declarations.documents import details, environment_of
from .declarations.records import UNDECLARED, StoredDeclaration
from .declarations.store import RayClusterStore
from .declarations.waiting import wait_of
from .providers.choice import check_provided

LOG = "own.log"
LOOK_AGAIN_S = 0.1
TRIES = 3
"""How many managers may be started to end a cluster; each goes on where the one before ended."""


def declared_in(file: Path, name: str = "") -> RayClusterDocument:
    """What a file declares; `name` replaces the document's.

    BadFile; SpecError if this version cannot provide it.
    """
    read = read_ray_cluster(file, name)
    check_provided(read.declared)
    return read


@contextmanager
def connected(declared: RayClusterDocument, timeout_s: float) -> Iterator[RayCluster]:
    """A connection to a declared Ray cluster that starts and ends with the block.

    Ray's variables are those of the cluster meanwhile. ClusterStartFailed, ClusterUnreachable.
    """
    with OwnRayCluster(declared) as own:
        own.wait(timeout_s)
        with (
            environment(own.environment),
            RayCluster.connect(
                own.environment["RAY_ADDRESS"], own.environment["RAY_AUTH_MODE"], timeout_s
            ) as ray,
        ):
            yield ray


class OwnRayCluster:
    """A declared Ray cluster within a `with` block; it starts at the block's begin."""

    def __init__(self, declared: RayClusterDocument) -> None:
        self._declared = declared

    def __enter__(self) -> OwnRayCluster:
        self._folder = Path(tempfile.mkdtemp(prefix="fedpilot-own-"))
        self.store = RayClusterStore(self._folder / "declared.sqlite")
        self.stored: StoredDeclaration = self.store.apply(
            RayClusterName(self._declared.declared.name),
            self._declared.document,
            saw=UNDECLARED,
            by=getpass.getuser(),
            at=time.time(),
        )
        self._manager = self._process(processes.OWN_MANAGER)
        self._autoscaler = self._process(processes.AUTOSCALER)
        return self

    def _process(self, role: str) -> subprocess.Popen[bytes]:
        """A process that is told to end by the end of its input."""
        with (self._folder / LOG).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", processes.MODULE, role, str(self.store.path)],
                env={"GRPC_VERBOSITY": "ERROR", **os.environ},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, timeout_s: float) -> None:
        """Wait until it is ready. ClusterStartFailed if it cannot be, or is not in time; and
        ClusterUnreachable for a Ray that runs already."""
        deadline = time.monotonic() + timeout_s
        while not (wait := wait_of(self.store, self.stored, "ready")).reached:
            if wait.never:
                raise self._failure(wait.never)
            if time.monotonic() > deadline:
                raise self._failure(wait.in_vain(self.stored.name, "ready", timeout_s))
            time.sleep(LOOK_AGAIN_S)

    def _failure(self, reason: str) -> FabricError:
        declared = self._declared.declared
        if declared.provider == "existing":
            return ClusterUnreachable(declared.address, reason)
        return ClusterStartFailed(reason)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which Ray and fedpilot use it, once its head is there."""
        found = environment_of(details(self.store, self.stored))
        if found is None:
            raise ClusterUnreachable(self.stored.name, "its head has no address, or no token yet")
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the cluster, and wait until nothing of it is left. FabricError if that fails."""
        _hang_up(self._autoscaler)
        code = _hang_up(self._manager)
        for _ in range(TRIES - 1):
            if code == 0:
                break
            code = _hang_up(self._process(processes.OWN_MANAGER))
        self.store.close()
        if code:
            raise FabricError(
                f"the Ray cluster could not be ended; {self._folder / LOG} says why, and "
                f"`fedpilot raycluster delete {self.stored.name} --store {self.store.path}` with "
                "`fedpilot raycluster serve` ends it"
            )
        shutil.rmtree(self._folder, ignore_errors=True)


def _hang_up(process: subprocess.Popen[bytes]) -> int:
    """Tell a process to end, and wait for its exit code."""
    assert process.stdin is not None
    process.stdin.close()
    return process.wait()
