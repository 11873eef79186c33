"""Divides one resource of one pool, departments first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ..core.scheduling.fairshare import ShareClaim, divide
from ..core.scheduling.records import UNLIMITED
from ..core.scheduling.snapshot import Scale
from .case_schema import FairshareCase, QueueClaim, ShareOf


def fairshare_case(case: FairshareCase) -> dict[str, Any]:
    """The share of every queue and department, and what stays unassigned at the top."""
    amounts = [case.total, *(each.requested for each in case.queues)]
    (unit,) = Scale.of({case.resource: max(amounts)}).units
    below: dict[str | None, list[QueueClaim]] = {}
    for queue in case.queues:
        below.setdefault(queue.department, []).append(queue)
    claims = [_claim(each, each.requested, unit) for each in below.get(None, [])]
    for department in case.departments:
        wants = sum(_claim(q, q.requested, unit).wants for q in below.get(department.name, []))
        claims.append(_claim(department, wants / unit, unit))
    top, rest = divide(round(case.total * unit), claims, unit)
    shares = dict(zip((claim.name for claim in claims), top, strict=True))
    departments = {each.name: shares[each.name] for each in case.departments}
    found = {each.name: shares[each.name] for each in below.get(None, [])}
    for department in case.departments:
        found |= _inside(departments[department.name], below.get(department.name, []), unit)
    return {
        "fairshare": {each.name: _amount(found[each.name], unit) for each in case.queues},
        "department_fairshare": _amounts(departments, unit),
        "unassigned": _amount(rest, unit),
    }


def _inside(total: int, queues: Sequence[QueueClaim], unit: int) -> dict[str, int]:
    shares, _ = divide(total, [_claim(each, each.requested, unit) for each in queues], unit)
    return dict(zip((each.name for each in queues), shares, strict=True))


def _claim(queue: ShareOf, requested: float, unit: int) -> ShareClaim:
    weight = queue.over_quota_weight
    if weight is None:
        weight = queue.quota or 0.0
    return ShareClaim(
        name=queue.name,
        quota=UNLIMITED if queue.quota is None else round(queue.quota * unit),
        weight=Fraction(str(weight)),
        limit=UNLIMITED if queue.limit is None else round(queue.limit * unit),
        requested=round(requested * unit),
        priority=queue.priority,
        created=queue.created_order,
    )


def _amounts(shares: Mapping[str, int], unit: int) -> dict[str, float]:
    return {name: _amount(share, unit) for name, share in shares.items()}


def _amount(share: int, unit: int) -> float:
    return share // unit if share % unit == 0 else share / unit
