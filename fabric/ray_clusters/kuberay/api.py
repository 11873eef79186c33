"""KubernetesApi: calls of one API server, each with a deadline.

It uses the official client of Kubernetes, an extra of fedpilot, which finds the server and the
credentials as `kubectl` does: by `KUBECONFIG`, by `~/.kube/config`, or inside a pod.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from .answers import ApiCallFailed, failure_of

POD_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its account."""
LARGEST_EVENT = 8 * 2**20
"""In bytes, of a watch; a resource has 1.5 MiB at most."""
APPLY, JSON = "application/apply-patch+yaml", "application/json"
Query = Sequence[tuple[str, str]]


class KubernetesApi:
    """One API server, as one account. Calls raise ApiCallFailed."""

    def __init__(self, client: Any, namespace: str, call_s: float) -> None:
        self._client, self.namespace, self._call_s = client, namespace, call_s

    @classmethod
    async def connect(cls, context: str, call_s: float) -> KubernetesApi:
        """Read the kubeconfig; an empty context is its current one. No call is made."""
        configs = importlib.import_module("kubernetes.aio.config")
        clients = importlib.import_module("kubernetes.aio.client")
        configuration = clients.Configuration()
        try:
            namespace = await _configure(configs, configuration, context)
        except Exception as error:  # of the client's many, and of programs that it starts
            reason = f"the kubeconfig cannot be used: {error}"
            raise ApiCallFailed(reason, refused=True) from error
        return cls(clients.ApiClient(configuration), namespace, call_s)

    async def call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Query = (),
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        """The answer of one call; `what` names it in a failure."""
        timeout = aiohttp.ClientTimeout(total=self._call_s)
        try:
            async with asyncio.timeout(self._call_s):
                answer = await self._send(method, path, query, body, content_type, timeout)
                read = await answer.read()
        except TimeoutError:
            reason = f"the API server did not answer within {self._call_s:g} s to {what}"
            raise ApiCallFailed(reason) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ApiCallFailed(f"cannot reach the API server to {what}: {error}") from error
        if not 200 <= answer.status < 300:
            raise failure_of(answer.status, read, answer.headers, what=what)
        try:
            found = json.loads(read)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ApiCallFailed(f"the API server answered no document to {what}", answer.status)
        return found

    async def watch(self, path: str, query: Query, last_s: float) -> AsyncGenerator[dict[str, Any]]:
        """The events of a watch, until the server ends it."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._call_s, sock_read=last_s + self._call_s
        )
        asked = (*query, ("watch", "true"), ("timeoutSeconds", str(max(1, round(last_s)))))
        try:
            async with asyncio.timeout(self._call_s):
                answer = await self._send("GET", path, asked, None, JSON, timeout)
            try:
                if not 200 <= answer.status < 300:
                    body = await answer.read()
                    raise failure_of(answer.status, body, answer.headers, what="watch")
                async for event in _events(answer.response.content):
                    yield event
            finally:
                answer.response.close()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiCallFailed(f"the watch was cut off: {error!r}") from error

    async def _send(
        self,
        method: str,
        path: str,
        query: Query,
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> Any:
        """The answer, whose body is not read."""
        headers = {"Accept": JSON, "Content-Type": content_type}
        asked = await self._client.param_serialize(
            method,
            path,
            query_params=list(query),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        return await self._client.call_api(*asked, _request_timeout=timeout)

    async def close(self) -> None:
        await self._client.close()


async def _configure(configs: Any, configuration: Any, context: str) -> str:
    """Fill in server and credentials; the namespace that calls are meant for."""
    named = os.environ.get("KUBECONFIG", "")
    usual = Path.home() / ".kube" / "config"
    if not named and not context and not usual.exists() and "KUBERNETES_SERVICE_HOST" in os.environ:
        configs.load_incluster_config(client_configuration=configuration)
        with suppress(OSError):
            return (POD_FOLDER / "namespace").read_text().strip() or "default"
        return "default"
    file = named or str(usual)
    if not any(Path(each).expanduser().exists() for each in file.split(os.pathsep)):
        raise FileNotFoundError(f"there is none at {file}; `KUBECONFIG` names another place")
    await configs.load_kube_config(
        config_file=file, context=context or None, client_configuration=configuration
    )
    contexts, active = configs.list_kube_config_contexts(config_file=file)
    used = next((each for each in contexts if each["name"] == context), active)
    return str(used["context"].get("namespace") or "default")


async def _events(content: aiohttp.StreamReader) -> AsyncGenerator[dict[str, Any]]:
    """The JSON objects of a stream, a line each."""
    begun = b""
    async for part in content.iter_any():
        *lines, begun = (begun + part).split(b"\n")
        for line in filter(bytes.strip, lines):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                raise ApiCallFailed("a watch sent what is no JSON") from None
            if isinstance(event, dict):
                yield event
        if len(begun) > LARGEST_EVENT:
            raise ApiCallFailed(f"a watch sent an event of more than {LARGEST_EVENT} bytes")
