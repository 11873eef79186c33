"""A plan as one JSON document, the same for equal plans; docs/reference/plan.md lists its keys."""

from __future__ import annotations

import math
from typing import Any

from fedpilot.mediator.core.assignment import size

from .class_parts import ClassPart
from .feasibility import Shortfall
from .plan import Cut, Plan, PlannedReplicas, SitePlan

FORMAT = 1
DIGITS = 6
"""Significant digits of a figure that is no whole number."""


def document_of(plan: Plan) -> dict[str, Any]:
    """The document of a plan that is feasible."""
    inputs, measured = plan.inputs, plan.inputs.measured
    rounds = inputs.rounds
    return {
        "format": FORMAT,
        "feasible": True,
        "clients": inputs.population,
        "clients_per_round": inputs.clients_per_round,
        "rounds": rounds,
        "sites": [_site(site) for site in plan.sites],
        "round": {
            "seconds": _figure(plan.seconds),
            "bytes_in": _figure(plan.bytes_in),
            "bytes_out": _figure(plan.bytes_out),
            "bound": None
            if plan.bound is None
            else {
                "site": plan.bound.site,
                "resource": plan.bound.resource,
                "seconds": _figure(plan.bound.seconds),
            },
        },
        "run": {
            "seconds": None if plan.seconds is None else _figure(plan.seconds * rounds),
            "bytes_in": _figure(plan.bytes_of_run[0]),
            "bytes_out": _figure(plan.bytes_of_run[1]),
        },
        "memory": {
            "chunk_bytes": inputs.memory.chunk_bytes,
            "chunk_clients": inputs.memory.chunk_clients,
            "object_store_bytes": inputs.memory.store_bytes,
        },
        "assignment": {"strategy": plan.assignment.strategy, "reason": plan.assignment.reason},
        "graph": None
        if plan.edges is None
        else {
            "edges": plan.edges,
            "rounds_looked_at": len(inputs.exchanges),
            "changes": not inputs.lasting,
            "cut": _cut(plan.cut),
            "round_robin": _cut(plan.round_robin),
        },
        "replicas": None if plan.replicas is None else _replicas(plan.replicas),
        "reassignment": None if plan.reassignment is None else _reassignment(plan),
        "sources": {"pace": inputs.pace.source, "bytes": inputs.bytes_source},
        "unknown": list(plan.unknown),
        "like": None
        if measured is None
        else {
            "run": measured.run,
            "rounds": measured.rounds,
            "seconds": _figure(measured.seconds),
        },
    }


def document_of_shortfall(shortfall: Shortfall) -> dict[str, Any]:
    """The document of a config whose gang does not fit."""
    return {
        "format": FORMAT,
        "feasible": False,
        "wanted": shortfall.wanted,
        "found": shortfall.found,
        "alternative": {
            "settings": dict(sorted(shortfall.settings.items())),
            "set": shortfall.options,
            "fits": shortfall.fits,
        }
        if shortfall.settings
        else None,
    }


def _site(site: SitePlan) -> dict[str, Any]:
    return {
        "name": site.site,
        "clients": site.clients,
        "pinned": site.pinned,
        "vnodes": site.vnodes,
        "samples": _figure(site.samples),
        "bytes_in": _figure(site.bytes_in),
        "bytes_out": _figure(site.bytes_out),
        "models_in": _figure(site.models_in),
        "models_out": _figure(site.models_out),
        "sums_in": _figure(site.sums_in),
        "sums_out": _figure(site.sums_out),
        "compute_seconds": _figure(site.compute_s),
        "transfer_seconds": _figure(site.transfer_s),
        "seconds_per_sample": _figure(site.seconds_per_sample),
        "link": {
            "up": _figure(site.link.up),
            "down": _figure(site.link.down),
            "round_trip_s": _figure(site.link.round_trip_s),
            "up_measured_at": _moment(site.link.up_measured_at),
            "down_measured_at": _moment(site.link.down_measured_at),
        },
        "kept_bytes": site.kept_bytes,
        "from": site.from_,
        **({"vnode_classes": [_class(each) for each in site.classes]} if site.classes else {}),
    }


def _class(part: ClassPart) -> dict[str, Any]:
    return {
        "name": part.name,
        "vnodes": part.vnodes,
        "clients": part.clients,
        "compute_seconds": _figure(part.seconds),
    }


def _replicas(replicas: PlannedReplicas) -> dict[str, Any]:
    return {
        "every": replicas.every,
        "count": replicas.count,
        "bytes": replicas.nbytes,
        "sites": [
            {"name": site, "holder": each.site, "bytes": each.nbytes, "reason": each.reason}
            for site, each in replicas.holders.items()
        ],
    }


def _reassignment(plan: Plan) -> dict[str, Any]:
    found = plan.reassignment
    assert found is not None
    return {
        "every": plan.inputs.reassign_every,
        "verdict": found.verdict,
        "reason": found.reason,
        "saved_seconds": _figure(found.saved_s),
        "moving_seconds": _figure(found.moving_s),
        "moves": [
            {"from": move.origin, "to": move.to, "clients": size(move.clients)}
            for move in found.moves
        ],
    }


def _cut(cut: Cut | None) -> dict[str, Any] | None:
    if cut is None:
        return None
    return {
        "strategy": cut.strategy,
        "edges": _figure(cut.edges),
        "models": _figure(cut.models),
        "sums": _figure(cut.sums),
        "bytes": _figure(cut.nbytes),
        "seconds": _figure(cut.seconds),
    }


def _moment(value: float | None) -> int | None:
    """Epoch seconds, whole."""
    return None if value is None else int(value)


def _figure(value: float | None) -> float | int | None:
    """A whole number as one, others with six digits."""
    if value is None or not math.isfinite(value):
        return None
    if float(value).is_integer():
        return int(value)
    return float(f"{value:.{DIGITS}g}")
