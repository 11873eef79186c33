"""SiteTraffic: counts bytes of models and updates by day and round, if the policy limits them.

Each blob's bytes are in a file before they cross, so a killed agent loses no count. A blob in
transit is booked once: a model until it arrives, an update until the mediator has taken it. Bytes
that cross again are booked again. The mediator states the round; the limit of a day holds
regardless.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...core.rules.policy import DAY_S, ByteCaps, Policy
from ...core.rules.policy_decision import Refused, judge_bytes
from ...core.traffic import Direction
from ...identity.files import SECRET, write_text
from ...wire.blobs.blob import Blob
from ...wire.messages import OrderId, RunId

log = logging.getLogger(__name__)

KEPT = 1_000
"""How many of the latest rounds, runs and orders are remembered."""
LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInTransit:
    """A blob in transit in one direction."""

    run: RunId
    """The run and the round under which it is booked."""
    round_number: int
    size: int
    """Bytes of the blob."""
    booked: int = 0
    """Bytes that may cross in all attempts together."""


class SiteTraffic:
    """The byte counts of one site."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._day = 0
        self._today: dict[str, int] = {}
        self._rounds: dict[str, dict[str, int]] = {}
        self._past: dict[str, dict[str, int]] = {}
        """By run: its last forgotten round, and the bytes that the forgotten rounds share: the most
        that one of them had spent, plus all bytes since.
        """
        self._orders: dict[str, int] = {}
        """The rounds of open orders."""
        self._crossings: dict[str, BlobInTransit] = {}
        self._claims: Counter[str] = Counter()
        """Orders in this process that wait for a crossing."""
        self._crossed: Counter[str] = Counter()
        """Bytes of a crossing that have crossed in this process."""
        with suppress(FileNotFoundError):
            self._read()

    # -- orders -----------------------------------------------------------------------------------

    def take(self, policy: Policy, id: OrderId, round_number: int) -> None:
        """Remember an order's round, since another agent may send its answer."""
        if not _limits(policy) or self._orders.get(_named(id)) == round_number:
            return
        self._orders[_named(id)] = round_number
        self._write()

    def round_of(self, id: OrderId) -> int:
        """The round of an open order; 0 if it is no longer known."""
        return self._orders.get(_named(id), 0)

    def done(self, id: OrderId) -> None:
        """Forget an order: the same key would be a new one."""
        self._orders.pop(_named(id), None)

    # -- crossings --------------------------------------------------------------------------------

    def begin(
        self,
        policy: Policy,
        direction: Direction,
        run: RunId,
        blob: Blob,
        *,
        round_number: int,
        now: float,
    ) -> Refused | None:
        """Book a blob that will cross, unless it is in transit or the policy refuses.

        Each `begin` that is not refused needs an `end`. `now` is in epoch seconds. Nothing is
        booked if the policy has no limits.
        """
        name = _crossing(direction, blob.digest)
        found = self._crossings.get(name)
        if _limits(policy) and (found is None or found.size != blob.size):
            begun = BlobInTransit(run=run, round_number=round_number, size=blob.size)
            if (refused := self._book(policy, direction, name, begun, now)) is not None:
                return refused
        self._claims[name] += 1
        return None

    def cross(
        self,
        policy: Callable[[], Policy],
        direction: Direction,
        digest: str,
        nbytes: int,
        *,
        now: float,
    ) -> Refused | None:
        """Count bytes that cross; once they exceed the booked ones, book the blob again."""
        name = _crossing(direction, digest)
        crossing = self._crossings.get(name)
        if crossing is None:
            return None
        self._crossed[name] += nbytes
        if self._crossed[name] <= crossing.booked:
            return None
        return self._book(policy(), direction, name, crossing, now)

    def end(self, direction: Direction, digest: str) -> None:
        """End an order's crossing; after the last one's, the blob would be booked anew."""
        name = _crossing(direction, digest)
        self._claims[name] -= 1
        if self._claims[name] <= 0:
            # The file may still list it, which is harmless.
            self._crossings.pop(name, None)
            del self._claims[name], self._crossed[name]

    def _book(
        self, policy: Policy, direction: Direction, name: str, crossing: BlobInTransit, now: float
    ) -> Refused | None:
        day = int(now // DAY_S)
        if day != self._day:
            self._day, self._today = day, {}
        run, number = crossing.run, crossing.round_number
        shared = self._is_past(run, number)
        bucket = self._past[run] if shared else self._rounds.get(_round(run, number), {})
        in_round, today = bucket.get(direction, 0), self._today.get(direction, 0)
        if refused := judge_bytes(
            policy, direction, in_round=in_round, today=today, more=crossing.size
        ):
            return refused
        self._today[direction] = today + crossing.size
        bucket[direction] = in_round + crossing.size
        if not shared:
            self._rounds[_round(run, number)] = bucket
        self._crossings[name] = replace(crossing, booked=crossing.booked + crossing.size)
        self._write()
        return None

    # -- rounds -----------------------------------------------------------------------------------

    def _is_past(self, run: RunId, number: int) -> bool:
        """Whether a round shares the budget of the forgotten rounds."""
        past = self._past.get(run)
        known = _round(run, number) in self._rounds
        return past is not None and not known and 0 < number <= past[LAST]

    def _forget_rounds(self) -> None:
        while len(self._rounds) > KEPT:
            key = next(iter(self._rounds))
            run, number = _run_and_number(key)
            past, spent = self._past.setdefault(run, {LAST: 0}), self._rounds.pop(key)
            past[LAST] = max(past[LAST], number)
            for direction, nbytes in spent.items():
                past[direction] = max(past.get(direction, 0), nbytes)
        while len(self._past) > KEPT:
            del self._past[next(iter(self._past))]

    # -- the file ---------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            found = json.loads(self._path.read_text())
            day, today = int(found["day"]), _counts(found["today"])
            rounds = {str(key): _counts(each) for key, each in found["rounds"].items()}
            for key in rounds:
                _run_and_number(key)
            past = {str(run): {LAST: 0, **_counts(e)} for run, e in found.get("past", {}).items()}
            orders = _counts(found.get("open", {}))  # older agents kept none
            crossings = {
                str(name): BlobInTransit(
                    run=RunId(str(each["run"])),
                    round_number=int(each["round_number"]),
                    size=int(each["size"]),
                    booked=int(each["booked"]),
                )
                for name, each in found.get("crossings", {}).items()
            }
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("%s is damaged and begun anew: %s", self._path, error)
            return
        self._day, self._today = day, today
        self._rounds, self._past = rounds, past
        self._orders, self._crossings = orders, crossings

    def _write(self) -> None:
        self._forget_rounds()
        _keep_last(self._orders)
        _keep_last(self._crossings, but=self._claims)
        document = {
            "day": self._day,
            "today": self._today,
            "rounds": self._rounds,
            "past": self._past,
            "open": self._orders,
            "crossings": {name: asdict(each) for name, each in self._crossings.items()},
        }
        write_text(self._path, json.dumps(document), SECRET)


def _keep_last(kept: dict[str, Any], but: Counter[str] | None = None) -> None:
    spare = [name for name in kept if not but or name not in but]
    for name in spare[: max(0, len(kept) - KEPT)]:
        del kept[name]


def _limits(policy: Policy) -> bool:
    return (policy.bytes_per_day, policy.bytes_per_round) != (ByteCaps(), ByteCaps())


def _named(id: OrderId) -> str:
    return f"{id.run}/{id.key}"


def _round(run: str, number: int) -> str:
    return f"{run}/{number}"


def _run_and_number(key: str) -> tuple[str, int]:
    run, _, number = key.rpartition("/")
    return run, int(number)


def _crossing(direction: Direction, digest: str) -> str:
    return f"{direction}/{digest}"


def _counts(found: dict[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in found.items()}
