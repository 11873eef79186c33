"""Rules of a whole document: which keys a provider can follow, and names, hosts and counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pydantic.alias_generators import to_camel

from fedpilot.common.strict_yaml.errors import Path, dotted
from fedpilot.common.strict_yaml.wording import quoted, value_in_words

from ...core.ray_clusters.declaration import HEAD
from ...core.selectors import check_value
from .findings import Findings
from .schema import (
    MOST_REPLICAS,
    ClusterSpec,
    GroupOfMachines,
    RayClusterPart,
    RayClusterSection,
    WorkerGroup,
)

OLDEST_RAY = (2, 52, 0)
"""The oldest Ray that fedpilot starts."""
LONGEST_NAME, LONGEST_IN_KUBERAY = 63, 53
NAME_IN_WORDS = "a DNS label: lower-case letters, digits and `-`, a letter or digit at both ends"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_HOST = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}@)?[A-Za-z0-9](?:[A-Za-z0-9_.:-]{0,251}[A-Za-z0-9])?"
)
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})[A-Za-z0-9.+-]{0,40}")

ONLY_KUBERAY: Mapping[str, Sequence[str]] = {
    "metadata": ("namespace", "labels", "annotations"),
    "spec": (
        "auth_options",
        "managed_by",
        "head_service_annotations",
        "history_server_options",
        "network_policy",
        "tls_options",
    ),
    "head": ("head_service", "enable_ingress", "ingress_options"),
    "worker": ("priority",),
    "redis": ("redis_password", "storage"),
    "autoscaler": (
        "upscaling_mode",
        "version",
        "resources",
        "image",
        "image_pull_policy",
        "security_context",
        "env",
        "env_from",
        "volume_mounts",
        "command",
        "args",
    ),
}
"""Keys by section, as fields of the schema."""
ABLE: Mapping[str, Sequence[str]] = {
    "hosts": ("ssh", "fake"),
    "python": ("ssh",),
    "ssh_config": ("ssh",),
    "host_timeout_seconds": ("ssh", "fake"),
    "address": ("existing",),
    "token_file": ("existing",),
    "kube_context": ("kuberay",),
    "max_unavailable": ("local", "ssh", "fake"),
    "redis_password_file": ("local", "ssh", "fake"),
    "idle_seconds": ("local", "ssh", "fake", "kuberay"),
    "drain_seconds": ("local", "ssh", "fake", "kuberay"),
}
"""The providers that follow a key of `spec.fedpilot`; the keys of groups are among them."""

_SPEC: Path = ("spec",)
_FEDPILOT: Path = ("spec", "fedpilot")


def check_document(section: RayClusterSection, name: str, findings: Findings) -> None:
    """Find all that is wrong with a document beyond the form of its keys and its templates."""
    check_name(name, findings)
    spec = section.spec
    if findings.provider == "existing":
        _check_existing(section, findings)
        return
    if spec.head_group_spec is None:
        findings.refuse((*_SPEC, "headGroupSpec"), "it is missing", "the section of the head")
    if not findings.kubernetes:
        _check_without_kubernetes(section, findings)
    _check_fedpilot(section, findings)
    _check_version(spec, findings)
    _check_redis(spec, findings)
    _check_idle(spec, findings)
    _check_workers(spec, findings)


def check_name(name: str, findings: Findings) -> None:
    at = ("metadata", "name")
    if not name:
        findings.refuse(at, "it is missing", NAME_IN_WORDS)
        return
    longest = LONGEST_IN_KUBERAY if findings.kubernetes else LONGEST_NAME
    if len(name) > longest:
        findings.refuse(at, f"{len(name)} characters", f"at most {longest}")
    elif not _NAME.fullmatch(name):
        nearest = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
        findings.refuse(at, f"the name {quoted(name)}", NAME_IN_WORDS, nearest)
    elif findings.kubernetes and name[0].isdigit():
        findings.refuse(at, f"the name {quoted(name)}", "a letter first, as KubeRay wants it")


def groups_of(spec: ClusterSpec) -> Iterator[tuple[Path, GroupOfMachines]]:
    """All groups with their places in the document, the head's first."""
    if spec.head_group_spec is not None:
        yield (*_SPEC, "headGroupSpec"), spec.head_group_spec
    for i, group in enumerate(spec.worker_group_specs):
        yield (*_SPEC, "workerGroupSpecs", i), group


