"""What each vnode class does in a round at each site, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpilot.mediator.core.assignment import SiteCapacity

from ..population.sampling import Indices

Amounts = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClass:
    """One vnode class of a run."""

    name: str
    least: int
    """Vnodes of it at each site."""
    most: int
    part: float
    """Of the clients."""
    seconds_per_sample: float | None
    """The pace of one of its vnodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPart:
    """The part of one vnode class in a round at a site."""

    name: str
    vnodes: int
    clients: int
    seconds: float | None
    """None if paces or samples are not known."""


def split(vnodes: int, classes: Sequence[PlannedClass]) -> list[int]:
    """How many vnodes of each class a site has that holds so many; the first grow first."""
    counts = [each.least for each in classes]
    left = vnodes - sum(counts)
    for at, each in enumerate(classes):
        more = min(max(0, left), each.most - each.least)
        counts[at], left = counts[at] + more, left - more
    return counts


def class_parts(
    sites: Sequence[SiteCapacity],
    classes: Sequence[PlannedClass],
    clients: Amounts,
    samples: Amounts | None,
    usual: float | None,
) -> list[tuple[ClassPart, ...]]:
    """What each class does in a round at each site.

    (sites, classes) are its clients there, and the samples of a round; `usual` is the pace of a
    vnode elsewhere. A site with a pace of its own is faster or slower than that in all classes.
    """
    return [
        tuple(
            ClassPart(
                name=each.name,
                vnodes=vnodes,
                clients=round(float(clients[at, number])),
                seconds=_seconds(each, site, usual, vnodes, samples, (at, number)),
            )
            for number, (each, vnodes) in enumerate(
                zip(classes, split(site.vnodes, classes), strict=True)
            )
        )
        for at, site in enumerate(sites)
    ]


def _seconds(
    each: PlannedClass,
    site: SiteCapacity,
    usual: float | None,
    vnodes: int,
    samples: Amounts | None,
    where: tuple[int, int],
) -> float | None:
    pace, own = each.seconds_per_sample, site.seconds_per_sample
    if pace is None or not usual:
        pace = own
    elif own is not None:
        pace *= own / usual
    if pace is None or samples is None:
        return None
    return float(samples[where]) * pace / max(1, vnodes)


def as_slow_as(site: SiteCapacity, parts: Sequence[ClassPart], samples: float) -> SiteCapacity:
    """The site with the pace at which its vnodes together take as long as its slowest class.

    `samples` are those of a round.
    """
    known = [part.seconds for part in parts if part.seconds is not None]
    if not known or not samples:
        return site
    return replace(site, seconds_per_sample=max(known) * max(1, site.vnodes) / samples)


def by_class(
    placed: Indices | None,
    class_of: Indices | None,
    whole: Indices | Amounts,
    classes: Sequence[PlannedClass],
    weights: Indices | None = None,
) -> Amounts:
    """(sites, classes): how the (sites,) `whole` of clients, or of their weights, is divided.

    By the site and the class of each client, if they are known; else as over all clients.
    """
    if placed is None or class_of is None:
        return np.outer(whole, [each.part for each in classes])
    flat = placed * len(classes) + class_of
    found = np.bincount(flat, weights=weights, minlength=len(whole) * len(classes))
    return found.reshape(len(whole), len(classes)).astype(np.float64)
