"""RunAsk: what a run will ask of its sites, as its submitter says when it submits it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fedpilot.fabric.core.resources import Resources

from ..reservation import MOST_VNODES as MOST_OF_A_CLASS, VNodeClass

MOST_VNODES = 1_000_000
MOST_NAMES = 10_000
LARGEST_AMOUNT = 1e18
"""Of one resource of one vnode; memory is in bytes."""
LONGEST_NAME = 256


class BadAsk(ValueError):
    """A run's ask has another form, or impossible amounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAsk:
    """The gang of one run: vnodes of one size, or of several classes, at some sites."""

    vnode: Mapping[str, float] = field(default_factory=dict)
    """Of one vnode, by Ray's names."""
    workers: int | None = None
    """Vnodes at each site; None for as many as fit, up to `at_most`."""
    at_least: int | None = None
    """Of a gang that begins with so many, and grows up to `at_most` while others leave room."""
    at_most: int = MOST_OF_A_CLASS
    groups: tuple[VNodeClass, ...] = ()
    """Its classes, if it has several: then `vnode` is empty, and `workers` are all that it needs.
    Earlier mediators see only these, and count the run as one that fits everywhere."""
    count: int | None = None
    """Sites that it takes; None for all that are ready."""
    min_sites: int | None = None
    """Sites that must promise; None for all that it takes."""
    required: tuple[str, ...] = ()
    data: str = ""
    """The data set that its sites declare; empty if its data lies elsewhere."""
    project: str = ""
    """Empty for the default."""
    priority_class: str = ""
    """At its sites; in line, too, unless its submitter names another. Empty for the default."""

    def at(self, total: Resources) -> Resources:
        """What it asks of a site of this size."""
        if self.groups:
            return Resources.total(
                Resources.of({name: amount * each.least for name, amount in each.resources.items()})
                for each in self.groups
            )
        vnodes = self.workers or self.at_least
        if vnodes is None:
            fit = Resources.of(self.vnode).copies_in(total)
            vnodes = max(1, min(self.at_most, fit))
        return Resources.of({name: amount * vnodes for name, amount in self.vnode.items()})

    def in_words(self) -> str:
        """Its part at one site, such as `2 vnodes of 1 CPU`."""
        one = VNodeClass(
            resources=self.vnode,
            workers=self.workers,
            at_least=self.at_least,
            at_most=self.at_most,
        )
        return " and ".join(_in_words(each) for each in self.groups or (one,))

    def to_json(self) -> dict[str, Any]:
        return {
            "vnode": dict(self.vnode),
            "workers": self.workers,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "groups": [each.to_json() for each in self.groups],
            "count": self.count,
            "min_sites": self.min_sites,
            "required": list(self.required),
            "data": self.data,
            "project": self.project,
            "priority_class": self.priority_class,
        }

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Read a submitter's ask, in which unknown keys are ignored. BadAsk."""
        if not isinstance(values, dict):
            raise BadAsk(f"it is no object: {values!r:.80}")
        vnode = values.get("vnode", {})
        if not isinstance(vnode, dict) or len(vnode) > MOST_NAMES or not all(map(_is_name, vnode)):
            raise BadAsk(f"vnode: {vnode!r:.80}")
        for name, amount in vnode.items():
            if not _is_amount(amount):
                raise BadAsk(f"{amount!r:.40} of {name} is no amount")
        required = values.get("required", [])
        if (
            not isinstance(required, list)
            or len(required) > MOST_NAMES
            or not all(map(_is_name, required))
        ):
            raise BadAsk(f"required: {required!r:.80}")
        data, project, class_ = (
            _name(values, key) for key in ("data", "project", "priority_class")
        )
        return cls(
            vnode=vnode,
            workers=_number(values, "workers"),
            at_least=_number(values, "at_least"),
            at_most=_number(values, "at_most") or cls().at_most,
            groups=_classes(values.get("groups") or []),
            count=_number(values, "count"),
            min_sites=_number(values, "min_sites"),
            required=tuple(required),
            data=data,
            project=project,
            priority_class=class_,
        )


def _in_words(asked: VNodeClass) -> str:
    number = f"up to {asked.at_most}" if asked.workers is None else str(asked.workers)
    if asked.at_least is not None:
        number = f"{asked.at_least} to {asked.at_most}"
    return f"{number} vnode{'' if number == '1' else 's'} of {Resources.of(asked.resources)}"


def _classes(values: Any) -> tuple[VNodeClass, ...]:
    if not isinstance(values, list) or len(values) > MOST_NAMES:
        raise BadAsk(f"groups: {values!r:.80}")
    found = []
    for each in values:
        try:
            one = VNodeClass.from_json(each)
            problem = one.problem
        except (TypeError, ValueError, AttributeError) as error:
            raise BadAsk(f"groups: {error!r:.80}") from None
        amounts = one.resources
        if problem or one.most > MOST_VNODES or not all(map(_is_amount, amounts.values())):
            raise BadAsk(f"groups: {problem or each!r:.80}")
        found.append(one)
    return tuple(found)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME


def _name(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key) or ""
    if value and not _is_name(value):
        raise BadAsk(f"{key}: {value!r:.80}")
    return str(value)


def _is_amount(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 <= value <= LARGEST_AMOUNT  # type: ignore[arg-type, operator]


def _number(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    if value is not None and (type(value) is not int or not 1 <= value <= MOST_VNODES):
        raise BadAsk(f"{key}: {value!r:.40} is no number of 1 to {MOST_VNODES}")
    return value
