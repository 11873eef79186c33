"""The objects of a small API server: versions, server-side apply, defaults, validation.

Lists are atomic, as KubeRay's `workerGroupSpecs` is; sections are merged key by key. Resources are
checked by fedpilot's own schema, and by the one that KubeRay publishes (`published_crd`).
"""

from __future__ import annotations

import copy
import functools
import gzip
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedpilot.common.strict_yaml.errors import BadFile
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of

Json = dict[str, Any]
Key = tuple[str, ...]
SERVERS = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
"""Keys of metadata that the server owns."""
DEFAULTS = {"minReplicas": 0, "maxReplicas": 2**31 - 1, "numOfHosts": 1, "priority": 0}
CRD = Path(__file__).parent / "published_crd/ray.io_rayclusters.yaml.gz"


class KubeRefusal(Exception):
    """An answer that is no success."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        causes: list[Json] | None = None,
        name: str = "",
    ) -> None:
        super().__init__(status, reason, message)
        details = {"causes": causes or [], **({"name": name} if name else {})}
        self.status = status
        self.document = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": status,
        }


@dataclass
class KubeResource:
    """One resource, and who owns which of its keys."""

    document: Json
    owners: dict[tuple[str, str], set[Key]] = field(default_factory=dict)
    """The keys by field manager and operation."""


def leaves(value: Any, at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """The keys of a section with what they have; a list is one value."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from leaves(each, (*at, key))
    else:
        yield at, value


def owned(body: Mapping[str, Any]) -> dict[Key, Any]:
    """What a writer says of a resource, without what the server owns."""
    kept = copy.deepcopy(dict(body))
    for key in ("apiVersion", "kind", "status"):
        kept.pop(key, None)
    for key in SERVERS:
        kept.get("metadata", {}).pop(key, None)
    return {at: value for at, value in leaves(kept) if value != {}}


def value_at(document: Any, key: Key) -> Any:
    for step in key:
        if not isinstance(document, dict) or step not in document:
            return None
        document = document[step]
    return document


def put(document: Json, key: Key, value: Any) -> None:
    for step in key[:-1]:
        document = document.setdefault(step, {})
    document[key[-1]] = copy.deepcopy(value)


def drop(document: Json, key: Key) -> None:
    """Remove a key, and the sections that are empty then."""
    above = value_at(document, key[:-1])
    if isinstance(above, dict):
        above.pop(key[-1], None)
        if not above and len(key) > 2:
            drop(document, key[:-1])


def dotted(key: Key) -> str:
    return "".join(f".{step}" for step in key)


def overlap(one: Key, other: Key) -> bool:
    return one[: len(other)] == other[: len(one)]


def applied(
    before: KubeResource | None, body: Json, manager: str, *, force: bool, name: str, namespace: str
) -> KubeResource:
    """The resource after a server-side apply. KubeRefusal."""
    _check_form(body, name, namespace)
    given, me = body["metadata"], (manager, "Apply")
    if before is None:
        if given.get("uid") or given.get("resourceVersion"):
            raise KubeRefusal(409, "Conflict", f"uid mismatch: no existing {name}", name=name)
        stored = KubeResource({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {}})
    else:
        stored = copy.deepcopy(before)
        live = before.document["metadata"]
        for key in ("uid", "resourceVersion"):
            if given.get(key) not in (None, live[key]):
                text = "the object has been modified; please apply your changes to the latest"
                raise KubeRefusal(409, "Conflict", f"{text} version ({key})", name=name)
    said = owned(body)
    conflicts = [
        (who, key)
        for key, value in said.items()
        for who, keys in stored.owners.items()
        if who != me
        and any(overlap(key, each) for each in keys)
        and value_at(stored.document, key) != value
    ]
    if conflicts and not force:
        causes = [
            {
                "reason": "FieldManagerConflict",
                "message": f'conflict with "{who[0]}" using ray.io/v1',
                "field": dotted(key),
            }
            for who, key in conflicts
        ]
        text = f"Apply failed with {len(causes)} conflict(s)"
        raise KubeRefusal(409, "Conflict", text, causes, name)
    for who, field_key in conflicts:
        kept = {each for each in stored.owners[who] if not overlap(each, field_key)}
        stored.owners[who] = kept
    for old in stored.owners.get(me, set()) - said.keys():
        others = [keys for who, keys in stored.owners.items() if who != me]
        if not any(overlap(old, each) for keys in others for each in keys):
            drop(stored.document, old)
    for new, value in said.items():
        put(stored.document, new, value)
    stored.owners[me] = set(said)
    check(stored.document)
    return stored


