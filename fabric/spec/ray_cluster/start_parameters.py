"""The parameters of `ray start` (Ray 2.60), and what a document may do with each.

A document says what a machine offers and may tune Ray. fedpilot keeps the addresses, names and
folders of a machine to itself, since it starts several machines on a host and must find them again.
In a pod of Kubernetes, KubeRay computes these, and a machine shares neither folders nor ports.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from fedpilot.common.strict_yaml.errors import Path
from fedpilot.common.strict_yaml.wording import quoted

from .findings import Findings

LEAST_OBJECT_STORE = 75 * 2**20
"""In bytes; Ray refuses to start with less."""


class ParameterKind(StrEnum):
    """What a parameter takes, in words."""

    WHOLE = "a whole number of at least 0"
    NUMBER = "a number of at least 0"
    PORT = "a port from 0 to 65535"
    CLIENT_PORT = "a port from 1024 to 65535"
    SIZE = f"whole bytes, at least {LEAST_OBJECT_STORE} (75 MiB)"
    TRUTH = "true or false"
    STYLE = "auto, record or pretty"
    COLOR = "auto, true or false"
    TEXT = "printable text"


class Treatment(StrEnum):
    """What becomes of a parameter outside Kubernetes."""

    KEPT = "kept"
    OFFERED = "an amount or labels: a field of the machine's template"
    MACHINES_OWN = "kept, but no port that several workers of one host would share"
    IGNORED = "without effect: fedpilot computes it"
    REFUSED = "refused, with a reason"


@dataclass(frozen=True, slots=True)
class StartParameter:
    """One parameter of `ray start`."""

    kind: ParameterKind
    treatment: Treatment = Treatment.KEPT
    instead: str = ""
    """Why it is refused, or what to write instead."""
    of_heads: bool = False
    """Whether only heads have it."""
    flag: bool = False
    """Whether it is given without a value, or not at all."""


_K, _T = ParameterKind, Treatment
_FOLDER = "no folders or files: fedpilot gives each machine its own"
_CHOSEN = "none: fedpilot chooses it"
_OPEN = "none: it would let other computers run code here"
_REDIS = "`spec.gcsFaultToleranceOptions`"

PARAMETERS: Mapping[str, StartParameter] = {
    "num-cpus": StartParameter(_K.WHOLE, _T.OFFERED),
    "num-gpus": StartParameter(_K.WHOLE, _T.OFFERED),
    "memory": StartParameter(_K.WHOLE, _T.OFFERED),
    "resources": StartParameter(_K.TEXT, _T.OFFERED),
    "labels": StartParameter(_K.TEXT, _T.OFFERED),
    "object-store-memory": StartParameter(_K.SIZE),
    "port": StartParameter(_K.PORT, of_heads=True),
    "ray-client-server-port": StartParameter(_K.CLIENT_PORT, of_heads=True),
    "include-dashboard": StartParameter(_K.TRUTH, of_heads=True),
    "dashboard-host": StartParameter(_K.TEXT, of_heads=True),
    "dashboard-port": StartParameter(_K.PORT, of_heads=True),
    "proxy-server-url": StartParameter(_K.TEXT, of_heads=True),
    "object-manager-port": StartParameter(_K.PORT, _T.MACHINES_OWN),
    "dashboard-agent-listen-port": StartParameter(_K.PORT, _T.MACHINES_OWN),
    "dashboard-agent-grpc-port": StartParameter(_K.PORT, _T.MACHINES_OWN),
    "runtime-env-agent-port": StartParameter(_K.PORT, _T.MACHINES_OWN),
    "metrics-export-port": StartParameter(_K.PORT, _T.MACHINES_OWN),
    "min-worker-port": StartParameter(_K.PORT),
    "max-worker-port": StartParameter(_K.PORT),
    "worker-port-list": StartParameter(_K.TEXT),
    "no-redirect-output": StartParameter(_K.TRUTH, flag=True),
    "disable-usage-stats": StartParameter(_K.TRUTH, flag=True),
    "include-log-monitor": StartParameter(_K.TRUTH),
    "enable-object-reconstruction": StartParameter(_K.TRUTH, flag=True),
    "enable-resource-isolation": StartParameter(_K.TRUTH, flag=True),
    "system-reserved-cpu": StartParameter(_K.NUMBER),
    "system-reserved-memory": StartParameter(_K.WHOLE),
    "tracing-startup-hook": StartParameter(_K.TEXT),
    "log-style": StartParameter(_K.STYLE),
    "log-color": StartParameter(_K.COLOR),
    "verbose": StartParameter(_K.WHOLE),
    "block": StartParameter(_K.TRUTH, _T.IGNORED, flag=True),
    "node-ip-address": StartParameter(_K.TEXT, _T.IGNORED),
    "redis-password": StartParameter(_K.TEXT, _T.IGNORED),
    "address": StartParameter(
        _K.TEXT, _T.REFUSED, "none: a machine joins its own cluster; `existing` names another"
    ),
    "head": StartParameter(
        _K.TRUTH, _T.REFUSED, "none: `headGroupSpec` is the only head", flag=True
    ),
    "node-manager-port": StartParameter(_K.PORT, _T.REFUSED, _CHOSEN),
    "node-name": StartParameter(_K.TEXT, _T.REFUSED, _CHOSEN),
    "no-monitor": StartParameter(
        _K.TRUTH, _T.REFUSED, "`spec.enableInTreeAutoscaling`, which decides it", flag=True
    ),
    "redis-username": StartParameter(_K.TEXT, _T.REFUSED, _REDIS),
    "redis-shard-ports": StartParameter(_K.TEXT, _T.REFUSED, _REDIS, of_heads=True),
    "system-config": StartParameter(
        _K.TEXT, _T.REFUSED, "none: it can move folders; `env` has RAY_... for single settings"
    ),
    "temp-dir": StartParameter(_K.TEXT, _T.REFUSED, _FOLDER),
    "plasma-directory": StartParameter(_K.TEXT, _T.REFUSED, _FOLDER),
    "object-spilling-directory": StartParameter(_K.TEXT, _T.REFUSED, _FOLDER),
    "autoscaling-config": StartParameter(_K.TEXT, _T.REFUSED, _FOLDER),
    "labels-file": StartParameter(_K.TEXT, _T.REFUSED, "`labels`, in the document itself"),
    "cgroup-path": StartParameter(_K.TEXT, _T.REFUSED, _FOLDER),
    "ray-debugger-external": StartParameter(_K.TRUTH, _T.REFUSED, _OPEN, flag=True),
}
"""By name, without dashes in front; hidden ones too."""

OF_EARLIER_RAYS: Mapping[str, tuple[str, str]] = {
    "gcs-server-port": ("`port` of the head, which is the same", "port"),
    "redis-port": ("`port` of the head, which is the same", "port"),
    "storage": (_FOLDER, ""),
}
"""What to write instead, and the nearest parameter that Ray 2.60 has."""


def kept_parameters(
    given: Mapping[str, str], path: Path, findings: Findings, *, of_head: bool, redis: bool = False
) -> dict[str, str]:
    """The parameters that a machine starts with, without amounts and labels.

    `redis` says that the document has options for GCS fault tolerance.
    """
    kept = {}
    for name, value in given.items():
        at = (*path, name)
        known = PARAMETERS.get(name)
        if known is None:
            _refuse_unknown(name, at, findings)
            continue
        if known.of_heads and not of_head:
            findings.refuse(at, "a parameter that only a head has", "it in `headGroupSpec`")
            continue
        treatment = _T.KEPT if findings.kubernetes else known.treatment
        if treatment is _T.REFUSED:
            findings.refuse(at, "a parameter that fedpilot must decide", known.instead)
            continue
        if name == "redis-password" and redis:
            findings.refuse(at, "a password", _password_of_redis(findings))
            continue
        if treatment is _T.IGNORED:
            findings.warn(at, "fedpilot computes it; the document's value has no effect")
            continue
        if known.treatment is _T.OFFERED:
            continue  # `amounts` reads it
        if not _is_of(known.kind, value):
            findings.refuse(at, f"the text {quoted(value)}", known.kind)
        elif name == "dashboard-host" and not (findings.kubernetes or _is_loopback(value)):
            allowed = "a host of this computer alone: localhost, 127.0.0.1 or ::1"
            found = f"the text {quoted(value)}, which lets other computers run code here"
            findings.refuse(at, found, allowed, "127.0.0.1")
        elif _would_collide(treatment, value, findings, of_head):
            findings.refuse(at, f"the port {value} for each of several workers on one host", "0")
        else:
            kept[name] = value
    return kept


def start_arguments(parameters: Mapping[str, str]) -> list[str]:
    """The arguments of `ray start` for parameters that a document may have."""
    arguments = []
    for name in sorted(parameters):
        if not PARAMETERS[name].flag:
            arguments.append(f"--{name}={parameters[name]}")
        elif parameters[name].lower() == "true":
            arguments.append(f"--{name}")
    return arguments


def _refuse_unknown(name: str, at: Path, findings: Findings) -> None:
    if name in OF_EARLIER_RAYS:
        instead, nearest = OF_EARLIER_RAYS[name]
        findings.refuse(at, "a parameter that Ray 2.60 does not have", instead, nearest)
    else:
        findings.refuse_unknown(at, "a parameter that `ray start` does not have", PARAMETERS)


def _password_of_redis(findings: Findings) -> str:
    if findings.kubernetes:
        return "`spec.gcsFaultToleranceOptions.redisPassword`"
    return "`spec.fedpilot.redisPasswordFile`, which names a file with it"


def _would_collide(treatment: Treatment, value: str, findings: Findings, of_head: bool) -> bool:
    apart = of_head or findings.provider == "ssh"
    return treatment is _T.MACHINES_OWN and int(value) != 0 and not apart


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_of(kind: ParameterKind, value: str) -> bool:
    if kind is _K.TRUTH:
        return value.lower() in ("true", "false")
    if kind is _K.STYLE:
        return value in ("auto", "record", "pretty")
    if kind is _K.COLOR:
        return value in ("auto", "true", "false")
    if kind is _K.TEXT:
        return bool(value) and value.isprintable()
    if kind is _K.NUMBER:
        return number_of(value) is not None
    if not re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        return False
    least, most = {
        _K.PORT: (0, 65_535),
        _K.CLIENT_PORT: (1024, 65_535),
        _K.SIZE: (LEAST_OBJECT_STORE, 10**18),
    }.get(kind, (0, 10**18))
    return least <= int(value) <= most


def number_of(value: str) -> float | None:
    """The number of at least 0 that a text spells in decimals; None if it is none."""
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", value, re.ASCII):
        return None
    number = float(value)
    return number if math.isfinite(number) else None
