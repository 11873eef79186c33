"""Spending: bytes of models and updates by day and by round, as far as the policy limits them.

What is about to cross is booked before it does, in a file, so that an agent which is killed in
between has not forgotten it. An order is booked once in each direction, whichever agent works on
it: the file says too of which round the latest orders are.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.policy import DAY_S, ByteCaps, Policy, Refused, Spent, judge_bytes
from ..core.traffic import Direction
from ..identity.files import SECRET, write_text
from ..wire import OrderId

log = logging.getLogger(__name__)

KEPT = 1_000
"""The rounds, and the orders, that are remembered: the last of them."""


class Spending:
    """The books of one site."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._day = 0
        self._today: dict[str, int] = {}
        self._rounds: dict[str, dict[str, int]] = {}
        self._orders: dict[str, dict[str, int]] = {}
        """By order: its round, and what is booked for it by direction."""
        with suppress(FileNotFoundError):
            self._read()

    def take(self, policy: Policy, id: OrderId, round_number: int) -> None:
        """Remember of which round an order is: whoever has its answer may be another agent."""
        if not _limits(policy) or _named(id) in self._orders:
            return
        self._orders[_named(id)] = {"round": round_number}
        self._write()

    def round_of(self, id: OrderId) -> int:
        """The round of an order that was taken; 0 if that is not known any more."""
        return self._orders.get(_named(id), {}).get("round", 0)

    def charge(
        self,
        policy: Policy,
        direction: Direction,
        id: OrderId,
        *,
        round_number: int,
        nbytes: int,
        now: float,
    ) -> Refused | None:
        """Book bytes that are about to cross for an order, unless that is more than may.

        `now`: epoch seconds. What the policy does not limit is not booked, and nothing is twice.
        """
        if not _limits(policy):
            return None
        day = int(now // DAY_S)
        if day != self._day:
            self._day, self._today = day, {}
        order = self._orders.get(_named(id), {"round": round_number})
        more = max(0, nbytes - order.get(direction, 0))
        key = f"{id.run}/{round_number}"
        in_round = self._rounds.get(key, {}).get(direction, 0)
        spent = Spent(in_round=in_round, today=self._today.get(direction, 0))
        refused = judge_bytes(policy, direction, spent, more) if more else None
        if refused is None and more:
            self._today[direction] = spent.today + more
            self._rounds.setdefault(key, {})[direction] = in_round + more
            self._orders[_named(id)] = {**order, direction: nbytes}
            self._write()
        return refused

    def _read(self) -> None:
        try:
            found = json.loads(self._path.read_text())
            self._day = int(found["day"])
            self._today = _counts(found["today"])
            self._rounds = {str(key): _counts(each) for key, each in found["rounds"].items()}
            orders = found.get("orders", {})  # an agent before us may have kept none
            self._orders = {str(key): _counts(each) for key, each in orders.items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("%s is damaged and begun anew: %s", self._path, error)

    def _write(self) -> None:
        for kept in (self._rounds, self._orders):
            while len(kept) > KEPT:
                del kept[next(iter(kept))]
        document = {
            "day": self._day,
            "today": self._today,
            "rounds": self._rounds,
            "orders": self._orders,
        }
        write_text(self._path, json.dumps(document), SECRET)


def _limits(policy: Policy) -> bool:
    return (policy.bytes_per_day, policy.bytes_per_round) != (ByteCaps(), ByteCaps())


def _named(id: OrderId) -> str:
    return f"{id.run}/{id.key}"


def _counts(found: dict[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in found.items()}