def edited(before: KubeResource, key: Key, value: Any, manager: str) -> KubeResource:
    """The resource after another writer has set one key, which it owns then."""
    stored = copy.deepcopy(before)
    top = key[:2] if key[0] == "spec" else key  # lists are atomic
    target: Any = stored.document
    for step in key[:-1]:
        target = target[int(step)] if isinstance(target, list) else target.setdefault(step, {})
    target[int(key[-1]) if isinstance(target, list) else key[-1]] = value
    for who, keys in stored.owners.items():
        stored.owners[who] = {each for each in keys if not overlap(each, top)}
    stored.owners.setdefault((manager, "Update"), set()).add(top)
    check(stored.document)
    return stored


def with_defaults(document: Json) -> Json:
    found = copy.deepcopy(document)
    for group in found["spec"].get("workerGroupSpecs", []):
        for key, value in {**DEFAULTS, "replicas": 0}.items():
            group.setdefault(key, value)
    return found


def new_uid() -> str:
    return secrets.token_hex(8)


def _check_form(body: Json, name: str, namespace: str) -> None:
    metadata = body.get("metadata") or {}
    if (body.get("apiVersion"), body.get("kind")) != ("ray.io/v1", "RayCluster"):
        raise KubeRefusal(400, "BadRequest", "apiVersion and kind must be set in an apply")
    if (metadata.get("name"), metadata.get("namespace", namespace)) != (name, namespace):
        raise KubeRefusal(400, "BadRequest", "name or namespace are not those of the URL")
    unknown = sorted(body.keys() - {"apiVersion", "kind", "metadata", "spec"})
    ours = [
        where
        for where, section in (
            ("metadata", metadata),
            ("spec", body["spec"]),
            ("spec.headGroupSpec", body["spec"].get("headGroupSpec", {})),
            *(("spec.workerGroupSpecs", each) for each in body["spec"].get("workerGroupSpecs", [])),
        )
        if "fedpilot" in section
    ]
    for where in (*unknown, *(f"{each}.fedpilot" for each in ours)):
        raise KubeRefusal(400, "BadRequest", f'strict decoding error: unknown field "{where}"')


def check(document: Json) -> None:
    """Refused if a resource is not valid."""
    kept = {key: document["metadata"].get(key) for key in ("name", "labels", "annotations")}
    spec = {**copy.deepcopy(document["spec"]), "fedpilot": {"provider": "kuberay"}}
    kept["name"] = kept["name"] or "new"
    if (spec.get("headGroupSpec") or {}).get("replicas") is not None:
        raise KubeRefusal(400, "BadRequest", 'strict decoding error: unknown field "replicas"')
    try:
        ray_cluster_of({"metadata": kept, "spec": spec})
    except BadFile as error:
        raise KubeRefusal(422, "Invalid", f"RayCluster is invalid: {error}") from None
    problems = list(problems_of(document["spec"], published()["properties"]["spec"], "spec"))
    if problems:
        raise KubeRefusal(422, "Invalid", f"RayCluster is invalid: {'; '.join(problems)}")


@functools.cache
def published() -> Json:
    """KubeRay's published schema of the resource."""
    found = yaml.load(gzip.decompress(CRD.read_bytes()), yaml.CSafeLoader)
    (version,) = [each for each in found["spec"]["versions"] if each["name"] == "v1"]
    return dict(version["schema"]["openAPIV3Schema"])


TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def problems_of(value: Any, schema: Json, where: str) -> Iterator[str]:
    """What of a value a structural schema refuses."""
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield f"{where}: {json.dumps(value)} is no number or text"
        return
    kind = schema.get("type", "object")
    is_it: Any = isinstance(value, TYPES[kind])
    if not is_it or (kind == "integer" and isinstance(value, bool)):
        yield f"{where}: {json.dumps(value)} is no {kind}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {json.dumps(value)} is none of {schema['enum']}"
    elif kind == "array":
        for i, each in enumerate(value):
            yield from problems_of(each, schema["items"], f"{where}[{i}]")
    elif kind == "object":
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value and "default" not in known[name]:
                yield f"{where}.{name}: it is required"
        for name, each in value.items():
            if name in known:
                yield from problems_of(each, known[name], f"{where}.{name}")
            elif isinstance(schema.get("additionalProperties"), dict):
                yield from problems_of(each, schema["additionalProperties"], f"{where}.{name}")
            elif known and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f'{where}: unknown field "{name}"'