def _given(part: RayClusterPart) -> list[str]:
    """The fields that a document has, in the order of the schema."""
    names = [name for name in type(part).model_fields if name in part.model_fields_set]
    return [name for name in names if getattr(part, name) is not None]


def _check_existing(section: RayClusterSection, findings: Findings) -> None:
    for field in _given(section.metadata):
        if field != "name":
            findings.refuse_for_provider(("metadata", to_camel(field)))
    for field in _given(section.spec):
        if field != "fedpilot" and getattr(section.spec, field) not in ([], False):
            able = "local, ssh or kuberay"
            findings.refuse_for_provider((*_SPEC, to_camel(field)), able)
    for field in _given(section.spec.fedpilot):
        if field not in ("provider", "address", "token_file"):
            findings.refuse_for_provider((*_FEDPILOT, to_camel(field)), _listed(ABLE[field]))
    address = section.spec.fedpilot.address
    at, allowed = (*_FEDPILOT, "address"), "the `host:port` of a Ray cluster, or `auto`"
    if address is None:
        findings.refuse(at, "it is missing", allowed)
    elif address != "auto":
        found = _ADDRESS.fullmatch(address)
        if found is None or not 0 < int(found[1]) < 65_536:
            findings.refuse(at, f"the text {quoted(address)}", allowed)
    file = section.spec.fedpilot.token_file
    if file is not None and not is_absolute_file(file):
        at, allowed = (*_FEDPILOT, "tokenFile"), "an absolute path, such as /etc/..."
        findings.refuse(at, f"the text {quoted(file)}", allowed)


def _check_without_kubernetes(section: RayClusterSection, findings: Findings) -> None:
    """Refuse what only Kubernetes can do."""
    spec = section.spec
    parts: list[tuple[Path, RayClusterPart | None, str]] = [
        (("metadata",), section.metadata, "metadata"),
        (_SPEC, spec, "spec"),
        ((*_SPEC, "headGroupSpec"), spec.head_group_spec, "head"),
        ((*_SPEC, "gcsFaultToleranceOptions"), spec.gcs_fault_tolerance_options, "redis"),
        ((*_SPEC, "autoscalerOptions"), spec.autoscaler_options, "autoscaler"),
    ]
    workers = enumerate(spec.worker_group_specs)
    parts += [((*_SPEC, "workerGroupSpecs", i), each, "worker") for i, each in workers]
    for path, part, kind in parts:
        for field in _given(part) if part is not None else ():
            if (kind, field) == ("redis", "redis_password"):
                found = "a key for Kubernetes alone, which keeps secrets"
                allowed = "`spec.fedpilot.redisPasswordFile`, which names a file with the password"
                findings.refuse((*path, to_camel(field)), found, allowed)
            elif field in ONLY_KUBERAY[kind]:
                findings.refuse_for_provider((*path, to_camel(field)))
    for i, group in enumerate(spec.worker_group_specs):
        if group.num_of_hosts != 1:
            findings.refuse_for_provider((*_SPEC, "workerGroupSpecs", i, "numOfHosts"))
    head = spec.head_group_spec
    if head is not None and head.service_type is not None:
        text = f"the provider {findings.provider} has no services; this has no effect"
        findings.warn((*_SPEC, "headGroupSpec", "serviceType"), text)


