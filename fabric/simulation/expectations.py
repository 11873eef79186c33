"""Compares the answer to a case with what the case expects; each difference is a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .case_schema import (
    Case,
    ClusterExpect,
    FairshareCase,
    FairshareExpect,
    SettleCase,
    SettleExpect,
    TimelineCase,
    VirtualClusterCase,
)

SLACK = 1e-6
"""How far amounts may differ by rounding."""


def differences(case: Case, answer: Mapping[str, Any]) -> list[str]:
    """What the answer lacks; empty if the case expects nothing else."""
    match case:
        case SettleCase():
            found = [*_unsettled(answer), *_settle(case.expect, answer)]
        case FairshareCase():
            found = list(_fairshare(case.expect, answer))
        case TimelineCase():
            found = []
            for step, told in zip(case.steps, answer["steps"], strict=True):
                at = f"at {step.at_s:.15g} s: "
                found += [at + each for each in (*_unsettled(told), *_settle(step.expect, told))]
        case VirtualClusterCase():
            found = []
            for cluster_step, told in zip(case.steps, answer["steps"], strict=True):
                at = f"at {cluster_step.at_s:.15g} s: "
                found += [at + each for each in _clusters(cluster_step.expect, told)]
        case _:
            found = []
    return found


def _unsettled(answer: Mapping[str, Any]) -> Iterator[str]:
    if not answer["settled"]:
        yield f"it has not settled after {answer['rounds']} rounds"


def _settle(expect: SettleExpect | None, answer: Mapping[str, Any]) -> Iterator[str]:
    if expect is None:
        return
    running, placement = answer["running"], answer["placement"]
    yield from _maps("running members", expect.running, running)
    for total in expect.running_total:
        has = sum(running[id] for id in total.workloads)
        if has != total.members:
            names = ", ".join(total.workloads)
            yield f"running members of {names} together: expected {total.members}, found {has}"
    for id, least in expect.running_min.items():
        if running[id] < least:
            yield f"running members of {id}: expected {least} or more, found {running[id]}"
    if expect.any_of and not any(
        all(running[id] == count for id, count in counts.items()) for counts in expect.any_of
    ):
        asked = {id: running[id] for counts in expect.any_of for id in counts}
        yield f"running members: expected one of {expect.any_of}, found {asked}"
    for id in expect.undisturbed:
        if id in answer["disturbed"]:
            yield f"{id}: expected that none of its members is stopped or moved"
    for id, nodes in expect.placement.items():
        if placement[id] != {node: count for node, count in nodes.items() if count}:
            yield f"placement of {id}: expected {nodes}, found {placement[id]}"
    yield from _nodes_used(expect, placement)
    yield from _maps("stopped members", expect.stopped, answer["stopped"])
    rules = {id: told["rule"] for id, told in answer["waiting"].items()}
    for id, rule in expect.waiting.items():
        if rules.get(id) != rule:
            yield f"why {id} waits: expected {rule}, found {rules.get(id, 'that it does not')}"
    for name, pools in expect.fairshare.items():
        for pool, amounts in pools.items():
            found = answer["fairshare"].get(name, {}).get(pool, {})
            known = {resource: found.get(resource, math.inf) for resource in amounts}
            yield from _maps(f"fair share of {name} in {pool},", amounts, known)


def _nodes_used(expect: SettleExpect, placement: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(expect.nodes_used, int):
        used = len({node for nodes in placement.values() for node in nodes})
        if used != expect.nodes_used:
            yield f"nodes used: expected {expect.nodes_used}, found {used}"
    for id, count in (expect.nodes_used if isinstance(expect.nodes_used, dict) else {}).items():
        if len(placement[id]) != count:
            yield f"nodes used by {id}: expected {count}, found {len(placement[id])}"


def _fairshare(expect: FairshareExpect | None, answer: Mapping[str, Any]) -> Iterator[str]:
    if expect is None:
        return
    yield from _maps("fair share", expect.fairshare, answer["fairshare"])
    yield from _maps(
        "fair share of the department", expect.department_fairshare, answer["department_fairshare"]
    )
    if expect.unassigned is not None and not _equal(expect.unassigned, answer["unassigned"]):
        yield f"unassigned: expected {expect.unassigned:.15g}, found {answer['unassigned']:.15g}"


def _clusters(expect: ClusterExpect | None, answer: Mapping[str, Any]) -> Iterator[str]:
    if expect is None:
        return
    listed = expect.model_dump(exclude_unset=True)
    for key, wanted in listed.items():
        if wanted is not None and not _holds(wanted, answer[key], whole=key == "virtual_nodes"):
            yield f"{key}: expected {wanted}, found {answer[key]}"


def _holds(wanted: Any, found: Any, *, whole: bool = False) -> bool:
    """Whether everything that is listed is so; amounts that are missing are zero."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return False
        if whole and any(
            isinstance(nodes, Mapping) and nodes.keys() != found.get(id, {}).keys()
            for id, nodes in wanted.items()
        ):
            return False
        return all(_holds(value, found.get(key, 0)) for key, value in wanted.items())
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return _equal(wanted, found)
    return bool(wanted == found)


def _maps(what: str, wanted: Mapping[str, float], found: Mapping[str, float]) -> Iterator[str]:
    for name, amount in wanted.items():
        if not _equal(amount, found[name]):
            yield f"{what} of {name}: expected {amount:.15g}, found {found[name]:.15g}"


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= SLACK
