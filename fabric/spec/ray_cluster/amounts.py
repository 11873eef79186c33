"""What a machine of a group offers: amounts and labels, from the places where KubeRay looks.

Amounts come from `resources` of the group, or else from `rayStartParams`; a document may not have
both. CPUs, GPUs and memory that neither names come from the first container: its limits, and for
CPUs its requests. Labels come from `labels` of the group, or else from `rayStartParams`; labels of
a pod are no labels of Ray.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from fedpilot.common.strict_yaml.errors import Path, printable
from fedpilot.common.strict_yaml.wording import quoted, value_in_words

from ...core.resources import Resources
from ...core.selectors import check_label, check_value
from .findings import Findings
from .quantities import IN_WORDS, MOST, quantity_of
from .schema import GroupOfMachines
from .start_parameters import LEAST_OBJECT_STORE

AMOUNTS = {"num-cpus": "CPU", "num-gpus": "GPU", "memory": "memory"}
"""Parameters of `ray start` with an amount, and the resource as Ray calls it."""
WHOLE = frozenset(AMOUNTS.values())
"""Resources of which `ray start` takes whole numbers only; KubeRay rounds them up."""
ACCELERATORS = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}
"""What KubeRay translates besides GPUs."""
LABELS_OF_RAY = ("ray.io/node-id", "ray.io/node-group")
"""Labels that Ray gives to each machine by itself."""
LONGEST_JSON = 10_000
"""In characters, of the parameter `resources`."""


@dataclass(slots=True, kw_only=True)
class _Amounts:
    """The amounts by name as Ray spells them; the first that is found counts."""

    found: dict[str, Fraction] = field(default_factory=dict)

    def add(self, name: str, amount: Fraction) -> None:
        self.found.setdefault(name, Fraction(math.ceil(amount)) if name in WHOLE else amount)


def offered(
    group: GroupOfMachines, container: Mapping[str, object], path: Path, findings: Findings
) -> tuple[Resources, tuple[str, ...]]:
    """The amounts that a machine offers, and the names of those that are declared as 0.

    `container` is the first one of the pod template.
    """
    amounts = _Amounts()
    parameters = {
        name: value
        for name, value in (group.ray_start_params or {}).items()
        if name in AMOUNTS or name == "resources"
    }
    if group.resources:
        for name in parameters:
            at = (*path, "rayStartParams", name)
            findings.refuse(at, "an amount beside `resources` of the group", "only one of the two")
        _of_group(group.resources, (*path, "resources"), amounts, findings)
    else:
        _of_parameters(parameters, (*path, "rayStartParams"), amounts, findings)
    at = (*path, "template", "spec", "containers", 0, "resources")
    limits = _of_container(container.get("resources"), at, amounts, findings)
    _check_pod_memory(group, limits, (*at, "limits"), findings)
    known = {name: float(amount) for name, amount in amounts.found.items()}
    zeros = tuple(sorted(name for name in WHOLE if known.get(name) == 0))
    return Resources.of(known), zeros


def _of_group(
    given: Mapping[str, object], path: Path, amounts: _Amounts, findings: Findings
) -> None:
    for name, value in given.items():
        at, spelled = (*path, name), _as_ray_spells(name)
        amount = quantity_of(value)
        if amount is None:
            findings.refuse(at, value_in_words(value), IN_WORDS)
        elif spelled in amounts.found:
            findings.refuse(at, f"{spelled} a second time", "each resource once")
        elif spelled in WHOLE or _is_custom(spelled, at, findings):
            amounts.add(spelled, amount)


def _of_parameters(
    given: Mapping[str, str], path: Path, amounts: _Amounts, findings: Findings
) -> None:
    for name, value in given.items():
        at = (*path, name)
        if name == "resources":
            _of_json(value, at, amounts, findings)
        elif re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
            amounts.add(AMOUNTS[name], Fraction(int(value)))
        else:
            unit = "bytes" if name == "memory" else "number"
            meant = quantity_of(value) if name == "memory" else None
            nearest = "" if meant is None else str(math.ceil(meant))
            allowed = f"a whole {unit} of at least 0".replace("whole bytes", "number of bytes")
            findings.refuse(at, f"the text {quoted(value)}", allowed, nearest)


def _of_json(text: str, at: Path, amounts: _Amounts, findings: Findings) -> None:
    """Custom resources, as JSON in as many quotes as KubeRay's shell needs."""
    allowed = 'JSON with a number for each custom resource, such as {"fast-disk": 1}'
    try:
        value = json.loads(text.strip().strip("'`")) if len(text) <= LONGEST_JSON else None
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        findings.refuse(at, f"the text {quoted(text)}", allowed)
        return
    for name, each in value.items():
        if isinstance(each, bool | str) or (amount := quantity_of(each)) is None:
            found = f"{value_in_words(each)} for {quoted(name)}"
            findings.refuse(at, found, f"{allowed}, from 0 to {MOST:.0e}")
        elif _is_custom(name, at, findings):
            amounts.add(name, amount)