def _check_fedpilot(section: RayClusterSection, findings: Findings) -> None:
    """Check hosts, and refuse what another provider follows."""
    spec = section.spec
    parts: list[tuple[Path, RayClusterPart, list[str] | None]] = [
        (_FEDPILOT, spec.fedpilot, spec.fedpilot.hosts)
    ]
    for path, group in groups_of(spec):
        if group.fedpilot is not None:
            parts.append(((*path, "fedpilot"), group.fedpilot, group.fedpilot.hosts))
    for path, part, hosts in parts:
        for field in _given(part):
            able = ABLE.get(field, (findings.provider,))
            if findings.provider not in able:
                findings.refuse_for_provider((*path, to_camel(field)), _listed(able))
        _check_hosts(hosts, (*path, "hosts"), findings)
    if findings.provider != "ssh":
        return
    for field in ("python", "ssh_config"):
        file = getattr(spec.fedpilot, field)
        if file is not None and not is_absolute_file(file):
            found, allowed = f"the text {quoted(file)}", "an absolute path"
            findings.refuse((*_FEDPILOT, to_camel(field)), found, allowed)
    if spec.fedpilot.hosts:
        return
    for path, group in groups_of(spec):
        if group.fedpilot is None or group.fedpilot.hosts is None:
            allowed = "hosts of the group, or `spec.fedpilot.hosts`, for the provider ssh"
            findings.refuse((*path, "fedpilot", "hosts"), "it is missing", allowed)


def is_absolute_file(text: str) -> bool:
    """Whether a text may be the path of a file on this computer or another."""
    return text.startswith("/") and text.isprintable()


def _listed(providers: Sequence[str]) -> str:
    return " or ".join(each for each in providers if each != "fake") or "fake"


def _check_hosts(hosts: list[str] | None, path: Path, findings: Findings) -> None:
    if hosts == []:
        findings.refuse(path, "an empty list", "at least one host")
    seen: set[str] = set()
    for i, host in enumerate(hosts or ()):
        at, same = (*path, i), host.rpartition("@")[2].lower()
        if not _HOST.fullmatch(host):
            findings.refuse(at, f"the text {quoted(host)}", "`host` or `user@host`")
        elif same in seen:
            findings.refuse(at, f"{quoted(host)} a second time", "each host once")
        seen.add(same)


def _check_version(spec: ClusterSpec, findings: Findings) -> None:
    version = spec.ray_version
    if version is None or findings.kubernetes:
        return
    at = (*_SPEC, "rayVersion")
    if not _VERSION.fullmatch(version):
        findings.refuse(at, f"the text {quoted(version)}", "a version such as 2.60.0")
    elif ray_version_of(spec, findings) == "":
        oldest = ".".join(map(str, OLDEST_RAY))
        text = f"fedpilot starts Ray {oldest} and later; machines get the Ray that their hosts have"
        findings.warn(at, text)


def ray_version_of(spec: ClusterSpec, findings: Findings) -> str:
    """The version that machines start with; empty for the one that the provider has."""
    version = spec.ray_version or ""
    found = _VERSION.fullmatch(version)
    if findings.kubernetes or found is None:
        return version
    return "" if tuple(map(int, found.groups())) < OLDEST_RAY else version


def _check_redis(spec: ClusterSpec, findings: Findings) -> None:
    options, at = spec.gcs_fault_tolerance_options, (*_SPEC, "gcsFaultToleranceOptions")
    file = spec.fedpilot.redis_password_file
    if file is not None and findings.provider in ABLE["redis_password_file"]:
        where = (*_FEDPILOT, "redisPasswordFile")
        if options is None:
            allowed = f"no file, or the section `{dotted(at)}`"
            findings.refuse(where, "a password for no Redis", allowed)
        if not is_absolute_file(file):
            findings.refuse(where, f"the text {quoted(file)}", "an absolute path, such as /etc/...")
    if options is None:
        return
    address = options.redis_address
    if address is not None and (not address or not address.isprintable() or " " in address):
        allowed = "`host:port`, or a URL that begins with redis:// or rediss://"
        findings.refuse((*at, "redisAddress"), f"the text {quoted(address)}", allowed)
    elif address is not None and "@" in address:
        allowed = "an address alone; user and password have keys of their own"
        findings.refuse((*at, "redisAddress"), "an address with a user or a password", allowed)
    if findings.kubernetes:
        if options.redis_password is not None and options.redis_password.value is not None:
            text = "the document holds a password; `valueFrom` names a secret instead"
            findings.warn((*at, "redisPassword", "value"), text)
        return
    prefix = options.external_storage_namespace
    if prefix is not None and not _PREFIX.fullmatch(prefix):
        allowed = "letters, digits, `-`, `_` and `.`, 128 at most"
        findings.refuse((*at, "externalStorageNamespace"), f"the text {quoted(prefix)}", allowed)
    if options.backend == "rocksdb":
        findings.refuse_for_provider((*at, "backend"))
    if options.redis_username is not None and options.redis_username.value_from is not None:
        findings.refuse_for_provider((*at, "redisUsername", "valueFrom"))


