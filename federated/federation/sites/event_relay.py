"""EventRelay: tells a run's observers what its sites and their workers say, and what follows of it.

Sites say it from many threads. What is not believed, or said too often, goes no further.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from fedpilot.mediator import Payload
from fedpilot.mediator.core.links import LinkUse, LinkWatch

from ...core.proof.environment_diff import Difference, Facts
from ..events import Emit
from .event_filter import Hearing
from .workforce import Workforce


class EventRelay:
    """Of one federation."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._hearing = Hearing()
        self.workforce = Workforce()
        self._compiling: set[tuple[str, str]] = set()
        """Machines, by site, of which it was said that they compile."""

    def happened(self, payload: Payload) -> None:
        """A site says that something has happened there."""
        if (fields := self._hearing.fields(payload)) is None:
            return
        new = self.workforce.joined(fields) if payload.kind == "worker_ready" else ()
        compiles = fields.get("compiles", "")
        self._emit(payload.kind, **fields)
        if compiles and (host := (fields["site"], fields.get("host", ""))) not in self._compiling:
            self._compiling.add(host)
            self._emit("kernels_compiled", site=host[0], host=host[1], what=compiles)
        self._say_differing(new)

    def passed_over(self, site: str, reason: str) -> None:
        """A site is ready and not taken in."""
        self._emit("site_passed_over", site=site, reason=reason)

    def link_use(self, round_bytes: int) -> Callable[[LinkUse], None]:
        """Made for one start: names a link whose transfers hold rounds of so many bytes up."""
        return partial(self._say_slow, LinkWatch(round_bytes))

    def compare_workers(self, before: Sequence[Facts], *, strict: bool) -> None:
        """With each other and those of `before`; RunRefused where they must be alike."""
        if strict:
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
