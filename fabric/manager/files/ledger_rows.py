"""The ledger file's rows: records' fields by name, as JSON; missing fields get their defaults."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from ...core.cluster_state import Entry, Notice
from ...core.ledger import Ledger
from ...core.places.groups import CarriedBundle
from ...core.places.request import Request
from ...core.records import (
    Bundle,
    BundleGroup,
    ClusterId,
    Loan,
    SchedulingPolicy,
    VNode,
    VNodeId,
    VNodeKind,
)
from ...core.resources import Resources
from ...core.routing.work import Work, WorkState
from ...core.selectors import Condition, DoesNotExist, Exists, In, NotIn, parse

_WRITERS: Mapping[type[Any], Callable[[Any], Any]] = {
    Resources: attrgetter("units"),
    Bundle: attrgetter("resources", "selector"),
    BundleGroup: lambda group: (
        (group.policy, group.bundles, *(() if group.most is None else (group.most,)))
    ),
    CarriedBundle: attrgetter("vnode", "resources", "machine", "selector"),
    Loan: attrgetter("resources", "until"),
    VNode: lambda vnode: {"id": vnode.id, **row(vnode)},
    Notice: asdict,
    frozenset: sorted,
    **dict.fromkeys((In, NotIn, Exists, DoesNotExist), str),
}
"""How to write types that JSON lacks; all others are mappings."""

text = json.JSONEncoder(default=lambda value: _WRITERS.get(type(value), dict)(value)).encode
"""Encodes a row as JSON."""


def row(record: Any) -> dict[str, Any]:
    """The row of a machine, a virtual cluster, a use or a placement group."""
    return {name: getattr(record, name) for name in _names(record.__class__)}


def vnode_row(ledger: Ledger, vnode: VNode) -> dict[str, Any]:
    return {**row(vnode), "loans": ledger.loans_of(vnode.id)}


def entry_row(order: Mapping[ClusterId, int], entry: Entry) -> dict[str, Any]:
    """The row of an entry: the fields of entry and request, and the position in the order."""
    return {"asked": order[entry.request.id], **row(entry), **row(entry.request)}


def read(cls: Any, row: Mapping[str, Any], **given: Any) -> Any:
    """The record of a row; `given` are its id and the fields that the row has in another form."""
    known = {name: row[name] for name in _names(cls) if name in row}
    known.update((name, _READERS[name](known[name])) for name in known.keys() & _READERS.keys())
    return cls(**{**known, **given})


def entry(id: str, row: Mapping[str, Any]) -> Entry:
    request: Request = read(Request, row, id=id, labels=tuple(row["labels"]))
    found: Entry = read(Entry, row, request=request)
    return found


def loans(id: str, row: Mapping[str, Any]) -> list[Loan]:
    return [
        Loan(vnode=VNodeId(id), resources=_resources(units), until=until)
        for units, until in row["loans"]
    ]


def work(id: str, row: Mapping[str, Any]) -> Work:
    older = {"lasting": bool(row["actor"])}  # files of older versions lack this field
    found: Work = read(Work, {**older, **row}, id=id)
    return found


@functools.cache
def _names(cls: type[Any]) -> tuple[str, ...]:
    """The fields in a row, without the key `id`, and `function`, which is not saved."""
    return tuple(
        each.name for each in fields(cls) if each.name not in ("id", "request", "function")
    )


def _resources(units: Iterable[Sequence[Any]]) -> Resources:
    return Resources(tuple((str(name), int(amount)) for name, amount in units))


def _selector(conditions: Mapping[str, str]) -> dict[str, Condition]:
    return {label: parse(text) for label, text in conditions.items()}


def _bundle_groups(groups: Iterable[Sequence[Any]]) -> tuple[BundleGroup, ...]:
    return tuple(
        BundleGroup(
            policy=SchedulingPolicy(policy),
            bundles=tuple(
                Bundle(resources=_resources(units), selector=_selector(selector))
                for units, selector in bundles
            ),
            most=more[0] if more else None,
        )
        for policy, bundles, *more in groups
    )


def _pieces(pieces: Iterable[Sequence[Any]]) -> tuple[CarriedBundle, ...]:
    return tuple(
        CarriedBundle(
            vnode=vnode,
            resources=_resources(units),
            machine=machine,
            selector=_selector(selector),
        )
        for vnode, units, machine, selector in pieces
    )


def _notice(row: Mapping[str, Any] | None) -> Notice | None:
    return None if row is None else Notice(**row)


def _notices(rows: Iterable[Mapping[str, Any]]) -> tuple[Notice, ...]:
    return tuple(Notice(**each) for each in rows)


def _vnodes(rows: Iterable[Mapping[str, Any]]) -> tuple[VNode, ...]:
    return tuple(read(VNode, each, id=each["id"]) for each in rows)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "demand": _resources,
    "groups": _bundle_groups,
    "jobs": frozenset,
    "kind": VNodeKind,
    "least": _resources,
    "leaves": _notice,
    "nodes_leave": _notices,
    "stopped": _notice,
    "pieces": _pieces,
    "policy": SchedulingPolicy,
    "promised": _vnodes,
    "resources": _resources,
    "selector": _selector,
    "state": WorkState,
    "total": _resources,
}
"""How to read the fields that JSON has in another form."""