def _check_idle(spec: ClusterSpec, findings: Findings) -> None:
    """Refuse two spellings of one time."""
    allowed = "only one of the two, which mean the same"
    options = spec.autoscaler_options
    theirs = options.idle_timeout_seconds if options is not None else None
    if None not in (theirs, spec.fedpilot.idle_seconds):
        at: Path = (*_SPEC, "autoscalerOptions", "idleTimeoutSeconds")
        findings.refuse(at, "it beside `spec.fedpilot.idleSeconds`", allowed)
    for i, group in enumerate(spec.worker_group_specs):
        ours = group.fedpilot.idle_seconds if group.fedpilot is not None else None
        if None not in (ours, group.idle_timeout_seconds):
            at = (*_SPEC, "workerGroupSpecs", i, "idleTimeoutSeconds")
            findings.refuse(at, "it beside `fedpilot.idleSeconds`", allowed)


def _check_workers(spec: ClusterSpec, findings: Findings) -> None:
    head = spec.head_group_spec
    if head is not None and head.replicas is not None:
        at: Path = (*_SPEC, "headGroupSpec", "replicas")
        if head.replicas != 1:
            findings.refuse(at, value_in_words(head.replicas), "1, or no such key")
        else:
            findings.warn(at, "a cluster has one head; this has no effect")
    first: dict[str, int] = {}
    for i, group in enumerate(spec.worker_group_specs):
        at = (*_SPEC, "workerGroupSpecs", i)
        name = group.group_name
        try:
            check_value(name)
        except ValueError:
            allowed = (
                "letters, digits, `-`, `_` and `.`, 63 at most, a letter or digit at both ends"
            )
            findings.refuse((*at, "groupName"), f"the name {quoted(name)}", allowed)
        if name.lower() == HEAD:
            allowed = "another name: it is the group of the head"
            findings.refuse((*at, "groupName"), f"the name {quoted(name)}", allowed)
        if name in first:
            allowed = f"a name that `spec.workerGroupSpecs[{first[name]}]` does not have"
            findings.refuse((*at, "groupName"), f"{quoted(name)} a second time", allowed)
        first.setdefault(name, i)
        if group.suspend and spec.enable_in_tree_autoscaling:
            found = "a suspended group beside Ray's own autoscaler, which would fill it again"
            allowed = "false, or `spec.enableInTreeAutoscaling: false`"
            findings.refuse((*at, "suspend"), found, allowed)
        _check_counts(group, at, findings)


def _check_counts(group: WorkerGroup, at: Path, findings: Findings) -> None:
    least = group.min_replicas or 0
    most = MOST_REPLICAS if group.max_replicas is None else group.max_replicas
    if least > most:
        found = f"{least}, more than `maxReplicas`"
        findings.refuse((*at, "minReplicas"), found, f"a whole number from 0 to {most}")
    elif group.replicas is not None and not least <= group.replicas <= most:
        allowed = f"a whole number from {least} (`minReplicas`)"
        allowed += "" if group.max_replicas is None else f" to {most} (`maxReplicas`)"
        findings.refuse((*at, "replicas"), value_in_words(group.replicas), allowed)
    names = group.scale_strategy.workers_to_delete if group.scale_strategy is not None else []
    for i, name in enumerate(names):
        place = (*at, "scaleStrategy", "workersToDelete", i)
        if name in names[:i]:
            findings.refuse(place, f"{quoted(name)} a second time", "each machine once")
        elif not name.isprintable() or len(name) > 253:
            findings.refuse(place, f"the name {quoted(name)}", "the name of a machine")
