"""Decides whether a gang fits its sites, and what the largest gang is that does.

The alternative keeps all sites if it can: it first takes fewer workers at each of them, then
smaller vnodes. It gives up a required site, or a number of sites, only if there are no such sites.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

from fedpilot.common.text.amounts import counted, listed
from fedpilot.fabric.core.resources import UNIT, Resources

from .sites import GangWish, PlannedSite, SitesWish, in_order
from .vnode_classes import capped

WORKERS, REQUIRED = "resources.workers", "sites.required"
GROUPS = "resources.groups"
COUNT, LEAST = "sites.count", "sites.min_sites"
MEMORY = "resources.memory_per_worker"
SIZES = {"CPU": "resources.cpus_per_worker", "GPU": "resources.gpus_per_worker"}
"""The keys of a vnode's size, by resource."""
ONE_CPU = Resources.of({"CPU": 1.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why a gang does not fit, and the largest one that does."""

    wanted: str
    found: str
    settings: Mapping[str, Any]
    """Config keys and the values with which it fits; empty if nothing does."""
    fits: str
    """What these values give, in words."""

    @property
    def options(self) -> list[str]:
        """The settings as after `--set`."""
        return [f"{key}={json.dumps(value)}" for key, value in sorted(self.settings.items())]


def vnodes_of(
    sites: Sequence[PlannedSite], gang: GangWish, wish: SitesWish
) -> dict[str, int] | Shortfall:
    """How many vnodes each site holds that takes part; why not, if too few sites can."""
    found = _shortage(sites, gang, wish)
    if not found:
        return _held(sites, gang)
    settings = alternative(sites, gang, wish)
    fits = ""
    if settings:
        smaller, others = with_settings(gang, wish, settings)
        held = _held(sites, smaller)
        fits = _in_words(held, smaller) + _smaller(settings, others)
    wanted = _wanted(sites, gang, wish)
    return Shortfall(wanted=wanted, found=found, settings=settings, fits=fits)


def alternative(sites: Sequence[PlannedSite], gang: GangWish, wish: SitesWish) -> dict[str, Any]:
    """The settings of the largest gang that fits, by config key; empty if there is none."""
    names, settings = {site.name for site in sites}, dict[str, Any]()
    required = [name for name in wish.required if name in names]
    if len(required) < len(wish.required):
        settings[REQUIRED] = required
    if wish.least is not None and wish.least > len(sites):
        settings[LEAST] = len(sites)
    waits_for_all = wish.least is None or wish.least > len(sites)
    if wish.count is not None and wish.count > len(sites) and waits_for_all:
        settings[COUNT] = len(sites)
    if not sites:
        return {}
    needed = _Needed(_least(sites, wish), frozenset(required))
    if gang.classes:
        smaller = _smaller_classes(sites, gang, needed)
        if smaller is None:
            return {}
        if smaller != gang:
            settings[GROUPS] = list(smaller.sections)
        return settings
    for each, changed in _sizes(sites, gang, needed):
        if workers := needed.workers(sites, gang, each):
            if gang.workers is not None and workers < gang.workers:
                changed = {**changed, WORKERS: workers}
            if gang.at_least is not None and workers < gang.at_least:
                changed = {**changed, WORKERS: {"min": workers, "max": gang.at_most}}
            return {**settings, **changed}
    return {}


def with_settings(
    gang: GangWish, wish: SitesWish, settings: Mapping[str, Any]
) -> tuple[GangWish, SitesWish]:
    """The wishes of a config with these values of an `alternative`."""
    sizes = gang.each.to_ray()
    for name, key in (*SIZES.items(), ("memory", MEMORY)):
        if key in settings:
            sizes[name] = settings[key] or 0.0
    gang = replace(gang, each=Resources.of(sizes))
    match settings.get(WORKERS):
        case int() as workers:
            gang = replace(gang, workers=workers)
        case {"min": least, "max": most}:
            gang = replace(gang, at_least=least, at_most=most)
    if GROUPS in settings:
        sections = settings[GROUPS]
        classes = [
            capped(each, workers["min"] if isinstance(workers, Mapping) else workers)
            for each, workers in zip(gang.classes, (s["workers"] for s in sections), strict=True)
        ]
        gang = gang.of_classes(classes, sections)
    return gang, SitesWish(
        count=settings.get(COUNT, wish.count),
        least=settings.get(LEAST, wish.least),
        required=tuple(settings.get(REQUIRED, wish.required)),
    )


def _smaller_classes(
    sites: Sequence[PlannedSite], gang: GangWish, needed: _Needed
) -> GangWish | None:
    """The largest gang that fits, if no class may have more workers than a number."""

    if not gang.sections:
        return gang if needed.workers(sites, gang, gang.each) else None

    def too_many(most: int) -> bool:
        return not needed.workers(sites, gang.with_at_most(most), gang.each)

    largest = max(each.least for each in gang.classes)
    most = bisect_right(range(1, largest + 1), False, key=too_many)
    return gang.with_at_most(most) if most else None


@dataclass(frozen=True, slots=True)
class _Needed:
    """The sites that a gang cannot do without."""

    least: int
    required: Collection[str]

    def workers(self, sites: Sequence[PlannedSite], gang: GangWish, each: Resources) -> int:
        """The most workers of this size, the same number at enough sites; at most those asked."""
        most = {site.name: site.most(gang, each) for site in sites}
        enough = sorted(most.values(), reverse=True)[self.least - 1]
        if gang.classes and min([enough, *(most[name] for name in self.required)]) < gang.least:
            return 0
        return min([enough, gang.workers or gang.at_most, *(most[name] for name in self.required)])


def _least(sites: Sequence[PlannedSite], wish: SitesWish) -> int:
    """How many of these sites must hold a part."""
    return len(sites) if wish.least is None else max(1, min(wish.least, len(sites)))


def _held(sites: Sequence[PlannedSite], gang: GangWish) -> dict[str, int]:
    """The vnodes of each site that can hold its part."""
    most = {site.name: site.most(gang) for site in sites}
    return {
        name: gang.workers or min(gang.at_most, fit)
        for name, fit in sorted(most.items())
        if fit >= gang.least
    }


def _shortage(sites: Sequence[PlannedSite], gang: GangWish, wish: SitesWish) -> str:
    """What is missing, in words; empty if the gang fits."""
    names = {site.name for site in sites}
    if not sites:
        return "no site can take part"
    if missing := sorted(set(wish.required) - names):
        there = listed(sorted(names))
        return f"site {missing[0]} is required and not there; there are: {there}"
    wanted = wish.least or wish.count or 1
    if len(sites) < wanted:
        return f"{counted(wanted, 'site')} are needed, and {len(sites)} can take part"
    held = _held(sites, gang)
    short = [site for site in sites if site.name not in held]
    if len(held) >= _least(sites, wish) and not any(s.name in wish.required for s in short):
        return ""
    return "; ".join(_refusal(fit, group, gang) for fit, group in _grouped(short, gang))


def _grouped(sites: Sequence[PlannedSite], gang: GangWish) -> list[tuple[int, list[PlannedSite]]]:
    """Sites by the number of vnodes that they can hold, the fewest first."""
    groups: dict[int, list[PlannedSite]] = {}
    for site in in_order(sites):
        groups.setdefault(site.most(gang), []).append(site)
    return sorted(groups.items())


def _refusal(fit: int, sites: Sequence[PlannedSite], gang: GangWish) -> str:
    """How many vnodes these sites hold, and why no more."""
    holds = "holds" if len(sites) == 1 else "hold"
    each = " each" if len(sites) > 1 and fit else ""
    why = sites[0].why_not(gang)
    said = f"{listed([site.name for site in sites])} {holds} {_most(fit)}{each}"
    return f"{said} ({why})" if why else said


def _most(fit: int) -> str:
    return f"at most {fit}" if fit else "none"


def _wanted(sites: Sequence[PlannedSite], gang: GangWish, wish: SitesWish) -> str:
    """What is asked for, in words."""
    count = wish.count or len(sites)
    over = counted(count, "site") if count else "sites"
    return f"{over} of {gang}"


def _in_words(held: Mapping[str, int], gang: GangWish) -> str:
    """The vnodes that fit, in words."""
    if gang.classes:
        return f"{counted(len(held), 'site')} of {gang}"
    workers = sorted(set(held.values()))
    each = f"{workers[0]}" if len(workers) == 1 else f"{workers[0]} to {workers[-1]}"
    noun = "worker" if workers == [1] else "workers"
    return f"{counted(len(held), 'site')} of {each} {noun} ({gang.each} each)"


def _smaller(settings: Mapping[str, Any], wish: SitesWish) -> str:
    """What the sites' part of an alternative says."""
    if REQUIRED not in settings:
        return ""
    return f", {'of which ' + listed(wish.required) if wish.required else 'none of them'} required"


def _sizes(
    sites: Sequence[PlannedSite], gang: GangWish, needed: _Needed
) -> list[tuple[Resources, dict[str, Any]]]:
    """Sizes of a vnode, the wished one first, and the settings that ask for each."""
    found: list[tuple[Resources, dict[str, Any]]] = [(gang.each, {})]
    slim = gang.each.without({"memory"})
    if slim != gang.each:
        # Of its machine's memory, a private Ray gives away what is free when it starts.
        found.append((slim, {MEMORY: None}))
    small = _common(sites, slim, needed)
    if small.units:
        changed: dict[str, Any] = {
            key: _plain(small[name])
            for name, key in SIZES.items()
            if small[name] != gang.each[name]
        }
        if gang.each["memory"]:
            changed[MEMORY] = None
        found.append((small, changed))
    return found


def _plain(units: int) -> float | int:
    return units // UNIT if units % UNIT == 0 else units / UNIT


def _common(sites: Sequence[PlannedSite], each: Resources, needed: _Needed) -> Resources:
    """The largest vnode, at most `each`, of which enough sites have a machine for one."""
    best = {site.name: _best(site, each) for site in sites}
    ordered = sorted(best, key=lambda n: (n not in needed.required, *_worth(best[n]), n))
    chosen = ordered[: max(needed.least, len(needed.required))]
    common = _in_all(best[name] for name in chosen)
    if common.units:
        return common
    # One site has GPUs and no CPU to spare for them, another one CPUs alone.
    return _in_all(_best(site, ONE_CPU) for site in sites if site.name in chosen)


def _in_all(parts: Iterable[Resources]) -> Resources:
    return reduce(and_, parts)


def _best(site: PlannedSite, each: Resources) -> Resources:
    """The most that one machine of a site gives to a vnode of this size."""
    if site.workers is not None:
        return each if site.workers else Resources()
    found = [_usable(each & machine.total, machine.total) for machine in site.machines]
    return min(found, key=_worth, default=Resources())


def _usable(part: Resources, whole: Resources) -> Resources:
    """A vnode needs CPUs or GPUs: one CPU, if it gets none of what it asks for."""
    if part["CPU"] or part["GPU"]:
        return part
    return whole & ONE_CPU


def _worth(part: Resources) -> tuple[int, int]:
    return -part["GPU"], -part["CPU"]
