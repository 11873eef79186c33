"""Reads the document `RayCluster` from a file or a mapping, or reports all that is wrong with it.

A problem says file, line and key, what was found, what is allowed, and the nearest that exists.
A group without `maxReplicas` never grows beyond its `replicas`, since nothing grows unasked; for
`kuberay` it has KubeRay's default, 2147483647. The document that is kept says these counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from fedpilot.common.strict_yaml.checks import in_file, problem
from fedpilot.common.strict_yaml.errors import BadFile, Path, dotted, printable
from fedpilot.common.strict_yaml.reading import DEEPEST, read, text_of
from fedpilot.common.strict_yaml.schema_problems import Located, problems_of
from fedpilot.common.strict_yaml.wording import value_in_words

from ...core.ray_clusters.declaration import (
    HEAD,
    HOST_TIMEOUT_S,
    DeclaredRayCluster,
    FaultTolerance,
    GroupName,
    MachineGroup,
    MachineName,
    MachineTemplate,
    RayClusterName,
    UpgradeKind,
)
from .amounts import labels_of, offered
from .document import RayClusterDocument, RayClusterWarning
from .findings import Findings
from .pod_templates import environment_of, first_container
from .providers import check_document, groups_of, ray_version_of
from .schema import (
    MOST_REPLICAS,
    ClusterSpec,
    GroupOfMachines,
    RayClusterSection,
    WorkerGroup,
)
from .start_parameters import kept_parameters

LARGEST = 2**20
"""In bytes; Kubernetes takes no larger resource."""
MOST_VALUES = 100_000
"""Of a document that is a mapping."""


def read_ray_cluster(path: FilePath, name: str = "") -> RayClusterDocument:
    """The Ray cluster in a file. Raises BadFile, with the line of each problem.

    `name` replaces the document's; without either, the file's name counts, without its ending.
    """
    file = printable(str(path), 200)
    read_as = read(text_of(path, LARGEST), lambda line: f"{file}:{line}")
    if read_as.problems:
        raise BadFile([each for _, each in read_as.problems])
    values = {} if read_as.value is None else read_as.value
    found, problems, places = _interpreted(values, name, path.stem)
    if found is None:
        raise BadFile(in_file(problems, read_as.lines, file, values))
    lines = [_line_of(place, read_as.lines) for place in places]
    located = sorted(zip(lines, found.warnings, strict=True), key=lambda each: each[0])
    warnings = tuple(replace(each, where=f"{file}:{line}") for line, each in located)
    return replace(found, warnings=warnings)


def ray_cluster_of(document: Mapping[str, Any], name: str = "") -> RayClusterDocument:
    """The Ray cluster in a document; `name` replaces the document's. Raises BadFile."""
    found, problems, _ = _interpreted(document, name)
    if found is None:
        raise BadFile([each for _, each in problems])
    return found


def _line_of(path: Path, lines: Mapping[Path, int]) -> int:
    above = (path[:length] for length in range(len(path), -1, -1))
    return next((lines[part] for part in above if part in lines), 1)


def _interpreted(
    document: object, name: str, otherwise: str = ""
) -> tuple[RayClusterDocument | None, Sequence[Located], Sequence[Path]]:
    """The cluster, or all that is wrong with it; and the places of its warnings."""
    copying = _Copying()
    values = copying.copy(document)
    if copying.problems:
        return None, copying.problems, ()
    try:
        section = RayClusterSection.model_validate(values)
    except ValidationError as error:
        return None, problems_of(RayClusterSection, error, values), ()
    findings = Findings(provider=section.spec.fedpilot.provider)
    called = name or section.metadata.name or otherwise
    check_document(section, called, findings)
    declared = _declared(section.spec, called, findings)
    declared = replace(declared, namespace=section.metadata.namespace or "")
    if findings.problems:
        return None, findings.problems, ()
    kept = section.model_dump(mode="json", exclude_unset=True)
    kept.setdefault("metadata", {})["name"] = called
    if not findings.kubernetes:
        _forget_passwords(kept["spec"])
    groups = kept["spec"].get("workerGroupSpecs", ())
    for group, counted in zip(groups, declared.workers, strict=True):
        group["replicas"] = counted.replicas
        group["minReplicas"], group["maxReplicas"] = counted.least, counted.most
    warnings = [RayClusterWarning(key=dotted(at), text=text) for at, text in findings.warnings]
    found = RayClusterDocument(declared=declared, document=kept, warnings=tuple(warnings))
    return found, (), [at for at, _ in findings.warnings]


def _forget_passwords(spec: dict[str, Any]) -> None:
    """Remove passwords that have no effect: documents are stored and shown."""
    for group in (spec.get("headGroupSpec"), *spec.get("workerGroupSpecs", ())):
        if group is not None:
            (group.get("rayStartParams") or {}).pop("redis-password", None)


