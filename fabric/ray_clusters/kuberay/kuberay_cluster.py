"""KubeRayCluster: follows one RayCluster resource and its pods, and writes the resource.

It lists, then watches from the version of the list. A watch that ends is resumed once; when it ends
again, when its version is forgotten, and every `resync_s`, it lists again: an event that was never
sent costs that time, and no more.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpilot.common.host.folders import make_folder
from fedpilot.common.host.whole_files import replacing

from ...core.ray_clusters.declaration import MachineName
from ...core.ray_clusters.operated import (
    ABSENT,
    OperatedDeclaration,
    OperatedMachine,
    OperatedSettings,
    OperatedView,
    OperatorTrouble,
    ResourceWrite,
    SeenResource,
)
from ...spec.ray_cluster.document import RayClusterDocument
from .answers import GONE, ApiCallFailed, failure_of
from .api import APPLY, KubernetesApi
from .manifest import FIELD_MANAGER, KubeRayDeclaration, autoscaled_counts, head_address
from .observed import CLUSTER_LABEL, machines_of, resource_of

GROUPS = ".spec.workerGroupSpecs"
"""How a conflict names the groups of workers."""
TOKEN = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeRayTimes:
    """How long calls may take, and how often all is read again."""

    call_s: float = 10.0
    resync_s: float = 30.0


@dataclass(kw_only=True)
class KubeRayCluster:
    """One declared Ray cluster as a resource of KubeRay."""

    document: RayClusterDocument
    uid: str
    """Of the declaration."""
    folder: Path
    """For its token; it is made when there is one."""
    clock: Callable[[], float] = time.time
    settings: OperatedSettings = field(default_factory=OperatedSettings)
    times: KubeRayTimes = field(default_factory=KubeRayTimes)
    deleted: bool = False
    place: str = ""
    """The namespace; empty: it is not known yet."""

    def __post_init__(self) -> None:
        self._api: KubernetesApi | None = None
        self._live: Mapping[str, Any] | None = None
        self._read = False
        """Whether the API server has said what there is."""
        self._pods: list[Mapping[str, Any]] | None = []
        self._lacks = ""
        """Why pods or token cannot be read."""
        self._has_token = False
        self._reading: OperatorTrouble | None = None
        self._writing: OperatorTrouble | None = None
        self._changed = asyncio.Event()
        self._ends = 0
        """How many watches have ended without an event, in a row."""

    def declare(self, document: RayClusterDocument, *, deleted: bool) -> None:
        """Take another declaration."""
        self.document, self.deleted = document, deleted

    @property
    def kuberay(self) -> KubeRayDeclaration:
        return KubeRayDeclaration.of(self.document, self.uid, self.place, deleted=self.deleted)

    @property
    def declared(self) -> OperatedDeclaration:
        return self.kuberay.operated

    # -- what is known -----------------------------------------------------------------------------

    def view(self) -> OperatedView:
        """What is known now."""
        resource: SeenResource | str | None = None
        if self._read:
            resource = ABSENT if self._live is None else resource_of(self._live, self.kuberay)
        return OperatedView(resource=resource, reading=self._reading, writing=self._writing)

    def machines(
        self, before: Mapping[MachineName, OperatedMachine], next_number: int, now: float
    ) -> tuple[Mapping[MachineName, OperatedMachine], int]:
        """Its pods, and the next machine's number; those before while they cannot be read."""
        if self._pods is None or not self._read:
            return before, next_number
        return machines_of(self._pods, before, next_number, now)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many replicas Ray's own autoscaler has decided on, by group."""
        return autoscaled_counts(self._live) if self.kuberay.autoscaled else {}

    @property
    def idle(self) -> Mapping[str, int]:
        """Unknown: pods do not tell it."""
        return {}

    @property
    def lacks(self) -> str:
        """Why something of it cannot be shown; empty if all can."""
        return self._lacks

    @property
    def address(self) -> str | None:
        """`host:port` of the head; None before there is one."""
        mine = self._live is not None and resource_of(self._live, self.kuberay).ours
        return head_address(self._live, self.kuberay.head_port) if mine and self._live else None

    @property
    def token_file(self) -> str | None:
        """The file with the cluster's token; None if it has none, or none yet."""
        return str(self.folder / TOKEN) if self._has_token and self.kuberay.secret else None

    @property
    def has_auth(self) -> bool:
        """Whether the cluster asks for a token."""
        return bool(self.kuberay.secret)

    async def changed(self) -> None:
        """Return once something may be known that was not before."""
        await self._changed.wait()
        self._changed.clear()

    # -- reading -----------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Keep up with the resource until cancelled."""
        while True:
            try:
                version = await self._list()
                self._reading = None
                self._changed.set()
                await self._watch(version)
            except ApiCallFailed as error:
                await self._failed(error)

    async def _failed(self, error: ApiCallFailed) -> None:
        now = self.clock()
        self._reading = OperatorTrouble.after(
            self._reading,
            str(error),
            now,
            self.settings,
            refused=error.refused,
            wait_s=error.wait_s,
        )
        if self.deleted and error.missing_type:  # without the type there are no resources
            self._read, self._live, self._pods = True, None, []
        if error.status == 401 or error.refused:
            await self._disconnect()  # credentials are read anew
        self._changed.set()
        await asyncio.sleep(max(0.0, self._reading.again_s - now))

    async def _connected(self) -> KubernetesApi:
        if self._api is None:
            ours = self.document.document["spec"].get("fedpilot") or {}
            self._api = await KubernetesApi.connect(
                ours.get("kubeContext") or "", self.times.call_s
            )
        if not self.place:
            namespace = self.document.document["metadata"].get("namespace")
            self.place = namespace or self._api.namespace
        return self._api

    @property
    def _path(self) -> str:
        return f"/apis/ray.io/v1/namespaces/{self.place}/rayclusters"

    @property
    def _named(self) -> tuple[tuple[str, str], ...]:
        return (("fieldSelector", f"metadata.name={self.document.declared.name}"),)

    async def _list(self) -> str:
        """Read all; the version to watch from."""
        api = await self._connected()
        name = self.document.declared.name
        found = await api.call("GET", self._path, what=f"read {name}", query=self._named)
        items, metadata = found.get("items"), found.get("metadata")
        if not isinstance(items, list) or not isinstance(metadata, dict):
            raise ApiCallFailed("the API server answered no list")
        mine = [each for each in items if _is_resource(each, name)]
        self._live, self._read = (mine[0] if mine else None), True
        await self._read_around(api)
        return str(metadata.get("resourceVersion", ""))

    async def _watch(self, version: str) -> None:
        """Follow events from a version on, until all has to be read again."""
        api = await self._connected()
        until = time.monotonic() + self.times.resync_s
        while (left_s := until - time.monotonic()) > 0:
            query = (
                *self._named,
                ("resourceVersion", version),
                ("allowWatchBookmarks", "true"),
            )
            try:
                async with (
                    asyncio.timeout(left_s),
                    aclosing(api.watch(self._path, query, left_s)) as events,
                ):
                    async for event in events:
                        version = await self._take(api, event) or version
                        self._ends = 0
            except TimeoutError:
                return
            except ApiCallFailed as error:
                if error.status not in (0, GONE):
                    raise
                if error.status == GONE:
                    self._ends += 1
                    break
            self._ends += 1
            if self._ends > 1:
                break
        if self._ends > 1:
            await asyncio.sleep(self.settings.pause_s(self._ends - 1))

    async def _take(self, api: KubernetesApi, event: Mapping[str, Any]) -> str:
        """Take an event of the watch; the version that it brings."""
        kind, found = event.get("type"), event.get("object")
        if not isinstance(found, dict):
            raise ApiCallFailed("a watch sent an event without an object")
        if kind == "ERROR":
            code = found.get("code")
            status = code if isinstance(code, int) else 500
            raise failure_of(status, str(found.get("message", "")).encode(), {}, what="watch")
        version = str((found.get("metadata") or {}).get("resourceVersion") or "")
        if kind != "BOOKMARK" and _is_resource(found, self.document.declared.name):
            if kind == "DELETED":
                if self._live is None or _uid(self._live) == _uid(found):
                    self._live = None
            else:
                self._know(found)
            await self._read_around(api)
            self._changed.set()
        return version

    def _know(self, found: Mapping[str, Any]) -> None:
        """Take a version of the resource, unless a newer one is known."""
        live = self._live
        if live is None or _uid(live) != _uid(found) or _generation(found) >= _generation(live):
            self._live, self._read = found, True

    async def _read_around(self, api: KubernetesApi) -> None:
        """Read the pods and the token, which the cluster goes on without."""
        live, kuberay = self._live, self.kuberay
        self._lacks = ""
        if live is None or not resource_of(live, kuberay).ours:
            self._pods = []
            return
        name, root = kuberay.name, f"/api/v1/namespaces/{self.place}"
        try:
            selected = (("labelSelector", f"{CLUSTER_LABEL}={name}"),)
            pods = await api.call(
                "GET", f"{root}/pods", what=f"list pods of {name}", query=selected
            )
            self._pods = [each for each in pods.get("items") or () if isinstance(each, dict)]
        except ApiCallFailed as error:
            self._lacks, self._pods = str(error), None
        if kuberay.secret:
            path = f"{root}/secrets/{kuberay.secret}"
            try:
                self._keep_token(await api.call("GET", path, what=f"read the token of {name}"))
            except ApiCallFailed as error:
                self._lacks = str(error)

    def _keep_token(self, secret: Mapping[str, Any]) -> None:
        data = secret.get("data")
        text = data.get("auth_token") if isinstance(data, dict) else None
        try:
            token = base64.b64decode(str(text or ""), validate=True).decode()
        except (binascii.Error, ValueError):
            token = ""
        if not token:
            raise ApiCallFailed("the secret of its token has no key `auth_token`", refused=True)
        make_folder(self.folder)
        with replacing(self.folder / TOKEN, 0o600) as new:
            new.write_text(token)
        self._has_token = True

    # -- writing -----------------------------------------------------------------------------------

    async def write(self, write: ResourceWrite) -> None:
        """Write the resource. ApiCallFailed, which is remembered until the next write is due."""
        declared = self.kuberay
        digest = declared.operated.digest
        try:
            if write is ResourceWrite.APPLY:
                await self._apply(declared)
            else:
                await self._delete(declared)
        except ApiCallFailed as error:
            self._writing = self._trouble(error, digest)
            raise
        finally:
            self._changed.set()

    def _trouble(self, error: ApiCallFailed, digest: str) -> OperatorTrouble:
        return OperatorTrouble.after(
            self._writing,
            str(error),
            self.clock(),
            self.settings,
            refused=error.refused,
            wait_s=error.wait_s,
            digest=digest,
        )

    async def _apply(self, declared: KubeRayDeclaration) -> None:
        api = await self._connected()
        live = self._live
        try:
            answer = await self._patch(api, declared, live, force=False)
        except ApiCallFailed as error:
            mine = bool(error.conflicts) and all(
                each.startswith(GROUPS) for each in error.conflicts
            )
            if not (mine and declared.autoscaled and live is not None):
                raise
            # Ray's autoscaler owns the list of groups since it has changed a number in it. What it
            # wrote is in the apply, and the version that it was read at is a precondition.
            answer = await self._patch(api, declared, live, force=True)
        if not _is_resource(answer, declared.name):
            raise ApiCallFailed("the API server answered another resource to an apply")
        self._know(answer)
        if differs := declared.differs(answer):
            reason = f"{differs} is not as declared, although it was applied: Kubernetes changes it"
            raise ApiCallFailed(reason)
        self._writing = None

    async def _patch(
        self,
        api: KubernetesApi,
        declared: KubeRayDeclaration,
        live: Mapping[str, Any] | None,
        *,
        force: bool,
    ) -> dict[str, Any]:
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        return await api.call(
            "PATCH",
            f"{self._path}/{declared.name}",
            what=f"apply {declared.name}",
            query=[*query, ("force", "true")] if force else query,
            body=declared.body(live),
            content_type=APPLY,
        )

    async def _delete(self, declared: KubeRayDeclaration) -> None:
        """Delete what was seen, and nothing that has taken its name since."""
        live = self._live
        if live is None:
            return
        api = await self._connected()
        try:
            await api.call(
                "DELETE",
                f"{self._path}/{declared.name}",
                what=f"delete {declared.name}",
                body={
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "propagationPolicy": "Foreground",
                    "preconditions": {"uid": _uid(live)},
                },
            )
        except ApiCallFailed as error:
            if error.status != 404:
                raise
        self._writing = None

    # -- the end -----------------------------------------------------------------------------------

    async def forget(self) -> None:
        """Keep nothing of the cluster, which is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)

    async def close(self) -> None:
        """Stop; the cluster goes on."""
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._api is not None:
            await self._api.close()
            self._api = None


def _is_resource(found: Any, name: str) -> bool:
    """Whether a document has the parts that are read without a question."""
    if not isinstance(found, dict):
        return False
    metadata = found.get("metadata")
    return (
        isinstance(metadata, dict)
        and metadata.get("name") == name
        and isinstance(metadata.get("uid"), str)
        and isinstance(metadata.get("resourceVersion"), str)
        and isinstance(found.get("spec"), dict)
    )


def _uid(live: Mapping[str, Any]) -> str:
    return str(live["metadata"]["uid"])


def _generation(live: Mapping[str, Any]) -> int:
    found = live["metadata"].get("generation")
    return found if isinstance(found, int) else 0
