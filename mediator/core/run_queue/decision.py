"""Decides which of the waiting runs begin now, and says what each of the others waits for.

1. Order: projects by their shares (`shares`). In a project, the higher priority class first. In a
   class, first the runs that have waited longer than `starvation_s`. Then users take turns: a
   user's first run comes before another user's second, and runs at work count as turns taken; of
   two users, first the one whose last run began earlier. Then age.
2. A run begins if its project may have as much and enough sites have room for its part. A run that
   does not fit is skipped, and the runs behind it are tried. They leave its sites alone after
   `starvation_s`, and if it lacks only what ended runs are about to release, since sites release
   one after the other.
3. The decision only saves attempts in vain: sites still decide. So a run begins as well if too few
   sites are known, or if it could never fit: its coordinator waits for sites, and a site's refusal
   says why.
4. A run that found sites full although they seemed to have room tries again after a pause, and then
   alone: no other run reserves at its sites meanwhile. So two runs never block each other for ever.

Room is a site's size without what the runs at work there ask of it; work outside of the mediator's
runs is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedpilot.common.text.amounts import counted
from fedpilot.fabric.core.resources import Resources

from .asks import RunAsk
from .shares import ProjectQueues, SharedLine

SHOWN = 5
"""Holders that a reason names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQueueSettings:
    """The rules of one mediator."""

    runs_per_user: int | None = None
    """The most runs of one user at work at once; None for any number."""
    starvation_s: float = 600.0
    first_pause_s: float = 5.0
    """Before a run asks again whose sites were full; doubles each time up to `longest_pause_s`."""
    longest_pause_s: float = 300.0

    def pause_s(self, refusals: int) -> float:
        """Seconds before a run asks again that was refused so many times in a row, one or more."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(refusals - 1, 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run that waits. Times are epoch seconds."""

    run: str
    user: str
    priority: int
    submitted_at: float
    ask: RunAsk | None = None
    """None if its submitter did not say."""
    refused: bool = False
    """Whether its sites were full at its last attempt."""
    not_before: float = 0.0
    """When it may try again after that."""
    preemptible: bool = True
    """Whether its project may use more than its quota for it."""

    @property
    def project(self) -> str:
        """Empty for the default."""
        return "" if self.ask is None else self.ask.project


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAtWork:
    """A run that has begun."""

    run: str
    user: str
    ask: RunAsk | None = None
    sites: frozenset[str] = frozenset()
    """Where it holds its part, or is about to ask for it."""
    reserving: bool = False
    """Whether its gang is not yet complete."""
    alone: bool = False
    """Whether no other run may reserve at its sites until its gang is complete."""
    leaving: bool = False
    """Whether it has ended, and sites still release its part."""
    preemptible: bool = True

    @property
    def project(self) -> str:
        """Empty for the default."""
        return "" if self.ask is None else self.ask.project


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRoom:
    """A site that takes new work, or may soon."""

    name: str
    total: Resources = field(default_factory=Resources)
    """Empty if not known."""
    ready: bool = True
    data: frozenset[str] = frozenset()
    """The data sets that it declares."""


