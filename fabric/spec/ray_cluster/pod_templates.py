"""Reads what a machine outside Kubernetes can follow of a pod template.

The rest is refused by name, never dropped in silence. With the provider `kuberay` everything stays
in the template, which goes to KubeRay as it is. Elsewhere a template may have one container with
`resources` and `env`. What only names or packages a pod has no effect there, with a warning, so
that a file for KubeRay needs few changes: `metadata`, and of the container `name`, `image`,
`imagePullPolicy` and `ports` (which open nothing).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fedpilot.common.strict_yaml.errors import Path, printable
from fedpilot.common.strict_yaml.wording import quoted, value_in_words

from .findings import Findings
from .schema import DOTS

OF_PODS = ("name", "image", "imagePullPolicy", "ports")
"""Keys of a container that have no effect outside Kubernetes."""
DECIDED_BY_FEDPILOT = frozenset(
    {
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
        "RAY_REDIS_ADDRESS",
        "RAY_TMPDIR",
        "RAY_external_storage_namespace",
        "REDIS_PASSWORD",
        "REDIS_USERNAME",
    }
)
"""Environment variables that fedpilot sets for its machines."""


def first_container(
    template: Mapping[str, object] | str | None, path: Path, findings: Findings
) -> Mapping[str, object]:
    """The first container of a template; empty without one."""
    if template is None or template == DOTS or isinstance(template, str):
        containers: Sequence[object] = ()
    else:
        containers = _containers(template, path, findings)
    at = (*path, "spec", "containers")
    if not containers:
        if findings.kubernetes:
            findings.refuse(at, "no container", "at least one, with an `image`")
        return {}
    if len(containers) > 1 and not findings.kubernetes:
        findings.refuse_for_provider((*at, 1))
    first = containers[0]
    if not isinstance(first, Mapping):
        findings.refuse((*at, 0), value_in_words(first), "a container, which is a section")
        return {}
    if not findings.kubernetes:
        _check_container(first, (*at, 0), findings)
    return first


def _containers(template: Mapping[str, object], path: Path, findings: Findings) -> Sequence[object]:
    if not findings.kubernetes:
        for key in template:
            if key == "metadata":
                text = f"the provider {findings.provider} has no pods; this has no effect"
                findings.warn((*path, key), text)
            elif key != "spec":
                findings.refuse_for_provider((*path, key))
    spec = template.get("spec")
    at: Path = (*path, "spec")
    if not isinstance(spec, Mapping):
        if spec is not None:
            findings.refuse(at, value_in_words(spec), "a section with `containers`")
        return ()
    if not findings.kubernetes:
        for key in spec:
            if key != "containers":
                findings.refuse_for_provider((*at, key))
    containers = spec.get("containers")
    if containers is None or isinstance(containers, list):
        return containers or ()
    findings.refuse((*at, "containers"), value_in_words(containers), "a list of containers")
    return ()


def _check_container(container: Mapping[str, object], path: Path, findings: Findings) -> None:
    without_effect = [key for key in OF_PODS if key in container]
    if without_effect:
        names = ", ".join(f"`{key}`" for key in without_effect)
        text = f"{names}: the provider {findings.provider} starts the Ray that its hosts have"
        findings.warn(path, text)
    for key in container:
        if key not in (*OF_PODS, "resources", "env"):
            findings.refuse_for_provider((*path, key))


def environment_of(
    container: Mapping[str, object], path: Path, findings: Findings
) -> dict[str, str]:
    """The environment variables of the first container of a template at `path`."""
    at: Path = (*path, "spec", "containers", 0, "env")
    given = container.get("env")
    if given is None:
        return {}
    if not isinstance(given, list):
        findings.refuse(at, value_in_words(given), "a list, each with `name` and `value`")
        return {}
    found: dict[str, str] = {}
    for i, each in enumerate(given):
        if not isinstance(each, Mapping) or not isinstance(each.get("name"), str):
            findings.refuse((*at, i), value_in_words(each), "a section with `name` and `value`")
            continue
        if findings.kubernetes:
            if isinstance(each.get("value"), str):
                found[each["name"]] = each["value"]
        elif _is_usable(each, (*at, i), found, findings):
            found[each["name"]] = each.get("value", "")
    return found


def _is_usable(
    variable: Mapping[str, object], at: Path, before: Mapping[str, str], findings: Findings
) -> bool:
    problems = len(findings.problems)
    name, value = str(variable["name"]), variable.get("value", "")
    for key in variable:
        if key not in ("name", "value"):
            findings.refuse_for_provider((*at, key))
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name, re.ASCII):
        allowed = "letters, digits, `_`, `.` and `-`, not a digit first"
        findings.refuse((*at, "name"), f"the name {quoted(name)}", allowed)
    elif name in before:
        findings.refuse((*at, "name"), f"{printable(name)} a second time", "each name once")
    elif name in DECIDED_BY_FEDPILOT:
        found = f"{printable(name)}, which fedpilot sets for its machines"
        findings.refuse((*at, "name"), found, "another variable")
    if not isinstance(value, str):
        findings.refuse((*at, "value"), value_in_words(value), "text, in quotes if need be")
    elif "\0" in value:
        findings.refuse((*at, "value"), "a zero byte", "text")
    elif "$(" in value:
        found = "`$(...)`, which only Kubernetes replaces"
        findings.refuse((*at, "value"), found, "the value itself")
    return len(findings.problems) == problems
