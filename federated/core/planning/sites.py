"""The sites of a plan: what is known of each, and how many vnodes it can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedpilot.common.text.amounts import counted
from fedpilot.fabric.core.places.placement import Misfit, fit, most
from fedpilot.fabric.core.records import Bundle, Machine, SchedulingPolicy
from fedpilot.fabric.core.resources import Resources
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.core.reservation import VNodeClass

from .vnode_classes import capped, in_words, most_together, why_not


@dataclass(frozen=True, slots=True, kw_only=True)
class GangWish:
    """The vnodes that a run asks each of its sites for."""

    each: Resources
    """Of one vnode; empty if there are several classes."""
    policy: SchedulingPolicy
    workers: int | None
    """None for as many as fit, up to `at_most`."""
    at_least: int | None = None
    """Of a gang whose vnodes above that number come and leave."""
    at_most: int
    classes: tuple[VNodeClass, ...] = ()
    """Its vnode classes, if there are several; the numbers above are those of all together."""
    sections: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """The classes as a config writes them, if it is known."""

    def with_at_most(self, workers: int) -> GangWish:
        """The wish with so many workers at most in each class, or in the minimum of its range."""
        classes, sections = [], []
        for each, section in zip(self.classes, self.sections, strict=True):
            fewer = capped(each, workers)
            span = {"min": fewer.at_least, "max": fewer.at_most}
            written = fewer.workers if fewer.at_least is None else span
            classes.append(fewer)
            sections.append(section if fewer == each else {**section, "workers": written})
        return self.of_classes(classes, sections)

    def of_classes(
        self, classes: Sequence[VNodeClass], sections: Sequence[Mapping[str, Any]]
    ) -> GangWish:
        """The wish for other classes."""
        return replace(
            self,
            at_least=sum(each.least for each in classes),
            at_most=sum(each.most for each in classes),
            classes=tuple(classes),
            sections=tuple(sections),
        )

    def __str__(self) -> str:
        few = "at least " if self.at_least is not None and self.at_least < self.at_most else ""
        if self.classes:
            return f"{few}{in_words(self.classes)}"
        return f"{few}{counted(self.least, 'worker')} ({self.each} each)"

    @property
    def least(self) -> int:
        """The fewest vnodes with which a site can take part."""
        return self.workers or self.at_least or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesWish:
    """The sites that a run asks for."""

    count: int | None = None
    """At a mediator; None for all sites that are ready."""
    least: int | None = None
    """Sites that must hold their part of the gang; None for all."""
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSite:
    """A site, as far as it is known."""

    name: str
    machines: tuple[Machine, ...] = field(default=(), hash=False)
    labels_known: bool = True
    """Whether the labels of its machines are known; if not, each machine counts as suitable."""
    workers: int | None = None
    """The most vnodes of any size, if that is declared in the place of machines."""
    seconds_per_sample: float | None = None
    """The pace of one vnode, if it was measured or declared."""
    link: LinkSpeed = field(default_factory=LinkSpeed)
    from_: str = ""
    """Where these facts come from: `this machine`, `the mediator`, `--add-site`."""

    def most(self, wish: GangWish, each: Resources | None = None) -> int:
        """How many vnodes fit when the site is idle; of size `each`, if it is given."""
        if self.workers is not None:
            return self.workers
        if wish.classes:
            return most_together(self._as_known(wish.classes), wish.policy, self.machines)
        return most(Bundle(resources=each or wish.each), wish.policy, self.machines)

    def why_not(self, wish: GangWish) -> str:
        """Why its part of the gang does not fit; empty if it does, or no machine is known."""
        if self.workers is not None:
            return ""
        if wish.classes:
            return why_not(self._as_known(wish.classes), wish.policy, self.machines)
        found = fit([Bundle(resources=wish.each)] * wish.least, wish.policy, self.machines)
        return found.reason if isinstance(found, Misfit) else ""

    def _as_known(self, classes: Sequence[VNodeClass]) -> Sequence[VNodeClass]:
        return classes if self.labels_known else [replace(each, labels={}) for each in classes]


def in_order(sites: Iterable[PlannedSite]) -> tuple[PlannedSite, ...]:
    """By their names, so that no result depends on the order in which sites are listed."""
    return tuple(sorted(sites, key=lambda site: site.name))


def without(sites: Sequence[PlannedSite], names: Iterable[str]) -> tuple[PlannedSite, ...]:
    """The other sites."""
    gone = frozenset(names)
    return tuple(site for site in sites if site.name not in gone)