@dataclass(frozen=True, slots=True)
class RunHolder:
    """A run that has what another one waits for."""

    site: str
    """Empty if it is not about a site."""
    run: str
    user: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a run, at these sites if it may choose; its sites are not known if there are none."""

    run: str
    sites: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RunWait:
    """A run's place in line, from 1, and what it waits for."""

    run: str
    place: int
    reason: str
    holders: tuple[RunHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """One decision about all runs."""

    begins: tuple[Begin, ...]
    waits: tuple[RunWait, ...]
    """In order of their places."""


def decide(
    waiting: Iterable[WaitingRun],
    at_work: Iterable[RunAtWork],
    sites: Iterable[SiteRoom],
    settings: RunQueueSettings,
    now: float,
    began: Mapping[str, float] | None = None,
    projects: ProjectQueues | None = None,
) -> QueueDecision:
    """Decide about all waiting runs, in order; `began` is when each user's last run did."""
    floor = _Floor(sites, at_work)
    begins: list[Begin] = []
    waits: list[RunWait] = []
    runs = {each.run: each for each in in_order(waiting, floor.at_work, settings, now, began or {})}
    line = SharedLine(
        projects or ProjectQueues(),
        floor.total(),
        [(run, floor.held(run)) for run in floor.at_work if not run.leaving],
        [(run, floor.asked(run)) for run in runs.values()],
    )
    while (next_ := line.pop()) is not None:
        run = runs[next_]
        found: Begin | _NotYet | None = _limited(run, floor, settings) or _paused(run, now)
        if found is None and (refused := line.refusal(run)):
            found = _NotYet(refused)
        found = found or _placed(run, floor)
        if isinstance(found, Begin):
            begins.append(found)
            floor.begin(run, found.sites)
            line.begin(run)
            continue
        late = now - run.submitted_at > settings.starvation_s
        if found.soon or (found.starves and late):
            floor.claim(run, found.sites)
        waits.append(RunWait(run.run, len(waits) + 1, found.reason, found.holders))
    return QueueDecision(tuple(begins), tuple(waits))


def in_order(
    waiting: Iterable[WaitingRun],
    at_work: Iterable[RunAtWork],
    settings: RunQueueSettings,
    now: float,
    began: Mapping[str, float],
) -> list[WaitingRun]:
    """The waiting runs, in the order in which those of one project are tried."""
    by_age = sorted(waiting, key=lambda run: (-run.priority, run.submitted_at, run.run))
    taken = Counter(run.user for run in at_work if not run.leaving)
    turns: dict[str, int] = {}
    for run in by_age:
        turns[run.run] = taken[run.user]
        taken[run.user] += 1

    def key(run: WaitingRun) -> tuple[int, bool, int, float, float, str]:
        fresh = now - run.submitted_at <= settings.starvation_s
        turn = (turns[run.run], began.get(run.user, 0.0)) if fresh else (0, 0.0)
        return (-run.priority, fresh, *turn, run.submitted_at, run.run)

    return sorted(by_age, key=key)


@dataclass(frozen=True, slots=True)
class _NotYet:
    """Why a run does not begin, and at which sites that could change."""

    reason: str
    holders: tuple[RunHolder, ...] = ()
    sites: tuple[str, ...] = ()
    starves: bool = False
    """Whether it lacks only what runs at work have."""
    soon: bool = False
    """Whether it lacks only what ended runs are about to release."""


class _Floor:
    """The sites, and what is taken there; changes as runs begin."""

    def __init__(self, sites: Iterable[SiteRoom], at_work: Iterable[RunAtWork]) -> None:
        self.sites: Mapping[str, SiteRoom] = {
            site.name: site for site in sorted(sites, key=lambda each: each.name)
        }
        self.at_work = sorted(at_work, key=lambda each: each.run)
        self._used: dict[str, Resources] = {}
        self._released: dict[str, Resources] = {}
        """What ended runs are about to release; part of what is used."""
        self._here: dict[str, list[RunAtWork]] = {name: [] for name in self.sites}
        self._claims: dict[str, WaitingRun] = {}
        self._parts: dict[tuple[int, str], Resources] = {}
        self._asked: dict[int, Resources] = {}
        self.lacking: dict[tuple[int, bool], _NotYet] = {}
        """By ask, and whether its run was refused: why it does not begin, as things are now."""
        for run in self.at_work:
            self._use(run)

    def begin(self, run: WaitingRun, sites: Collection[str]) -> None:
        """Count a run as at work from now on."""
        begun = RunAtWork(
            run=run.run,
            user=run.user,
            ask=run.ask,
            sites=frozenset(sites),
            reserving=True,
            alone=run.refused,
            preemptible=run.preemptible,
        )
        self.at_work.append(begun)
        self.lacking.clear()
        self._use(begun)

    def claim(self, run: WaitingRun, sites: Iterable[str]) -> None:
        """Keep sites for a run that has waited long."""
        for site in sites:
            if site not in self._claims:
                self._claims[site] = run
                self.lacking.clear()

    def _use(self, run: RunAtWork) -> None:
        for name in run.sites:
            if (site := self.sites.get(name)) is not None:
                self._here[name].append(run)
                if run.ask is not None:
                    part = self._part(run.ask, site)
                    self._used[name] = self._used.get(name, Resources()) + part
                    if run.leaving:
                        self._released[name] = self._released.get(name, Resources()) + part

    def _part(self, ask: RunAsk, site: SiteRoom) -> Resources:
        """What a run asks of a site; many runs may share one ask."""
        key = (id(ask), site.name)
        if key not in self._parts:
            self._parts[key] = ask.at(site.total)
        return self._parts[key]

    def total(self) -> Resources:
        """What all sites have together."""
        return Resources.total(site.total for site in self.sites.values())

    def held(self, run: RunAtWork) -> Resources:
        """What a run at work has of all sites."""
        if run.ask is None:
            return Resources()
        there = [self.sites[name] for name in sorted(run.sites) if name in self.sites]
        return Resources.total(self._part(run.ask, site) for site in there)

    def asked(self, run: WaitingRun) -> Resources:
        """What a run asks of as many sites as it takes; of the first ones, where parts differ."""
        if (ask := run.ask) is None:
            return Resources()
        key = id(ask)
        if key not in self._asked:
            large = [site for site in self.known(ask) if self.could_hold(ask, site)]
            first = _required_first(ask, [site.name for site in large])[: ask.count]
            self._asked[key] = Resources.total(self._part(ask, self.sites[n]) for n in first)
        return self._asked[key]

    def known(self, ask: RunAsk) -> list[SiteRoom]:
        """The sites with a run's data."""
        return [site for site in self.sites.values() if not ask.data or ask.data in site.data]

    def could_hold(self, ask: RunAsk, site: SiteRoom) -> bool:
        """Whether an idle site of this size holds the run's part."""
        return not site.total or self._part(ask, site).fits(site.total)

    def soon_free(self, ask: RunAsk, site: SiteRoom) -> bool:
        """Whether a site has room once ended runs have released their parts."""
        if not site.ready or site.name in self._claims or site.name not in self._released:
            return False
        used = self._used[site.name] - self._released[site.name]
        return (used + self._part(ask, site)).fits(site.total)

    def blocked(self, run: WaitingRun, ask: RunAsk, site: SiteRoom) -> tuple[RunHolder, ...] | None:
        """Who keeps a run from a site, if known; None if it may reserve there now."""
        if not site.ready:
            return ()
        if (first := self._claims.get(site.name)) is not None:
            return (RunHolder(site.name, first.run, first.user),)
        here = self._here[site.name]
        alone = [
            RunHolder(site.name, each.run, each.user)
            for each in here
            if each.reserving and (each.alone or run.refused)
        ]
        if alone:
            return tuple(alone)
        wanted = self._used.get(site.name, Resources()) + self._part(ask, site)
        if not site.total or wanted.fits(site.total):
            return None
        return tuple(RunHolder(site.name, each.run, each.user) for each in here)


def _limited(run: WaitingRun, floor: _Floor, settings: RunQueueSettings) -> _NotYet | None:
    most = settings.runs_per_user
    mine = [each for each in floor.at_work if each.user == run.user and not each.leaving]
    if most is None or len(mine) < most:
        return None
    holders = tuple(RunHolder("", each.run, each.user) for each in mine)
    reason = f"{run.user} has {counted(len(mine), 'run')} at work, of at most {most}"
    return _NotYet(reason, holders)


def _paused(run: WaitingRun, now: float) -> _NotYet | None:
    if now >= run.not_before:
        return None
    when = f"in {run.not_before - now:.0f} s, or once a run ends there"
    return _NotYet(f"its sites were full when it asked; it asks again {when}")


def _placed(run: WaitingRun, floor: _Floor) -> Begin | _NotYet:
    """Find the sites at which a run can begin; equal runs get the same answer."""
    if run.ask is None:
        return Begin(run.run, (), "what it asks for is not known")
    key = (id(run.ask), run.refused)
    if key in floor.lacking:
        return floor.lacking[key]
    found = _tried(run, run.ask, floor)
    if isinstance(found, _NotYet):
        floor.lacking[key] = found
    return found


def _tried(run: WaitingRun, ask: RunAsk, floor: _Floor) -> Begin | _NotYet:
    known = floor.known(ask)
    names = {site.name for site in known}
    least = max(ask.min_sites or ask.count or 1, 1)
    if len(known) < least or not names.issuperset(ask.required):
        return Begin(run.run, (), "too few sites are there: its coordinator waits for them")
    needed = ask.min_sites or ask.count or len(known)
    large = [site for site in known if floor.could_hold(ask, site)]
    if len(large) < needed or not {site.name for site in large}.issuperset(ask.required):
        return Begin(run.run, (), "its sites never have that much: they say what they have")
    blocked = {site.name: floor.blocked(run, ask, site) for site in large}
    free = [name for name, holders in blocked.items() if holders is None]
    if len(free) >= needed and set(free).issuperset(ask.required):
        first = _required_first(ask, free)[: ask.count]
        return Begin(run.run, tuple(sorted(first)), "its sites have room")
    lacking = _lacking(ask, needed, blocked, floor.sites)
    soon = {*free, *(site.name for site in large if floor.soon_free(ask, site))}
    return replace(lacking, soon=len(soon) >= needed and soon.issuperset(ask.required))


def _required_first(ask: RunAsk, names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (name not in ask.required, name))


def _lacking(
    ask: RunAsk,
    needed: int,
    blocked: Mapping[str, tuple[RunHolder, ...] | None],
    sites: Mapping[str, SiteRoom],
) -> _NotYet:
    free = [name for name, holders in blocked.items() if holders is None]
    away = [name for name in blocked if not sites[name].ready]
    holders = tuple(holder for each in blocked.values() for holder in each or ())
    count = "site" if needed == 1 else "sites"
    reason = f"{needed} {count} with room for {ask.in_words()} are needed, {len(free)} have it"
    if needed == 1:
        reason = f"1 site with room for {ask.in_words()} is needed, none has it"
    missing = [name for name in ask.required if name not in free]
    if missing and len(free) >= needed:
        reason = f"site {missing[0]} is required and has no room for {ask.in_words()}"
    reason += _held_by(holders)
    if away:
        reason += f"; {', '.join(away[:SHOWN])} may soon be back"
    return _NotYet(reason, holders, tuple(blocked), starves=bool(holders))


def _held_by(holders: Sequence[RunHolder]) -> str:
    by_site: dict[str, list[str]] = {}
    for each in holders:
        by_site.setdefault(each.site, []).append(f"{each.run} of {each.user}")
    told = [f"{site} has {', '.join(runs[:SHOWN])}" for site, runs in by_site.items()]
    return f"; {'; '.join(told[:SHOWN])}" if told else ""