@dataclass(slots=True)
class _Copying:
    """Copies values as JSON has them; what JSON lacks becomes a problem."""

    problems: list[Located] = field(default_factory=list)
    values: int = 0
    """How many there were so far: lists in lists could make any number of a few."""

    def copy(self, value: object, path: Path = ()) -> Any:
        self.values += 1
        if len(path) > DEEPEST or self.values > MOST_VALUES:
            deep = f"more than {DEEPEST} levels" if len(path) > DEEPEST else "too many values"
            allowed = f"at most {DEEPEST} levels and {MOST_VALUES} values"
            raise BadFile([problem(path[:2], deep, allowed)[1]])
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int) and abs(value) < 2**63:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if isinstance(value, list | tuple):
            return [self.copy(each, (*path, i)) for i, each in enumerate(value)]
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    found = f"{value_in_words(key)} as a key"
                    self.problems.append(problem(path, found, "text as a key"))
            named = {key: each for key, each in value.items() if isinstance(key, str)}
            return {key: self.copy(each, (*path, key)) for key, each in named.items()}
        allowed = "text, a finite number below 2^63, true, false, null, a list or a section"
        self.problems.append(problem(path, value_in_words(value), allowed))
        return None


# -- what the sections declare ---------------------------------------------------------------------


def _declared(spec: ClusterSpec, name: str, findings: Findings) -> DeclaredRayCluster:
    """The cluster; of use only if nothing was wrong."""
    ours = spec.fedpilot
    alone = MachineGroup(name=HEAD, replicas=0, most=0)  # fedpilot starts no head of `existing`
    mine = [] if findings.provider == "existing" else list(groups_of(spec))
    groups = [_group(spec, group, path, findings) for path, group in mine]
    if findings.provider == "existing" or spec.head_group_spec is None:
        groups.insert(0, alone)
    strategy = spec.upgrade_strategy.type if spec.upgrade_strategy is not None else None
    usual = UpgradeKind.NONE if findings.kubernetes else UpgradeKind.ROLLING
    return DeclaredRayCluster(
        name=RayClusterName(name),
        provider=findings.provider,
        head=groups[0],
        workers=tuple(groups[1:]),
        address=ours.address or "",
        token_file=ours.token_file or "",
        python=ours.python or "",
        ssh_config=ours.ssh_config or "",
        host_timeout_s=_first(ours.host_timeout_seconds, HOST_TIMEOUT_S),
        kube_context=ours.kube_context or "",
        fault_tolerance=_fault_tolerance(spec),
        suspended=spec.suspend,
        in_tree_autoscaling=spec.enable_in_tree_autoscaling,
        max_unavailable=ours.max_unavailable or 1,
        upgrade=usual if strategy is None else UpgradeKind(strategy),
    )


def _group(
    spec: ClusterSpec, group: GroupOfMachines, path: Path, findings: Findings
) -> MachineGroup:
    ours, its = spec.fedpilot, group.fedpilot
    idle, drain = (its.idle_seconds, its.drain_seconds) if its is not None else (None, None)
    options = spec.autoscaler_options
    usual = MachineGroup(name=HEAD)
    common = MachineGroup(
        name=HEAD,
        replicas=1,
        least=1,
        template=_template(spec, group, path, findings),
        hosts=tuple((its.hosts if its is not None else None) or ours.hosts or ()),
        idle_s=_first(
            idle,
            group.idle_timeout_seconds if isinstance(group, WorkerGroup) else None,
            ours.idle_seconds,
            options.idle_timeout_seconds if options is not None else None,
            usual.idle_s,
        ),
        drain_s=_first(drain, ours.drain_seconds, usual.drain_s),
        cost=its.cost if its is not None else usual.cost,
    )
    if not isinstance(group, WorkerGroup):
        return common
    least = group.min_replicas or 0
    replicas = least if group.replicas is None else group.replicas
    unlimited = MOST_REPLICAS if findings.kubernetes else replicas
    strategy = group.scale_strategy
    return replace(
        common,
        name=GroupName(group.group_name),
        replicas=replicas,
        least=least,
        most=unlimited if group.max_replicas is None else group.max_replicas,
        leaving=tuple(map(MachineName, strategy.workers_to_delete if strategy else ())),
        suspended=group.suspend,
        hosts_per_replica=group.num_of_hosts,
    )


def _first(*seconds: float | None) -> float:
    """The first that is given."""
    return next(float(each) for each in seconds if each is not None)


def _template(
    spec: ClusterSpec, group: GroupOfMachines, path: Path, findings: Findings
) -> MachineTemplate:
    at: Path = (*path, "template")
    container = first_container(group.template, at, findings)
    resources, zeros = offered(group, container, path, findings)
    return MachineTemplate(
        ray_version=ray_version_of(spec, findings),
        parameters=kept_parameters(
            group.ray_start_params or {},
            (*path, "rayStartParams"),
            findings,
            of_head=not isinstance(group, WorkerGroup),
            redis=spec.gcs_fault_tolerance_options is not None,
        ),
        resources=resources,
        zeros=zeros,
        labels=labels_of(group, path, findings),
        environment=environment_of(container, at, findings),
        pod=group.template if findings.kubernetes and isinstance(group.template, dict) else {},
    )


def _fault_tolerance(spec: ClusterSpec) -> FaultTolerance | None:
    options = spec.gcs_fault_tolerance_options
    if options is None:
        return None
    user = options.redis_username
    return FaultTolerance(
        redis_address=options.redis_address or "",
        username=(user.value if user is not None else None) or "",
        password_file=spec.fedpilot.redis_password_file or "",
        namespace=options.external_storage_namespace or "",
    )
