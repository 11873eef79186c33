"""A small Kubernetes API server with a KubeRay operator in it, on a port of this computer.

It keeps versions, answers as the real one does to stale and conflicting writes and to watches of
forgotten versions, and fails on order. It is no KubeRay: `FakeOperator` does what KubeRay's types
say.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from kube_objects import (
    Json,
    Key,
    KubeRefusal,
    KubeResource,
    applied,
    edited,
    new_uid,
    with_defaults,
)
from kube_operator import FakeOperator

NAMESPACE = "team"
TOKEN = "the-account"


@dataclass
class ServerFault:
    """Answers that are not what was asked for."""

    call: str
    """`list`, `watch`, `apply`, `delete`, `pods` or `secret`."""
    status: int = 500
    message: str = "it is broken"
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 10**9
    slow_s: float = 0.0
    """Instead of failing, wait so long."""
    document: Json | None = None


class KubeServer:
    """The server; all of it is in one event loop."""

    def __init__(self, operator_s: float = 0.01) -> None:
        self.stored: dict[str, KubeResource] = {}
        self.pods: dict[str, Json] = {}
        self.secrets: dict[str, Json] = {}
        self.version = 100
        self.events: list[tuple[int, str, Json]] = []
        self.forgotten = 0
        """Watches from an older version are refused with 410."""
        self.faults: list[ServerFault] = []
        self.calls: list[str] = []
        """Each call, and each forced apply as `force`."""
        self.silent = False
        """Whether watches are sent nothing."""
        self.installed = True
        """Whether the kind RayCluster is known."""
        self.operator = FakeOperator(self, operator_s)
        self._watches: set[asyncio.Queue[tuple[str, Json] | None]] = set()
        self.url = ""

    # -- for tests ---------------------------------------------------------------------------------

    def fail(self, call: str, status: int = 500, **more: Any) -> ServerFault:
        fault = ServerFault(call, status, **more)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        self.faults.clear()

    def edit(self, name: str, key: Key, value: Any, manager: str = "kubectl-edit") -> None:
        """Another writer sets one key."""
        self._keep(name, edited(self.stored[name], key, value, manager))

    def drop_watches(self) -> None:
        for each in self._watches:
            each.put_nowait(None)

    def forget_versions(self) -> None:
        self.forgotten = self.version
        self.drop_watches()

    def document(self, name: str) -> Json:
        return self.stored[name].document

    def count(self, call: str) -> int:
        return self.calls.count(call)

    # -- objects -----------------------------------------------------------------------------------

    def _keep(self, name: str, new: KubeResource) -> Json:
        """Keep a resource; equal content gets no new version."""
        old = self.stored.get(name)
        new.document = with_defaults(new.document)
        before = old.document if old is not None else None
        if before is not None and before == new.document:
            self.stored[name] = new
            return before
        metadata = new.document["metadata"]
        if before is None:
            metadata |= {
                "name": name,
                "namespace": NAMESPACE,
                "uid": new_uid(),
                "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
        elif before["spec"] != new.document["spec"]:
            metadata["generation"] += 1
        self.stored[name] = new
        return self.publish("ADDED" if before is None else "MODIFIED", new.document)

    def publish(self, kind: str, document: Json) -> Json:
        """Give a resource a new version, and tell of it."""
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        told = copy.deepcopy(document)
        self.events.append((self.version, kind, told))
        if not self.silent:
            for each in self._watches:
                each.put_nowait((kind, told))
        self.operator.wake()
        return told

    def remove(self, name: str) -> None:
        self.publish("DELETED", self.stored.pop(name).document)

    # -- calls -------------------------------------------------------------------------------------

    async def _called(self, call: str, request: web.Request) -> web.Response | None:
        """Note a call; the answer of a fault."""
        self.calls.append(call)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _refusal(KubeRefusal(401, "Unauthorized", "Unauthorized"))
        for fault in self.faults:
            if fault.call == call and fault.times > 0:
                fault.times -= 1
                if fault.slow_s:
                    await asyncio.sleep(fault.slow_s)
                    return None
                document = (
                    fault.document
                    or KubeRefusal(fault.status, "ServerFault", fault.message).document
                )
                return web.json_response(document, status=fault.status, headers=fault.headers)
        if not self.installed and call not in ("pods", "secret"):
            text = "the server could not find the requested resource"
            return _refusal(KubeRefusal(404, "NotFound", text))
        return None

    async def list(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        if request.query.get("watch") == "true":
            return await self.watch(request, name)
        if (fault := await self._called("list", request)) is not None:
            return fault
        items = [each.document for key, each in self.stored.items() if key == name]
        metadata = {"resourceVersion": str(self.version)}
        return web.json_response({"kind": "RayClusterList", "metadata": metadata, "items": items})

    async def watch(self, request: web.Request, name: str) -> web.StreamResponse:
        if (fault := await self._called("watch", request)) is not None:
            return fault
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if since < self.forgotten:
            gone = KubeRefusal(410, "Expired", f"too old resource version: {since}").document
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        queue: asyncio.Queue[tuple[str, Json] | None] = asyncio.Queue()
        for version, kind, document in self.events:
            if version > since and not self.silent:
                queue.put_nowait((kind, document))
        self._watches.add(queue)
        try:
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while (event := await queue.get()) is not None:
                    kind, document = event
                    if document["metadata"]["name"] == name:
                        line = json.dumps({"type": kind, "object": document}).encode() + b"\n"
                        await response.write(line[: len(line) // 2])  # lines come in any parts
                        await response.write(line[len(line) // 2 :])
            if request.transport is not None:
                request.transport.abort()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._watches.discard(queue)
        return response

    async def apply(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self._called("apply", request)) is not None:
            return fault
        name, query = request.match_info["name"], request.query
        if request.content_type != "application/apply-patch+yaml" or not query.get("fieldManager"):
            return _refusal(
                KubeRefusal(415, "UnsupportedMediaType", "only applies of a field manager")
            )
        if query.get("fieldValidation") != "Strict":
            return _refusal(KubeRefusal(400, "BadRequest", "this server takes strict applies only"))
        if force := query.get("force") == "true":
            self.calls.append("force")
        body, before = json.loads(await request.read()), self.stored.get(name)
        try:
            found = applied(
                before, body, query["fieldManager"], force=force, name=name, namespace=NAMESPACE
            )
        except KubeRefusal as refusal:
            return _refusal(refusal)
        return web.json_response(self._keep(name, found), status=201 if before is None else 200)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self._called("delete", request)) is not None:
            return fault
        name, options = request.match_info["name"], json.loads(await request.read())
        if name not in self.stored:
            return _refusal(
                KubeRefusal(404, "NotFound", f'rayclusters "{name}" not found', name=name)
            )
        document = self.stored[name].document
        uid = options.get("preconditions", {}).get("uid")
        if uid not in (None, document["metadata"]["uid"]):
            return _refusal(KubeRefusal(409, "Conflict", "Precondition failed: UID", name=name))
        if options.get("propagationPolicy") != "Foreground":
            self.remove(name)
            return web.json_response({"kind": "Status", "status": "Success"})
        document["metadata"] |= {
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["foregroundDeletion"],
        }
        return web.json_response(self.publish("MODIFIED", document))

    async def list_pods(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self._called("pods", request)) is not None:
            return fault
        name = request.query["labelSelector"].removeprefix("ray.io/cluster=")
        items = [
            each
            for each in self.pods.values()
            if each["metadata"]["labels"]["ray.io/cluster"] == name
        ]
        return web.json_response({"kind": "PodList", "items": items})

    async def secret(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self._called("secret", request)) is not None:
            return fault
        name = request.match_info["name"]
        if name not in self.secrets:
            return _refusal(KubeRefusal(404, "NotFound", f'secrets "{name}" not found', name=name))
        return web.json_response({"kind": "Secret", "data": self.secrets[name]})

    def app(self) -> web.Application:
        app = web.Application()
        root = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"
        app.router.add_get(root, self.list)
        app.router.add_patch(f"{root}/{{name}}", self.apply)
        app.router.add_delete(f"{root}/{{name}}", self.delete)
        app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods", self.list_pods)
        app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{{name}}", self.secret)
        return app


def _refusal(refused: KubeRefusal) -> web.Response:
    return web.json_response(refused.document, status=refused.status)


def kubeconfig(url: str, namespace: str = NAMESPACE, token: str = TOKEN) -> str:
    """A kubeconfig, whose context `other` names no server that exists."""
    named = {"cluster": "here", "user": "me", "namespace": namespace}
    return str(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [
                    {"name": "here", "cluster": {"server": url}},
                    {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}},
                ],
                "users": [{"name": "me", "user": {"token": token}}],
                "contexts": [
                    {"name": "here", "context": named},
                    {"name": "other", "context": {**named, "cluster": "nowhere"}},
                ],
            }
        )
    )


@asynccontextmanager
async def kube_server(
    folder: Path, environ: Callable[[str, str], None], operator_s: float = 0.01
) -> AsyncIterator[KubeServer]:
    """A server that `KUBECONFIG` names."""
    server = KubeServer(operator_s)
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{port}"
    (folder / "kubeconfig").write_text(kubeconfig(server.url))
    environ("KUBECONFIG", str(folder / "kubeconfig"))
    operator = asyncio.create_task(server.operator.run())
    try:
        yield server
    finally:
        operator.cancel()
        with suppress(asyncio.CancelledError):
            await operator
        server.drop_watches()
        await runner.cleanup()
