"""Several vnode classes in a plan: whether a site can hold them together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedpilot.common.text.amounts import counted, listed
from fedpilot.fabric.core.places.placement import Misfit, fit_all
from fedpilot.fabric.core.records import Bundle, BundleGroup, Machine, SchedulingPolicy
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.selectors import parse
from fedpilot.mediator.core.reservation import VNodeClass


def why_not(
    classes: Sequence[VNodeClass], policy: SchedulingPolicy, machines: Iterable[Machine]
) -> str:
    """Why idle machines cannot hold the least of all classes together; empty if they can."""
    there, groups = tuple(machines), list[BundleGroup]()
    for at, each in enumerate(classes):
        groups.append(_group(each, each.least, policy))
        found = fit_all(groups, there)
        if isinstance(found, Misfit):
            beside = f" beside {in_words(classes[:at])}" if at else ""
            return f"{counted(each.least, 'vnode')} of {each.name}{beside}: {found.reason}"
    return ""


def most_together(
    classes: Sequence[VNodeClass], policy: SchedulingPolicy, machines: Iterable[Machine]
) -> int:
    """How many vnodes idle machines hold, the first classes as many as they may; 0 for too few."""
    there = tuple(machines)
    if why_not(classes, policy, there):
        return 0
    counts = [each.least for each in classes]
    for at, each in enumerate(classes):

        def too_many(count: int, at: int = at) -> bool:
            tried = [*counts[:at], count, *counts[at + 1 :]]
            groups = [_group(c, n, policy) for c, n in zip(classes, tried, strict=True)]
            return isinstance(fit_all(groups, there), Misfit)

        span = range(each.least, each.most + 1)
        counts[at] = span[max(0, bisect_right(span, False, key=too_many) - 1)]
    return sum(counts)


def capped(asked: VNodeClass, workers: int) -> VNodeClass:
    """The class with so many workers at most; of a range, the minimum is lowered."""
    if asked.at_least is not None:
        return replace(asked, at_least=min(asked.at_least, workers))
    return replace(asked, workers=min(asked.least, workers))


def _group(each: VNodeClass, count: int, policy: SchedulingPolicy) -> BundleGroup:
    selector = {label: parse(condition) for label, condition in each.labels.items()}
    bundle = Bundle(resources=Resources.of(each.resources), selector=selector)
    return BundleGroup(bundles=(bundle,) * count, policy=policy)


def in_words(classes: Sequence[VNodeClass]) -> str:
    """The least of a gang, such as `1 large (4 CPU) and 4 small (1 CPU each)`."""
    sizes = [f"{Resources.of(each.resources)}{' each' * (each.least > 1)}" for each in classes]
    return listed(
        [f"{each.least} {each.name} ({size})" for each, size in zip(classes, sizes, strict=True)]
    )
