"""KeptRayCluster: a declared Ray cluster that a process of a site keeps while it lives.

Its machines outlive the process, also if that is killed; the next one goes on with them. A change
of the file takes effect when the next process starts.
"""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from fedpilot.common.host.folders import make_folder
from fedpilot.common.host.whole_files import replacing

from ..core.ray_clusters.declaration import RayClusterName
from ..errors import ClusterStartFailed, ClusterUnreachable, SpecError
from ..spec.ray_cluster.document import RayClusterDocument
from ..spec.ray_cluster.reading import ray_cluster_of
from . import processes
from .declarations.documents import details, environment_of
from .declarations.records import UNDECLARED, StoredDeclaration
from .declarations.store import RayClusterStore
from .declarations.waiting import wait_of
from .providers.choice import OPERATED, check_same_provider

STORE, APPLIED = "declared.sqlite", "applied.json"
"""The declarations, and the one that a file was read as last: an autoscaler edits the former."""
TOKEN_PATIENCE_S, LOOK_AGAIN_S = 60.0, 0.1


class KeptRayCluster:
    """A declared Ray cluster within a `with` block, and after it."""

    def __init__(self, declared: RayClusterDocument, folder: Path) -> None:
        """`folder` is the cluster's alone."""
        self._declared, self._folder = declared, folder

    def __enter__(self) -> KeptRayCluster:
        """Declare it, and start to keep it. SpecError if the folder is another cluster's."""
        make_folder(self._folder)
        self.store = RayClusterStore(self._folder / STORE)
        self._stored = self._applied()
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", processes.MODULE, processes.KEEPER, str(self.store.path)],
            env={"GRPC_VERBOSITY": "ERROR", **os.environ},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def _applied(self) -> StoredDeclaration:
        """The declaration in force; an autoscaler's edits stay unless the file has changed."""
        name = RayClusterName(self._declared.declared.name)
        for other in self.store.declarations():
            if other.name != name and not other.deleted:
                raise SpecError(
                    f"{self.store.path} keeps the Ray cluster {other.name!r}, and the file "
                    f"declares {name!r}; `fedpilot raycluster delete {other.name} --store "
                    f"{self.store.path}` ends the former"
                )
        document = json.dumps(self._declared.document, sort_keys=True)
        last, before = self._folder / APPLIED, self.store.find(name)
        if before is not None and not before.deleted:
            check_same_provider(ray_cluster_of(before.document).declared, self._declared.declared)
            if last.exists() and last.read_text() == document:
                return before
        found = self.store.apply(
            name,
            self._declared.document,
            saw=before.revision if before else UNDECLARED,
            by=getpass.getuser(),
            at=time.time(),
        )
        with replacing(last) as new:
            new.write_text(document)
        return found

    def address(self) -> str:
        """Where its head is now. ClusterUnreachable if it has none."""
        now = self.store.find(self._stored.name)
        found = details(self.store, now) if now is not None else {}
        if not found.get("address"):
            wait = wait_of(self.store, self._stored, "ready")
            reason = wait.never or wait.reason or wait.so_far
            raise ClusterUnreachable(self._stored.name, reason)
        return str(found["address"])

    def environment(self) -> Mapping[str, str]:
        """The variables with which Ray reaches it, apart from the address. ClusterStartFailed."""
        deadline = time.monotonic() + TOKEN_PATIENCE_S
        if self._declared.declared.provider in OPERATED:
            return self._operated()
        while not (token := details(self.store, self._stored)["token_file"]):
            if time.monotonic() > deadline or self._keeper.poll() is not None:
                raise ClusterStartFailed("its lifecycle manager does not begin; its log says why")
            time.sleep(LOOK_AGAIN_S)
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}

    def _operated(self) -> Mapping[str, str]:
        """The variables of a cluster that another operator keeps, which may have no token."""
        deadline = time.monotonic() + TOKEN_PATIENCE_S
        while (found := environment_of(details(self.store, self._stored))) is None:
            if time.monotonic() > deadline or self._keeper.poll() is not None:
                reason = wait_of(self.store, self._stored, "ready").reason or "it has no address"
                raise ClusterStartFailed(reason)
            time.sleep(LOOK_AGAIN_S)
        return {name: value for name, value in found.items() if name != "RAY_ADDRESS"}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep it no more; its machines go on."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self.store.close()