def _of_container(
    given: object, path: Path, amounts: _Amounts, findings: Findings
) -> dict[str, Fraction]:
    """Add what a container has and nothing else says; its limits."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        findings.refuse(path, value_in_words(given), "a section with limits and requests")
        return {}
    for kind in given:
        at = (*path, str(kind))
        if kind not in ("limits", "requests"):
            if not findings.kubernetes:
                findings.refuse_for_provider(at)
        elif not isinstance(given[kind] or {}, Mapping):
            findings.refuse(at, value_in_words(given[kind]), "a section of quantities")
    limits = _quantities(given.get("limits"), (*path, "limits"), findings)
    requests = _quantities(given.get("requests"), (*path, "requests"), findings)
    for name, amount in limits.items():
        amounts.add(name, amount)
    for name, amount in requests.items():
        if name == "CPU":
            amounts.add(name, amount)
        elif name not in limits and not findings.kubernetes:
            text = f"{name} counts only in `limits`, as in KubeRay; here it has no effect"
            findings.warn((*path, "requests"), text)
    return limits


def _quantities(given: object, path: Path, findings: Findings) -> dict[str, Fraction]:
    """The quantities of a container that Ray counts."""
    found: dict[str, Fraction] = {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        at, spelled = (*path, str(name)), ACCELERATORS.get(name) or _as_ray_spells(str(name))
        amount = quantity_of(value)
        if amount is None:
            findings.refuse(at, value_in_words(value), IN_WORDS)
        elif spelled in WHOLE or name in ACCELERATORS:
            found[spelled] = amount
        elif not findings.kubernetes:
            findings.refuse_for_provider(at)
    return found


def _as_ray_spells(name: str) -> str:
    lower = name.lower()
    if lower.endswith("gpu") or re.search(r"nvidia\.com/mig-\d+g\.\d+gb$", lower):
        return "GPU"
    return {"cpu": "CPU", "memory": "memory"}.get(lower, name)


def _is_custom(name: str, at: Path, findings: Findings) -> bool:
    """Whether a name is one of a custom resource; refuses others."""
    spelled = _as_ray_spells(name)
    if spelled in WHOLE:
        parameter = next(key for key, each in AMOUNTS.items() if each == spelled)
        found = f"the resource {quoted(name)} among custom ones"
        findings.refuse(at, found, f"`{parameter}`, which has it", parameter)
    elif name.lower() == "object_store_memory":
        allowed = "`object-store-memory` in `rayStartParams`"
        findings.refuse(at, f"the resource {quoted(name)}", allowed, "object-store-memory")
    elif not name.strip() or not name.isprintable() or name.startswith("node:"):
        found = f"the resource {quoted(name)}"
        findings.refuse(at, found, "a printable name that does not begin with `node:`")
    else:
        return True
    return False


def _check_pod_memory(
    group: GroupOfMachines, limits: Mapping[str, Fraction], path: Path, findings: Findings
) -> None:
    """Refuse a pod whose memory is smaller than its object store, which is a part of it."""
    given = (group.ray_start_params or {}).get("object-store-memory", "")
    store = int(given) if re.fullmatch(r"[0-9]{1,18}", given, re.ASCII) else LEAST_OBJECT_STORE
    if findings.kubernetes and limits.get("memory", store) < store:
        allowed = f"at least {store} bytes, the size of Ray's object store"
        found = f"{int(limits['memory'])} bytes of memory"
        findings.refuse((*path, "memory"), found, allowed)


def labels_of(group: GroupOfMachines, path: Path, findings: Findings) -> dict[str, str]:
    """The labels that a machine has in Ray."""
    text = (group.ray_start_params or {}).get("labels")
    at: Path = (*path, "rayStartParams", "labels")
    if text is not None and (group.labels or findings.kubernetes):
        findings.refuse(at, "labels in a parameter", "only `labels` of the group")
        return {}
    if group.labels is not None:
        labels, at = dict(group.labels), (*path, "labels")
    else:
        labels = _parsed_labels(text or "", at, findings)
    for name, value in labels.items():
        where = (*at, name) if group.labels is not None else at
        try:
            check_label(name)
            if value:
                check_value(value)
        except ValueError:
            allowed = "letters, digits, '-', '_' and '.', 63 at most"
            findings.refuse(where, f'the label "{printable(name)}={printable(value)}"', allowed)
        if name in LABELS_OF_RAY:
            found = f"the label {quoted(name)}, which Ray gives to each machine"
            findings.refuse(where, found, "another name")
    return labels


def _parsed_labels(text: str, at: Path, findings: Findings) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in filter(None, text.strip().strip("'\"").split(",")):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or "=" in value or name in labels:
            findings.refuse(at, f"the text {quoted(text)}", "each label once, as k=v,k2=v2")
            return {}
        labels[name] = value
    return labels
