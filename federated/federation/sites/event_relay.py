"""EventRelay: passes events of sites and their workers on to a run's observers.

Events arrive from many threads, at the start and later. Invalid or too frequent ones are dropped.
Workers are compared as they come up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from fedpilot.mediator import Payload
from fedpilot.mediator.core.links import LinkUse, LinkWatch

from ...core.proof.environment_diff import Difference, EnvironmentDiff, Facts, differing
from ...core.rounds.site_events import Allowance, NotBelieved, believed
from ...errors import RunRefused
from ..events import Emit

PER_S, AT_ONCE = 20.0, 2_000.0
"""Events of one site per second, and in one burst, since all its workers may come up at once."""
SAID_EVERY_S = 60.0
"""Seconds between two log lines about a site that sends too many events."""

log = logging.getLogger(__name__)


class EventFilter:
    """Filters the events of all sites of a run; from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._allowances: dict[str, Allowance] = {}
        self._dropped: dict[str, tuple[float, int]] = {}
        """By site: when a drop was last logged, and how many followed."""

    def fields(self, happened: Payload) -> Mapping[str, Any] | None:
        """The fields to pass on; None if the event is dropped, which the log records.

        The mediator has put the name of the site into its header.
        """
        site, now = str(happened.header["site"]), self._clock()
        with self._lock:
            if site not in self._allowances:
                self._allowances[site] = Allowance(PER_S, AT_ONCE, now)
            if not self._allowances[site].takes(now):
                self._drop(site, now)
                return None
        try:
            return believed(happened.kind, happened.header)
        except NotBelieved as error:
            log.warning("what site %s says is not believed: %s", site, error)
            return None

    def _drop(self, site: str, now: float) -> None:
        said, dropped = self._dropped.get(site, (now - SAID_EVERY_S, 0))
        dropped += 1
        if now - said >= SAID_EVERY_S:
            log.warning("site %s says too much: %d of its events are dropped", site, dropped)
            said, dropped = now, 0
        self._dropped[site] = said, dropped


class Workforce:
    """The workers of a run, their facts and differences; for use from any thread."""

    def __init__(self, *, compares_classes: bool = True) -> None:
        """Without `compares_classes`, workers of different vnode classes may differ."""
        self._lock = threading.Lock()
        self._compares_classes = compares_classes
        self._told: dict[tuple[str, int], Facts] = {}
        self._differences: defaultdict[str, EnvironmentDiff] = defaultdict(EnvironmentDiff)

    def among(self, told: Facts) -> str:
        """The vnode class with whose workers one is compared; empty for all workers."""
        return "" if self._compares_classes else str(told.get("vnode_class", ""))

    def joined(self, told: Facts) -> tuple[Difference, ...]:
        """Add a worker that came up, by its `site` and number there; return its new differences."""
        site, number = told["site"], told["worker"]
        with self._lock:
            self._told[site, number] = told
            return self._differences[self.among(told)].joined(f"{site}/{number}", told)

    def remembered(self, told: Facts) -> tuple[Difference, ...]:
        """Add a worker that the run had before it was interrupted; return its new differences."""
        with self._lock:
            return self._differences[self.among(told)].joined(_before(told), told)

    def all(self) -> list[dict[str, Any]]:
        """Facts of each worker, in the order of arrival."""
        with self._lock:
            return [dict(told) for told in self._told.values()]

    def check_alike(self, before: Sequence[Facts] = ()) -> None:
        """Raise RunRefused if workers differ from each other or from those of `before`."""
        named: list[tuple[str, Facts]] = [
            *((f"{told['site']}/{told['worker']}", told) for told in self.all()),
            *((_before(told), told) for told in before),
        ]
        compared: defaultdict[str, dict[str, Facts]] = defaultdict(dict)
        for name, told in named:
            compared[self.among(told)][name] = told
        if found := "; ".join(filter(None, map(differing, compared.values()))):
            raise RunRefused(
                f"with `run.reproducible: strict` all workers have to be alike, and they differ in "
                f"{found}; leave out machines that are unlike the others, or say `warn`"
            )

    def likes(self) -> dict[str, Any]:
        """What a spec says of the workers that later ones must be like; empty without any."""
        found: dict[str, Facts] = {}
        for told in self.all():
            found.setdefault(self.among(told), told)
        if "" in found:
            return {"like": found[""]}
        return {"like_by_class": found} if found else {}

    def by_class(self) -> dict[str, int]:
        """How many workers of each vnode class there are; empty if there is one class only."""
        return dict(Counter(each["vnode_class"] for each in self.all() if "vnode_class" in each))

    def forget(self) -> None:
        """Drop workers that have ended, but keep their facts for comparison."""
        with self._lock:
            self._told.clear()


def _before(told: Facts) -> str:
    return f"{told.get('site')}/{told.get('worker')} before"


class EventRelay:
    """The relay of one federation."""

    def __init__(self, emit: Emit, *, strict: bool, compares_classes: bool = True) -> None:
        """`strict`: all workers must be alike; those of a class, unless it `compares_classes`."""
        self._emit = emit
        self._strict = strict
        self._filter = EventFilter()
        self.workforce = Workforce(compares_classes=compares_classes)
        self._compiling: set[tuple[str, str]] = set()
        """(site, host) of machines whose compilation was reported."""

    def happened(self, payload: Payload) -> None:
        """Handle an event of a site."""
        if (fields := self._filter.fields(payload)) is None:
            return
        new = self.workforce.joined(fields) if payload.kind == "worker_ready" else ()
        compiles = fields.get("compiles", "")
        self._emit(payload.kind, **fields)
        if compiles and (host := (fields["site"], fields.get("host", ""))) not in self._compiling:
            self._compiling.add(host)
            self._emit("kernels_compiled", site=host[0], host=host[1], what=compiles)
        self._say_differing(new)

    def passed_over(self, site: str, reason: str) -> None:
        """Report that a site is ready and not taken in."""
        self._emit("site_passed_over", site=site, reason=reason)

    def link_use(self, round_bytes: int) -> Callable[[LinkUse], None]:
        """Make, for one start, a reporter of links that delay rounds of so many bytes."""
        return partial(self._say_slow, LinkWatch(round_bytes))

    def compare_workers(self, before: Sequence[Facts] = ()) -> None:
        """Compare workers and those of `before`; RunRefused if they must be alike and differ."""
        if self._strict:
            self.workforce.check_alike(before)
            return
        for each in before:
            self._say_differing(self.workforce.remembered(each))

    def _say_slow(self, links: LinkWatch, use: LinkUse) -> None:
        if (slow := links.used(use, time.monotonic())) is not None:
            self._emit(
                "link_slow",
                site=slow.site,
                round=slow.round_number,
                seconds=round(slow.seconds, 1),
                bytes_per_second=round(slow.bytes_per_second),
            )

    def _say_differing(self, new: Sequence[Difference]) -> None:
        for each in new:
            self._emit("workers_differ", **asdict(each))
